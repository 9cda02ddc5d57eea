#include "compiler/values.h"

#include <algorithm>

namespace theseus {

Trees::Trees(int ranks) : ranks_(ranks), table_(1024, kNothing), seen_in_(static_cast<size_t>(ranks), 0) {}

namespace {

size_t mixed(int32_t left, int32_t right) {
  uint64_t x =
      (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right)) * 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ull;
  return static_cast<size_t>(x ^ (x >> 32));
}

}  // namespace

int32_t Trees::combine(int32_t left, int32_t right, Event event, int32_t chunk) {
  const size_t mask = table_.size() - 1;
  size_t at = mixed(left, right) & mask;
  for (; table_[at] != kNothing; at = (at + 1) & mask) {
    const Node& known = node(table_[at]);
    if (known.left == left && known.right == right) return table_[at];
  }
  nodes_.push_back({left, right});
  made_.push_back({event, chunk});
  proven_.push_back(false);
  const auto tree = ranks_ + static_cast<int32_t>(nodes_.size());
  table_[at] = tree;
  if (2 * nodes_.size() > table_.size()) grow();
  return tree;
}

void Trees::grow() {
  table_.assign(2 * table_.size(), kNothing);
  const size_t mask = table_.size() - 1;
  for (size_t n = 0; n < nodes_.size(); ++n) {
    size_t at = mixed(nodes_[n].left, nodes_[n].right) & mask;
    while (table_[at] != kNothing) at = (at + 1) & mask;
    table_[at] = ranks_ + 1 + static_cast<int32_t>(n);
  }
}

int32_t Trees::scaled(int32_t tree, Event event, int32_t chunk) {
  if (!is_leaf(tree) && node(tree).right == kNothing) return node(tree).left;
  return combine(kNothing, tree, event, chunk);
}

Trees::Finding Trees::examine(int32_t tree) {
  if (!is_leaf(tree) && proven_[static_cast<size_t>(tree - ranks_ - 1)]) return {};
  ++round_;
  int32_t leaves = 0;
  std::vector<int32_t> open{tree};
  while (!open.empty()) {
    const int32_t part = open.back();
    open.pop_back();
    if (!is_leaf(part)) {
      const auto [left, right] = node(part);
      if (right == kNothing) return {Flaw::Unscaled, -1, part};
      if (left == kNothing) return {Flaw::ScaledAgain, -1, part};
      open.push_back(right);
      open.push_back(left);
      continue;
    }
    int32_t& seen = seen_in_[static_cast<size_t>(part - 1)];
    if (seen == round_) return {Flaw::Twice, part - 1, smallest_with_both(tree, part - 1)};
    seen = round_;
    ++leaves;
  }
  for (int rank = 0; leaves < ranks_ && rank < ranks_; ++rank) {
    if (seen_in_[static_cast<size_t>(rank)] != round_) return {Flaw::Missing, rank, tree};
  }
  if (!is_leaf(tree)) proven_[static_cast<size_t>(tree - ranks_ - 1)] = true;
  return {};
}

// Parts have lower numbers than what they are part of, so one pass counts in how many ways `rank` is in each.
int32_t Trees::smallest_with_both(int32_t tree, int rank) const {
  std::vector<uint8_t> count(static_cast<size_t>(tree) + 1, 0);
  count[static_cast<size_t>(rank) + 1] = 1;
  for (int32_t t = ranks_ + 1; t <= tree; ++t) {
    const int both = count[static_cast<size_t>(node(t).left)] + count[static_cast<size_t>(node(t).right)];
    count[static_cast<size_t>(t)] = static_cast<uint8_t>(std::min(both, 2));
  }
  for (;;) {
    if (count[static_cast<size_t>(node(tree).left)] > 1) {
      tree = node(tree).left;
    } else if (count[static_cast<size_t>(node(tree).right)] > 1) {
      tree = node(tree).right;
    } else {
      return tree;
    }
  }
}

SymbolicMemory::SymbolicMemory(const PlanGraph& graph, const VerifyOptions& options, bool in_place, int slots)
    : graph_(graph),
      options_(options),
      in_place_(in_place),
      scaled_(options.scaled_input && is_reducing(graph.plan().collective)),
      reducing_(is_reducing(graph.plan().collective)),
      cells_(graph.plan()),
      trees_(graph.plan().ranks),
      memory_(static_cast<size_t>(cells_.total())),
      first_message_{0},
      sent_(graph.links().size(), 0),
      received_(graph.links().size(), 0),
      final_tree_(static_cast<size_t>(cells_.space().chunks()), Trees::kNothing) {
  first_message_.reserve(graph.links().size() + 1);
  for (const Link& link : graph.links()) {
    first_message_.push_back(first_message_.back() + std::min(std::max(slots, 1), link.messages));
  }
  messages_.resize(static_cast<size_t>(first_message_.back()));
}

