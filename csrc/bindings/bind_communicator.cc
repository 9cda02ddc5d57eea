// _core.Communicator: making, splitting and ending communicators. bind_collectives.cc adds the calls.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "base/clock.h"
#include "base/env.h"
#include "bindings/handle.h"
#include "bindings/module.h"

namespace py = pybind11;

namespace theseus::bindings {

Handle::~Handle() {
  if (communicator_ == nullptr) return;
#if PY_VERSION_HEX >= 0x030D0000
  const bool finalizing = Py_IsFinalizing() != 0;
#else
  const bool finalizing = _Py_IsFinalizing() != 0;
#endif
  // At exit the operating system takes everything back; waiting for peers here could hang the exit.
  if (finalizing) return;
  Communicator* communicator = take();
  py::gil_scoped_release release;
  // What is outstanding may end; where peers never come, nobody could end the wait: the last reference is gone.
  const Deadline patience = Deadline::after(settings::heartbeat_timeout());
  while (communicator->in_progress() && !patience.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  (void)(communicator->in_progress() ? Communicator::abort(communicator) : Communicator::destroy(communicator));
}

void Handle::refuse_use() {
  throw StatusError(Status::usage("this communicator has been destroyed or aborted; make a new one"));
}

namespace {

UniqueId unique_id_of(const py::bytes& bytes) {
  const std::string_view text = bytes;
  UniqueId id;
  if (text.size() != sizeof(id.bytes)) {
    throw StatusError(Status::argument("init: unique_id has " + std::to_string(text.size()) + " bytes, not " +
                                       std::to_string(sizeof(id.bytes)) + "; pass what create_unique_id() returned"));
  }
  std::memcpy(id.bytes, text.data(), sizeof(id.bytes));
  return id;
}

// Runs `call` without the GIL and wraps the communicator it returns; null becomes None.
template <class Call>
std::unique_ptr<Handle> make(Call call) {
  Communicator* communicator = nullptr;
  Status status;
  {
    py::gil_scoped_release release;
    Result<Communicator*> result = call();
    if (result.ok()) {
      communicator = result.value();
    } else {
      status = result.status();
    }
  }
  check(status);
  return communicator == nullptr ? nullptr : std::make_unique<Handle>(communicator);
}

std::unique_ptr<Handle> init(const py::bytes& unique_id, int ranks, int rank, bool blocking, std::string name,
                             int device) {
  UniqueId id = unique_id_of(unique_id);
  CommConfig config;
  config.blocking = blocking;
  config.name = std::move(name);
  config.device = device;
  return make([&] { return Communicator::init(id, ranks, rank, config); });
}

py::list init_all(int ranks, const std::vector<int>& devices) {
  if (!devices.empty() && devices.size() != static_cast<size_t>(ranks)) {
    throw StatusError(Status::argument("init_all: " + std::to_string(devices.size()) + " devices for " +
                                       std::to_string(ranks) + " ranks; each needs one"));
  }
  std::vector<Communicator*> communicators;
  Status status;
  {
    py::gil_scoped_release release;
    Result<std::vector<Communicator*>> result = Communicator::init_all(ranks, devices);
    if (result.ok()) {
      communicators = std::move(result).value();
    } else {
      status = result.status();
    }
  }
  check(status);
  py::list handles;
  for (Communicator* communicator : communicators) handles.append(std::make_unique<Handle>(communicator));
  return handles;
}

std::unique_ptr<Handle> split(Handle& handle, int color, int key, std::optional<std::string> name) {
  Communicator* parent = handle.get();
  CommConfig config = parent->config();
  if (name) config.name = *name;
  return make([&] { return parent->split(color, key, name ? &config : nullptr); });
}

std::unique_ptr<Handle> shrink(Handle& handle, const std::vector<int>& excluded, bool abort) {
  Communicator* parent = handle.get();
  return make([&] { return parent->shrink(excluded, nullptr, abort); });
}

void end(Handle& handle, Status (*how)(Communicator*)) {
  if (!handle.is_open()) return;
  Communicator* communicator = handle.take();
  Status status;
  {
    py::gil_scoped_release release;
    status = how(communicator);
  }
  check(status);
}

py::dict explain(const Handle& handle, int collective, size_t count, int type, int root) {
  Explanation explanation =
      handle.get()->explain(static_cast<Collective>(collective), count, static_cast<DataType>(type), root);
  py::list candidates;
  for (const Explanation::Candidate& candidate : explanation.candidates) {
    candidates.append(py::make_tuple(candidate.algorithm, candidate.usable, candidate.score, candidate.reason));
  }
  py::dict result;
  result["chosen"] = explanation.chosen;
  result["reason"] = explanation.reason;
  result["candidates"] = candidates;
  return result;
}

py::object context_state(const Handle& handle) {
  const std::optional<ContextState> state = handle.get()->context_state();
  if (!state.has_value()) return py::none();
  py::dict result;
  result["log_id"] = state->log_id;
  result["read"] = state->read;
  result["installed"] = state->installed;
  result["epoch"] = state->epoch;
  result["agreements"] = state->agreements;
  result["agreement_ns"] = state->agreement_ns;
  result["messages"] = state->messages;
  result["next_k"] = state->next_k;
  result["held_back_by"] = state->held_back_by;
  return result;
}

py::tuple load_plan(Handle& handle, const py::bytes& file) {
  Communicator* communicator = handle.get();
  std::string bytes = file;
  const LoadedPlan plan = take([&] {
    py::gil_scoped_release release;
    return communicator->load_plan(bytes);
  }());
  return py::make_tuple(plan.id, plan.name, static_cast<int>(plan.collective), plan.root, plan.chunks_per_block,
                        plan.in_place, plan.out_of_place, plan.any_count, plan.scales, plan.thread_blocks,
                        plan.connections);
}

}  // namespace

void bind_communicator(py::module_& module) {
  module.def("create_unique_id", [] {
    UniqueId id = take(Communicator::create_unique_id());
    return py::bytes(id.bytes, sizeof(id.bytes));
  });
  py::class_<Handle> communicator(module, "Communicator");
  communicator.def_static("init", &init, py::arg("unique_id"), py::arg("ranks"), py::arg("rank"), py::arg("blocking"),
                          py::arg("name"), py::arg("device") = -1);
  module.def("init_all", &init_all, py::arg("ranks"), py::arg("devices") = std::vector<int>());
  communicator.def_property_readonly("rank", [](const Handle& h) { return h.get()->rank(); })
      .def_property_readonly("ranks", [](const Handle& h) { return h.get()->ranks(); })
      // The GPU that buffers are on; -1: host memory.
      .def_property_readonly("device",
                             [](const Handle& h) { return h.gpu() == nullptr ? -1 : h.get()->config().device; })
      .def_property_readonly("name", [](const Handle& h) { return h.get()->config().name; })
      .def_property_readonly("blocking", [](const Handle& h) { return h.get()->blocking(); })
      .def_property_readonly("is_open", &Handle::is_open)
      .def("in_progress", &Handle::in_progress)
      .def("async_error",
           [](const Handle& h) {
             Status status = h.get()->async_error();
             return status.code() == Code::InProgress ? py::object(py::none()) : error_of(status);
           })
      .def(
          "set_timeout", [](Handle& h, double seconds) { h.get()->set_timeout(seconds); }, py::arg("seconds"))
      .def("split", &split, py::arg("color"), py::arg("key"), py::arg("name"))
      .def("shrink", &shrink, py::arg("excluded"), py::arg("abort"))
      .def("finalize",
           [](Handle& h) {
             Communicator* c = h.get();
             Status status;
             {
               py::gil_scoped_release release;
               status = c->finalize();
             }
             h.check_call(status);
           })
      .def("revoke", [](Handle& h) { check(h.get()->revoke()); })
      .def("destroy", [](Handle& h) { end(h, &Communicator::destroy); })
      .def("abort", [](Handle& h) { end(h, &Communicator::abort); })
      .def("load_plan", &load_plan)
      .def("explain", &explain, py::arg("collective"), py::arg("count"), py::arg("dtype"), py::arg("root"))
      .def(
          "record_tte", [](Handle& h, size_t capacity) { h.get()->record_tte(capacity); }, py::arg("capacity"))
      .def("take_tte",
           [](Handle& h) {
             const std::vector<TteSample> samples = h.get()->take_tte();
             py::bytearray wall(nullptr, samples.size() * 4), cpu(nullptr, samples.size() * 4),
                 events(nullptr, samples.size());
             for (size_t i = 0; i < samples.size(); ++i) {
               std::memcpy(PyByteArray_AS_STRING(wall.ptr()) + 4 * i, &samples[i].wall_ns, 4);
               std::memcpy(PyByteArray_AS_STRING(cpu.ptr()) + 4 * i, &samples[i].cpu_ns, 4);
               PyByteArray_AS_STRING(events.ptr())[i] = static_cast<char>(samples[i].events);
             }
             return py::make_tuple(wall, cpu, events);
           })
      .def("context_state", &context_state)
      .def("describe_peers", [](const Handle& h) { return h.get()->describe_peers(); });
}

}  // namespace theseus::bindings
