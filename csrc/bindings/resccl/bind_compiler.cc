// Built-in algorithms, the compiler, and what it makes of an algorithm on the way.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <array>
#include <optional>

#include "bindings/resccl/errors.h"
#include "bindings/resccl/module.h"
#include "compiler/compile.h"
#include "compiler/registry.h"
#include "compiler/tasks.h"

namespace py = pybind11;

namespace theseus::resccl {
namespace {

constexpr std::array kSchedulingNames = {"per_connection",  "hpds",        "round_robin",
                                         "algorithm_level", "stage_level", "hpds_improved"};
constexpr std::array kAllocationNames = {"per_connection", "per_connection_and_stage", "state_based",
                                         "state_based_even", "state_based_apart"};
constexpr std::array kLoopNames = {"micro_batches", "sub_pipelines"};
// A name that is missing would be a null pointer.
static_assert(kSchedulingNames.size() == kSchedulings && kAllocationNames.size() == kTbAllocations &&
              kLoopNames.size() == kLoopOrders);

template <class Enum, size_t N>
Enum enum_of(const std::string& name, const std::array<const char*, N>& names, const char* what) {
  std::string known;
  for (size_t i = 0; i < N; ++i) {
    if (name == names[i]) return static_cast<Enum>(i);
    known += (i > 0 ? ", " : "") + std::string(names[i]);
  }
  throw StatusError(
      Status::argument("compile: there is no " + std::string(what) + " '" + name + "'; there are " + known));
}

Scheduling scheduling_of(const std::string& name) { return enum_of<Scheduling>(name, kSchedulingNames, "scheduling"); }

py::list built_in_names() {
  py::list rows;
  for (const BuiltIn& each : built_ins()) {
    py::list collectives;
    for (int c = 0; c < kCollectives; ++c) {
      if (each.makes(static_cast<Collective>(c))) collectives.append(name_of(static_cast<Collective>(c)));
    }
    rows.append(py::make_tuple(each.name, each.summary, collectives));
  }
  return rows;
}

py::dict built_in(const std::string& name, const std::string& collective, const py::dict& topology, int root) {
  return dict_of(take(build(name, collective_of(collective), topology_of(topology), root)));
}

py::bytes compile_algorithm(const py::dict& algorithm_dict, const py::dict& topology_dict,
                            const std::string& scheduling, const std::string& allocation, const std::string& loop,
                            bool fold, bool fuse, bool stagger, int rank) {
  const Algorithm algorithm = algorithm_of(algorithm_dict);
  const Topology topology = topology_of(topology_dict);
  CompileOptions options;
  options.scheduling = scheduling_of(scheduling);
  options.allocation = enum_of<TbAllocation>(allocation, kAllocationNames, "allocation");
  options.loop = enum_of<LoopOrder>(loop, kLoopNames, "loop");
  options.fold = fold;
  options.fuse = fuse;
  options.stagger = stagger;
  Status status;
  std::string bytes;
  {
    const py::gil_scoped_release released;
    const Result<Plan> plan = compile(algorithm, topology, options, rank);
    status = plan.status();
    if (plan.ok()) bytes = serialize(*plan);
  }
  check(status);
  return bytes;
}

template <class T>
py::array_t<T> array_of(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

py::array_t<int32_t> array_of_links(const std::vector<Link>& links) {
  constexpr py::ssize_t columns = 4;
  py::array_t<int32_t> rows({static_cast<py::ssize_t>(links.size()), columns});
  int32_t* cell = rows.mutable_data();
  for (const Link& link : links) {
    for (const int32_t value : {static_cast<int32_t>(link.kind), link.from, link.to, int32_t{link.rail}})
      *cell++ = value;
  }
  return rows;
}

py::dict dict_of(const TaskGraph& graph, const Pipeline& pipeline, const std::vector<int32_t>& stages) {
  py::dict dict;
  dict["transfers"] = array_of_transfers(graph.transfers);
  dict["first_transfer"] = array_of(graph.first_transfer);
  dict["predecessors"] = array_of(graph.predecessors);
  dict["first_predecessor"] = array_of(graph.first_predecessor);
  dict["links"] = array_of_links(graph.links);
  dict["link_ids"] = array_of(graph.link_ids);
  dict["first_link"] = array_of(graph.first_link);
  dict["between_hosts"] = array_of(graph.between_hosts).attr("astype")("bool");
  dict["stage"] = array_of(stages);
  dict["sub_pipeline"] = array_of(pipeline.sub_pipeline);
  dict["order"] = array_of(pipeline.order);
  return dict;
}

py::dict analyse(const py::dict& algorithm_dict, const py::dict& topology_dict, const std::string& scheduling,
                 bool fold) {
  const Algorithm algorithm = algorithm_of(algorithm_dict);
  const Topology topology = topology_of(topology_dict);
  const Scheduling chosen = scheduling_of(scheduling);
  Status status;
  std::optional<TaskGraph> graph;
  std::optional<Pipeline> pipeline;
  std::vector<int32_t> stages;
  {
    const py::gil_scoped_release released;
    auto built = build_tasks(algorithm, topology, fold);
    status = built.status();
    if (built.ok()) {
      graph = std::move(built).value();
      auto scheduled = schedule_tasks(*graph, chosen);
      status = scheduled.status();
      if (scheduled.ok()) {
        pipeline = std::move(scheduled).value();
        stages = stages_of(*graph);
      }
    }
  }
  check(status);
  return dict_of(*graph, *pipeline, stages);
}

}  // namespace

void bind_compiler(py::module_& module) {
  module.def("built_in_names", &built_in_names);
  module.def("built_in", &built_in, py::arg("name"), py::arg("collective"), py::arg("topology"), py::arg("root") = 0);
  module.def("compile", &compile_algorithm, py::arg("algorithm"), py::arg("topology"), py::kw_only(),
             py::arg("scheduling") = "hpds", py::arg("allocation") = "state_based", py::arg("loop") = "micro_batches",
             py::arg("fold") = true, py::arg("fuse") = false, py::arg("stagger") = false, py::arg("rank") = kAllRanks);
  module.def("analyse", &analyse, py::arg("algorithm"), py::arg("topology"), py::kw_only(),
             py::arg("scheduling") = "hpds", py::arg("fold") = true);
}

}  // namespace theseus::resccl