void SymbolicMemory::execute(int32_t program, int32_t step) {
  if (fault_) return;
  const Program& tb = graph_.program(program);
  const Instruction& i = tb.instructions[step];
  const Here here{program, step, tb, i};
  Value local;
  if (i.src.buffer != Buffer::None) local = load(here, i.src);
  Value result;
  switch (i.opcode) {
    case Opcode::Nop: return;
    case Opcode::Send:
    case Opcode::Copy: result = local; break;
    case Opcode::Recv:
    case Opcode::RecvCopySend: result = take(here, i.recv); break;
    case Opcode::RecvReduceCopy:
    case Opcode::RecvReduceSend:
    case Opcode::RecvReduceCopySend: {
      const Value arrived = take(here, i.recv);
      result = i.recv_is_left ? combine(here, arrived, local) : combine(here, local, arrived);
      break;
    }
    case Opcode::Reduce: result = combine(here, load(here, i.dst), local); break;
    case Opcode::Fold: result = fold(here, local); break;
  }
  if (i.dst.buffer != Buffer::None) store(here, i.dst, result);
  if (i.send >= 0) send(here, result);
}

Value SymbolicMemory::load(const Here& here, Place place) {
  if (place.buffer == Buffer::Input) return load_input(here, place);
  const int rank = here.tb.rank;
  const Value value = memory_[static_cast<size_t>(cells_.cell(rank, place))];
  if (value.tree != Trees::kNothing) return value;
  if (in_place_ && place.buffer == Buffer::Output && cells_.is_input_too(rank, place.index)) {
    const int32_t chunk = cells_.space().chunk_at(rank, place);
    return {chunk, scaled_ ? trees_.unscaled(rank, here.tb.event + here.step, chunk) : trees_.leaf(rank)};
  }
  refuse(here, place, "reads what nothing has written");
  return value;
}

Value SymbolicMemory::load_input(const Here& here, Place place) {
  const int rank = here.tb.rank;
  const Value own{cells_.space().chunk_at(rank, place), trees_.leaf(rank)};
  const bool compares = in_place_ || options_.in_place;
  const int64_t twin = compares ? cells_.twin_of_input(rank, place) : -1;
  if (twin < 0) return own;
  const Value written = memory_[static_cast<size_t>(twin)];
  if (written.tree == Trees::kNothing) return own;
  if (!in_place_) {
    differs_ = differs_ || scaled_ || written != own;
    return own;
  }
  if (scaled_) return {written.chunk, trees_.scaled(written.tree, here.tb.event + here.step, written.chunk)};
  return written;
}

Value SymbolicMemory::take(const Here& here, int16_t connection) {
  const auto link = static_cast<size_t>(graph_.link_of(here.tb.rank, connection));
  const int64_t first = first_message_[link];
  const int64_t room = first_message_[link + 1] - first;
  const Message& message = messages_[static_cast<size_t>(first + received_[link]++ % room)];
  if (message.sub_pipeline != here.instruction.sub_pipeline && graph_.plan().loop == LoopOrder::SubPipelines) {
    refuse(here, here.instruction.dst,
           "of sub-pipeline " + std::to_string(here.instruction.sub_pipeline) +
               " takes a message that was sent in sub-pipeline " + std::to_string(message.sub_pipeline),
           FaultKind::Structure);
  }
  return message.value;
}

void SymbolicMemory::send(const Here& here, Value value) {
  const auto link = static_cast<size_t>(graph_.link_of(here.tb.rank, here.instruction.send));
  const int64_t first = first_message_[link];
  const int64_t room = first_message_[link + 1] - first;
  messages_[static_cast<size_t>(first + sent_[link]++ % room)] = {value, here.instruction.sub_pipeline};
}

Value SymbolicMemory::combine(const Here& here, Value left, Value right) {
  if (left.chunk != right.chunk) {
    refuse(here, here.instruction.dst,
           "combines chunk " + std::to_string(left.chunk) + " with chunk " + std::to_string(right.chunk));
  }
  if (fault_) return left;
  return {left.chunk, trees_.combine(left.tree, right.tree, here.tb.event + here.step, left.chunk)};
}

Value SymbolicMemory::fold(const Here& here, Value local) {
  Value result;
  for (size_t f = 0; f < here.instruction.fold.size(); ++f) {
    const int16_t id = here.instruction.fold[f];
    const Value operand = id == kLocalOperand ? local : take(here, id);
    result = f == 0 ? operand : combine(here, result, operand);
  }
  return result;
}

void SymbolicMemory::store(const Here& here, Place place, Value value) {
  if (fault_) return;
  const int pieces = graph_.plan().chunks_per_block;
  if (options_.any_count && place.buffer == Buffer::Output && value.chunk % pieces != place.index % pieces) {
    refuse(
        here, place,
        "puts chunk " + std::to_string(value.chunk) + " where another piece of a block belongs, which may be longer");
  }
  memory_[static_cast<size_t>(cells_.cell(here.tb.rank, place))] = value;
}

