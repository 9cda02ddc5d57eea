// Plans as bytes, and as dicts where somebody wants to look at them or write one.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>

#include "bindings/resccl/fields.h"
#include "bindings/resccl/module.h"
#include "schedule/check.h"

namespace py = pybind11;

namespace theseus::resccl {
namespace {

constexpr std::array kLoopNames = {"micro_batches", "sub_pipelines"};
static_assert(kLoopNames.size() == kLoopOrders);
constexpr std::array kBufferNames = {"none", "input", "output", "scratch"};

Place place_of(py::handle value, const std::string& where, const char* what) {
  if (!value || value.is_none()) return {};
  const py::sequence pair = list(value, where, what);
  if (pair.size() != 2) refuse(where, std::string(what) + " is " + text_of(value) + ", not [buffer, index]");
  const std::string buffer = text(pair[0], where, what);
  for (size_t b = 1; b < kBufferNames.size(); ++b) {
    if (buffer == kBufferNames[b]) return {static_cast<Buffer>(b), integer<int32_t>(pair[1], where, what)};
  }
  refuse(where, std::string(what) + " names the buffer '" + buffer + "'; there are input, output and scratch");
}

Opcode opcode_of(const std::string& name, const std::string& where) {
  for (int code = 0; code < kOpcodes; ++code) {
    if (name == name_of(static_cast<Opcode>(code))) return static_cast<Opcode>(code);
  }
  refuse(where, "there is no opcode '" + name + "'");
}

Dependency dependency_of(py::handle value, const std::string& where) {
  const py::sequence found = list(value, where, "dependencies");
  if (found.size() != 3) refuse(where, "the dependency " + text_of(value) + " is not [tb, step, distance]");
  return {integer<int16_t>(found[0], where, "a dependency's tb"),
          integer<int16_t>(found[2], where, "a dependency's distance"),
          integer<int32_t>(found[1], where, "a dependency's step")};
}

Instruction instruction_of(py::handle value, const std::string& where) {
  const Fields fields(value, where,
                      {"opcode", "recv_is_left", "recv", "send", "src", "dst", "sub_pipeline", "fold", "dependencies"});
  Instruction i;
  i.opcode = opcode_of(fields.text("opcode"), where);
  i.recv_is_left = fields.flag("recv_is_left", false);
  i.recv = fields.integer<int16_t>("recv", -1);
  i.send = fields.integer<int16_t>("send", -1);
  i.src = place_of(fields.find("src"), where, "src");
  i.dst = place_of(fields.find("dst"), where, "dst");
  i.sub_pipeline = fields.integer<int32_t>("sub_pipeline", 0);
  for (const py::handle operand : fields.list("fold")) i.fold.push_back(integer<int16_t>(operand, where, "fold"));
  for (const py::handle each : fields.list("dependencies")) i.dependencies.push_back(dependency_of(each, where));
  return i;
}

Connection connection_of(py::handle value, const std::string& where) {
  const Fields fields(value, where, {"peer", "outgoing", "rail", "channel"});
  return {fields.integer<int32_t>("peer"), flag(fields.get("outgoing"), where, "outgoing"),
          fields.integer<int16_t>("rail", 0), fields.integer<int16_t>("channel", 0)};
}

RankPlan rank_plan_of(py::handle value, const std::string& plan) {
  const Fields fields(value, plan + ", a rank's part", {"rank", "scratch_chunks", "connections", "thread_blocks"});
  RankPlan part;
  part.rank = fields.integer<int32_t>("rank");
  part.scratch_chunks = fields.integer<int32_t>("scratch_chunks", 0);
  const std::string who = plan + ", rank " + std::to_string(part.rank);
  for (const py::handle each : fields.list("connections")) {
    part.connections.push_back(connection_of(each, who + ", connection " + std::to_string(part.connections.size())));
  }
  for (const py::handle each : fields.list("thread_blocks")) {
    const std::string tb = who + ", TB " + std::to_string(part.thread_blocks.size());
    ThreadBlock& block = part.thread_blocks.emplace_back();
    for (const py::handle instruction : list(each, tb, "the TB")) {
      block.instructions.push_back(
          instruction_of(instruction, tb + ", step " + std::to_string(block.instructions.size())));
    }
  }
  return part;
}

LoopOrder loop_of(const std::string& name, const std::string& where) {
  for (size_t order = 0; order < kLoopNames.size(); ++order) {
    if (name == kLoopNames[order]) return static_cast<LoopOrder>(order);
  }
  refuse(where, "there is no loop '" + name + "'; there are micro_batches and sub_pipelines");
}

py::object object_of(Place place) {
  if (place.buffer == Buffer::None) return py::none();
  py::list pair;
  pair.append(kBufferNames[static_cast<size_t>(place.buffer)]);
  pair.append(place.index);
  return pair;
}

py::dict dict_of_instruction(const Instruction& i) {
  py::list dependencies;
  for (const Dependency& d : i.dependencies) {
    py::list triple;
    triple.append(d.tb);
    triple.append(d.step);
    triple.append(d.distance);
    dependencies.append(triple);
  }
  py::dict dict;
  dict["opcode"] = name_of(i.opcode);
  dict["recv_is_left"] = i.recv_is_left;
  dict["recv"] = i.recv;
  dict["send"] = i.send;
  dict["src"] = object_of(i.src);
  dict["dst"] = object_of(i.dst);
  dict["sub_pipeline"] = i.sub_pipeline;
  dict["fold"] = py::cast(i.fold);
  dict["dependencies"] = dependencies;
  return dict;
}

py::dict dict_of_part(const RankPlan& part) {
  py::list connections;
  for (const Connection& c : part.connections) {
    py::dict dict;
    dict["peer"] = c.peer;
    dict["outgoing"] = c.outgoing;
    dict["rail"] = c.rail;
    dict["channel"] = c.channel;
    connections.append(dict);
  }
  py::list blocks;
  for (const ThreadBlock& tb : part.thread_blocks) {
    py::list instructions;
    for (const Instruction& i : tb.instructions) instructions.append(dict_of_instruction(i));
    blocks.append(instructions);
  }
  py::dict dict;
  dict["rank"] = part.rank;
  dict["scratch_chunks"] = part.scratch_chunks;
  dict["connections"] = connections;
  dict["thread_blocks"] = blocks;
  return dict;
}

py::bytes encode_plan(const py::dict& dict) { return serialize(plan_of(dict)); }

py::dict decode_plan(const py::bytes& bytes, int rank) {
  const auto text = static_cast<std::string>(bytes);
  return dict_of(take(rank < 0 ? parse_plan(text) : parse_plan_of_rank(text, rank)));
}

// What a plan says of itself, without its parts.
py::dict head_of(const Plan& plan) {
  py::dict head;
  head["name"] = plan.name;
  head["collective"] = name_of(plan.collective);
  head["ranks"] = plan.ranks;
  head["root"] = plan.root;
  head["chunks_per_block"] = plan.chunks_per_block;
  head["rendezvous_safe"] = plan.rendezvous_safe;
  head["loop"] = kLoopNames[static_cast<size_t>(plan.loop)];
  return head;
}

// Sizes alone, from the bytes: no Python object per instruction.
py::dict summarise_plan(const py::bytes& bytes) {
  const auto text = static_cast<std::string>(bytes);
  Plan plan;
  uint64_t identity = 0;
  {
    const py::gil_scoped_release released;
    auto parsed = parse_plan(text);
    if (!parsed.ok()) {
      const py::gil_scoped_acquire acquired;
      throw StatusError(parsed.status());
    }
    plan = std::move(parsed).value();
    identity = digest(plan);
  }
  py::list parts;
  int32_t sub_pipelines = 0;
  for (const RankPlan& part : plan.rank_plans) {
    size_t instructions = 0;
    for (const ThreadBlock& tb : part.thread_blocks) {
      instructions += tb.instructions.size();
      if (!tb.instructions.empty()) sub_pipelines = std::max(sub_pipelines, tb.instructions.back().sub_pipeline + 1);
    }
    py::dict row;
    row["rank"] = part.rank;
    row["thread_blocks"] = part.thread_blocks.size();
    row["connections"] = part.connections.size();
    row["instructions"] = instructions;
    row["scratch_chunks"] = part.scratch_chunks;
    parts.append(row);
  }
  py::dict summary = head_of(plan);
  summary["sub_pipelines"] = sub_pipelines;
  summary["digest"] = identity;
  summary["rank_plans"] = parts;
  return summary;
}

}  // namespace

Plan plan_of(const py::dict& dict) {
  const Fields fields(
      dict, "plan",
      {"name", "collective", "ranks", "root", "chunks_per_block", "rendezvous_safe", "loop", "rank_plans"});
  Plan plan;
  plan.name = fields.text("name");
  const std::string who = "plan '" + plan.name + "'";
  plan.collective = collective_of(fields.text("collective"));
  plan.ranks = fields.integer<int32_t>("ranks");
  plan.root = fields.integer<int32_t>("root", 0);
  plan.chunks_per_block = fields.integer<int32_t>("chunks_per_block");
  plan.rendezvous_safe = fields.flag("rendezvous_safe", false);
  plan.loop = loop_of(fields.text("loop", kLoopNames[0]), who);
  check(check_head(plan));
  for (const py::handle each : list(fields.get("rank_plans"), who, "rank_plans")) {
    RankPlan part = rank_plan_of(each, who);
    if (!plan.rank_plans.empty() && plan.rank_plans.back().rank >= part.rank) {
      refuse(who, "the parts of the ranks are not in increasing order: rank " + std::to_string(part.rank) +
                      " follows rank " + std::to_string(plan.rank_plans.back().rank));
    }
    check(check_part(plan, part));
    plan.rank_plans.push_back(std::move(part));
  }
  return plan;
}

py::dict dict_of(const Plan& plan) {
  py::list parts;
  for (const RankPlan& part : plan.rank_plans) parts.append(dict_of_part(part));
  py::dict dict = head_of(plan);
  dict["rank_plans"] = parts;
  return dict;
}

void bind_plans(py::module_& module) {
  module.def("encode_plan", &encode_plan, py::arg("plan"));
  module.def("decode_plan", &decode_plan, py::arg("plan"), py::arg("rank") = -1);
  module.def("summarise_plan", &summarise_plan, py::arg("plan"));
}

}  // namespace theseus::resccl
