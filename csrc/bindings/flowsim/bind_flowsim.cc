// flowsim._core: the fluid engine over arrays. flowsim/_core.pyi documents every name; the package flowsim is its face.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "flowsim/engine.h"
#include "flowsim/live.h"
#include "flowsim/network.h"

namespace py = pybind11;

namespace theseus::flowsim {

namespace {

// Between two looks at Python's signals, so that Ctrl-C ends a long run.
constexpr int64_t kStepsAtOnce = 100000;

template <class T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;

void check(const Status& status) {
  if (!status.ok()) throw py::value_error(status.message());
}

template <class T>
T take(Result<T> result) {
  check(result.status());
  return std::move(result).value();
}

// The vector's own memory as an array, freed with it.
template <class T>
py::array_t<T> as_array(std::vector<T> values) {
  auto* kept = new std::vector<T>(std::move(values));
  const py::capsule owner(kept, [](void* vector) { delete static_cast<std::vector<T>*>(vector); });
  return py::array_t<T>(static_cast<py::ssize_t>(kept->size()), kept->data(), owner);
}

// Rows of different length: row i is values[ends[i]:ends[i + 1]].
struct Rows {
  const Array<int64_t>& ends;
  const Array<int32_t>& values;
  const char* name;

  void check_for(py::ssize_t rows) const {
    const auto refuse = [&](const std::string& why) { throw py::value_error(std::string(name) + ": " + why); };
    if (ends.ndim() != 1 || values.ndim() != 1) refuse("ends and values must have one dimension");
    if (ends.size() != rows + 1) {
      refuse(std::to_string(ends.size() - 1) + " rows for " + std::to_string(rows) + " activities");
    }
    const int64_t* end = ends.data();
    for (py::ssize_t i = 0; i < rows; ++i) {
      if (end[i] > end[i + 1]) refuse("ends must not fall");
    }
    if (end[0] != 0 || end[rows] != values.size()) refuse("ends must go from 0 to the number of values");
  }
  std::span<const int32_t> row(py::ssize_t i) const {
    return {values.data() + ends.data()[i], values.data() + ends.data()[i + 1]};
  }
};

template <class T>
void check_length(const Array<T>& array, py::ssize_t length, const char* name) {
  if (array.ndim() != 1 || array.size() != length) {
    throw py::value_error(std::string(name) + ": an array of " + std::to_string(length) + " elements is needed");
  }
}

// Adds all of `count` activities by add(i), or none.
template <class Add>
int32_t add_all(Network& network, py::ssize_t count, const Add& add) {
  const Network::Mark before = network.mark();
  for (py::ssize_t i = 0; i < count; ++i) {
    const Result<int32_t> added = add(i);
    if (added.ok()) continue;
    network.back_to(before);
    check(added.status());
  }
  return static_cast<int32_t>(before.activities);
}

int32_t add_flows(Network& network, const Array<int64_t>& path_ends, const Array<int32_t>& paths,
                  const Array<double>& sizes, const Array<int32_t>& priorities, const Array<double>& weights,
                  const Array<double>& starts, const Array<double>& latencies, const Array<int64_t>& after_ends,
                  const Array<int32_t>& after) {
  const py::ssize_t count = sizes.size();
  const Rows path_rows{path_ends, paths, "paths"};
  const Rows after_rows{after_ends, after, "after"};
  path_rows.check_for(count);
  after_rows.check_for(count);
  check_length(sizes, count, "sizes");
  check_length(priorities, count, "priorities");
  check_length(weights, count, "weights");
  check_length(starts, count, "starts");
  check_length(latencies, count, "latencies");
  return add_all(network, count, [&](py::ssize_t i) {
    const Flow flow{sizes.data()[i], priorities.data()[i], weights.data()[i], starts.data()[i], latencies.data()[i]};
    return network.add_flow(flow, path_rows.row(i), after_rows.row(i));
  });
}

int32_t add_tasks(Network& network, const Array<double>& durations, const Array<int32_t>& executors,
                  const Array<int32_t>& priorities, const Array<double>& starts, const Array<int64_t>& after_ends,
                  const Array<int32_t>& after) {
  const py::ssize_t count = durations.size();
  const Rows after_rows{after_ends, after, "after"};
  after_rows.check_for(count);
  check_length(durations, count, "durations");
  check_length(executors, count, "executors");
  check_length(priorities, count, "priorities");
  check_length(starts, count, "starts");
  return add_all(network, count, [&](py::ssize_t i) {
    const Task task{durations.data()[i], executors.data()[i], priorities.data()[i], starts.data()[i]};
    return network.add_task(task, after_rows.row(i));
  });
}

py::tuple timeline_arrays(const std::vector<RateChange>& changes) {
  std::vector<double> times;
  std::vector<int32_t> flows;
  std::vector<double> rates;
  for (const RateChange& each : changes) {
    times.push_back(each.time);
    flows.push_back(each.flow);
    rates.push_back(each.rate);
  }
  return py::make_tuple(as_array(std::move(times)), as_array(std::move(flows)), as_array(std::move(rates)));
}

// On a copy, as other threads may add to the network while this one runs it.
py::dict run(const Network& original, double until, bool timeline) {
  const auto network = std::make_unique<const Network>(original);
  Engine engine = take(Engine::create(*network, {until, timeline}));
  while (!engine.done()) {
    Status status;
    {
      const py::gil_scoped_release released;
      status = engine.advance(kStepsAtOnce);
    }
    check(status);
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
  Outcome outcome = engine.take_outcome();
  py::dict found;
  found["timeline"] = timeline_arrays(outcome.timeline);
  found["start"] = as_array(std::move(outcome.start));
  found["finish"] = as_array(std::move(outcome.finish));
  found["moved"] = as_array(std::move(outcome.moved));
  found["link_bytes"] = as_array(std::move(outcome.link_bytes));
  found["link_busy"] = as_array(std::move(outcome.link_busy));
  found["link_offered"] = as_array(std::move(outcome.link_offered));
  found["executor_busy"] = as_array(std::move(outcome.executor_busy));
  found["end"] = outcome.end;
  found["instants"] = outcome.instants;
  found["rate_changes"] = outcome.rate_changes;
  return found;
}

// A Live with the network it needs, which is its own.
struct OwnLive {
  explicit OwnLive(const Network& original) : network(std::make_unique<const Network>(original)), live(*network) {}
  std::unique_ptr<const Network> network;
  Live live;
};

}  // namespace

void bind_live(py::module_& module) {
  py::class_<OwnLive>(module, "Live")
      .def(py::init<const Network&>())
      .def_property_readonly("now", [](const OwnLive& self) { return self.live.now(); })
      .def("start", [](OwnLive& self, int32_t flow, double bytes) { check(self.live.start(flow, bytes)); })
      .def("set_priority",
           [](OwnLive& self, int32_t flow, int32_t priority) { check(self.live.set_priority(flow, priority)); })
      .def("set_capacity",
           [](OwnLive& self, int32_t link, double capacity) { check(self.live.set_capacity(link, capacity)); })
      .def("next", [](OwnLive& self) { return self.live.next(); })
      .def("advance",
           [](OwnLive& self, double time) {
             std::vector<int32_t> finished;
             check(self.live.advance(time, finished));
             return finished;
           })
      .def("rate", [](OwnLive& self, int32_t flow) { return self.live.rate(flow); })
      .def("left", [](const OwnLive& self, int32_t flow) { return self.live.left(flow); });
}

void bind_network(py::module_& module) {
  py::class_<Network>(module, "Network")
      .def(py::init<>())
      .def_property_readonly("links", &Network::links)
      .def_property_readonly("executors", &Network::executors)
      .def_property_readonly("activities", &Network::activities)
      .def("add_link",
           [](Network& self, double capacity, double contention) { return take(self.add_link(capacity, contention)); })
      .def("add_executor", &Network::add_executor)
      .def("add_flow",
           [](Network& self, const std::vector<int32_t>& path, double size, int32_t priority, double weight,
              double start, double latency, const std::vector<int32_t>& after) {
             return take(self.add_flow({size, priority, weight, start, latency}, path, after));
           })
      .def("add_task",
           [](Network& self, double duration, int32_t executor, int32_t priority, double start,
              const std::vector<int32_t>& after) {
             return take(self.add_task({duration, executor, priority, start}, after));
           })
      .def("add_flows", &add_flows)
      .def("add_tasks", &add_tasks)
      .def("add_dependency",
           [](Network& self, int32_t before, int32_t after) { check(self.add_dependency(before, after)); })
      .def("change_capacity", [](Network& self, int32_t link, double time,
                                 double capacity) { check(self.change_capacity(link, time, capacity)); })
      .def("run", &run);
}

}  // namespace theseus::flowsim

PYBIND11_MODULE(_core, module) {
  module.doc() = "Native core of flowsim; use flowsim.Network, not this module.";
  theseus::flowsim::bind_network(module);
  theseus::flowsim::bind_live(module);
}