void SymbolicMemory::refuse(const Here& here, Place place, const std::string& why, FaultKind kind) {
  if (fault_) return;
  fault_ =
      graph_.refuse(kind, here.program, here.step, place, who() + graph_.describe(here.program, here.step) + " " + why);
}

std::optional<Refusal> SymbolicMemory::finish(const Run& run) {
  for (int rank = 0; !fault_ && rank < graph_.plan().ranks; ++rank) {
    const auto outputs = static_cast<int32_t>(cells_.first_scratch(rank) - cells_.first(rank));
    for (int32_t index = 0; !fault_ && index < outputs; ++index) fault_ = check_output(run, rank, index);
  }
  if (fault_) fault_->in_place = in_place_;
  return std::move(fault_);
}

std::optional<Refusal> SymbolicMemory::check_output(const Run& run, int rank, int32_t index) {
  const Place place{Buffer::Output, index};
  const int32_t chunk = cells_.space().chunk_at(rank, place);
  Value value = memory_[static_cast<size_t>(cells_.first(rank)) + static_cast<size_t>(index)];
  if (value.tree == Trees::kNothing) {
    const bool is_input = in_place_ && !scaled_ && cells_.is_input_too(rank, index);
    if (!is_input) return wrong(run, rank, index, "is never written");
    value = {chunk, trees_.leaf(rank)};
  }
  if (value.chunk != chunk) return wrong(run, rank, index, "ends with chunk " + std::to_string(value.chunk));
  if (!reducing_) {
    const int owner = cells_.space().owner(chunk);
    if (value.tree == trees_.leaf(owner)) return {};
    return wrong(run, rank, index, "ends with something else than the data of rank " + std::to_string(owner));
  }
  if (const Trees::Finding finding = trees_.examine(value.tree); finding.flaw != Trees::Flaw::None) {
    return flawed(run, rank, index, finding);
  }
  int32_t& known = final_tree_[static_cast<size_t>(chunk)];
  if (known == Trees::kNothing) known = value.tree;
  if (!options_.equal_bits || known == value.tree) return {};
  return wrong(run, rank, index, "is reduced in another order than on a lower rank, so its bits may differ");
}

// Names the instruction that made the flaw, which may be at another rank.
Refusal SymbolicMemory::flawed(const Run& run, int rank, int32_t index, const Trees::Finding& finding) const {
  if (finding.flaw == Trees::Flaw::Missing) {
    return wrong(run, rank, index, "lacks the contribution of rank " + std::to_string(finding.rank));
  }
  const Event event = trees_.event_of(finding.tree);
  const int32_t program = graph_.program_of(event);
  const int32_t step = event - graph_.program(program).event;
  const std::string chunk = std::to_string(trees_.chunk_of(finding.tree));
  std::string what;
  if (finding.flaw == Trees::Flaw::Twice) {
    what = " counts the contribution of rank " + std::to_string(finding.rank) + " to chunk " + chunk + " twice";
  } else if (finding.flaw == Trees::Flaw::Unscaled) {
    what =
        " reads chunk " + chunk + " from the output before anything is written there; a scaled input is not yet scaled";
  } else {
    what =
        " reads chunk " + chunk + " from the input after the output was written there; a scaled input is scaled again";
  }
  const Instruction& i = graph_.instruction(program, step);
  Refusal refusal = graph_.refuse(FaultKind::Value, program, step, i.dst.buffer != Buffer::None ? i.dst : i.src,
                                  who() + graph_.describe(program, step) + what);
  refusal.chunk = trees_.chunk_of(finding.tree);
  return refusal;
}

// Names the last instruction that wrote the chunk: the one to look at first.
Refusal SymbolicMemory::wrong(const Run& run, int rank, int32_t index, const std::string& why) const {
  int32_t writer = -1;
  int32_t writer_step = -1;
  std::vector<int32_t> next(graph_.programs().size(), 0);
  for (const Segment& segment : run.segments) {
    int32_t& step = next[static_cast<size_t>(segment.program)];
    for (int32_t i = 0; i < segment.count; ++i, ++step) {
      if (graph_.program(segment.program).rank != rank) continue;
      const Place dst = graph_.instruction(segment.program, step).dst;
      if (dst.buffer != Buffer::Output || dst.index != index) continue;
      writer = segment.program;
      writer_step = step;
    }
  }
  const Place place{Buffer::Output, index};
  const std::string where =
      who() + "rank " + std::to_string(rank) + ", chunk Output[" + std::to_string(index) + "] " + why;
  if (writer >= 0) {
    return graph_.refuse(FaultKind::Value, writer, writer_step, place,
                         where + "; written by " + graph_.describe(writer, writer_step));
  }
  Refusal refusal;
  refusal.kind = FaultKind::Value;
  refusal.rank = rank;
  refusal.place = place;
  refusal.chunk = cells_.space().chunk_at(rank, place);
  refusal.text = "plan '" + graph_.plan().name + "': " + where + "; no instruction writes it";
  return refusal;
}

}  // namespace theseus
