// The calls of _core.Communicator that take addresses: for the torch backend, which has checked the tensors and keeps
// them.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/handle.h"
#include "bindings/module.h"

namespace py = pybind11;

namespace theseus::bindings {

namespace {

using Address = uintptr_t;

CollectiveCall call_of(int collective, Address send, Address recv, size_t count, int type, int op, int root,
                       int plan = 0, Address stream = 0) {
  CollectiveCall call;
  call.collective = static_cast<Collective>(collective);
  call.send = reinterpret_cast<const void*>(send);
  call.recv = reinterpret_cast<void*>(recv);
  call.count = count;
  call.type = static_cast<DataType>(type);
  call.op = op;
  call.root = root;
  call.plan = plan;
  call.stream = reinterpret_cast<void*>(stream);
  return call;
}

template <class Now>
void now(Handle& handle, Now call) {
  Status status;
  {
    py::gil_scoped_release release;
    status = call();
  }
  handle.check_call(status);
}

template <class Later>
std::unique_ptr<WorkHandle> later(Later call) {
  std::shared_ptr<Work> work;
  {
    py::gil_scoped_release release;
    work = call();
  }
  return std::make_unique<WorkHandle>(std::move(work), std::vector<Buffer>());
}

using Sizes = std::vector<size_t>;

AllToAllVCall call_of(Address send, const Sizes& send_counts, const Sizes& send_offsets, Address recv,
                      const Sizes& recv_counts, const Sizes& recv_offsets, int type, int ranks) {
  const size_t expected = static_cast<size_t>(ranks);
  for (const Sizes* sizes : {&send_counts, &send_offsets, &recv_counts, &recv_offsets}) {
    if (sizes->size() != expected) {
      throw StatusError(Status::argument("all_to_all_v: needs one count and one offset per rank"));
    }
  }
  AllToAllVCall call;
  call.send = reinterpret_cast<const void*>(send);
  call.send_counts = send_counts.data();
  call.send_offsets = send_offsets.data();
  call.recv = reinterpret_cast<void*>(recv);
  call.recv_counts = recv_counts.data();
  call.recv_offsets = recv_offsets.data();
  call.type = static_cast<DataType>(type);
  return call;
}

}  // namespace

void bind_pointers(py::module_& module) {
  auto communicator = py::reinterpret_borrow<py::class_<Handle>>(module.attr("Communicator"));
  communicator
      .def("run",
           [](Handle& h, int collective, Address send, Address recv, size_t count, int type, int op, int root) {
             Communicator* c = h.get();
             now(h, [&] { return c->submit(call_of(collective, send, recv, count, type, op, root)); });
           })
      .def("run_plan",
           [](Handle& h, int plan, int collective, Address send, Address recv, size_t count, int type, int op, int root,
              Address stream) {
             Communicator* c = h.get();
             now(h, [&] { return c->submit(call_of(collective, send, recv, count, type, op, root, plan, stream)); });
           })
      .def("start",
           [](Handle& h, int collective, Address send, Address recv, size_t count, int type, int op, int root) {
             Communicator* c = h.get();
             return later([&] { return c->submit_async(call_of(collective, send, recv, count, type, op, root)); });
           })
      .def("start_all_to_all_v",
           [](Handle& h, Address send, const Sizes& send_counts, const Sizes& send_offsets, Address recv,
              const Sizes& recv_counts, const Sizes& recv_offsets, int type) {
             Communicator* c = h.get();
             AllToAllVCall call =
                 call_of(send, send_counts, send_offsets, recv, recv_counts, recv_offsets, type, c->ranks());
             return later([&] { return c->all_to_all_v_async(call); });
           })
      .def("run_all_to_all_v",
           [](Handle& h, Address send, const Sizes& send_counts, const Sizes& send_offsets, Address recv,
              const Sizes& recv_counts, const Sizes& recv_offsets, int type) {
             Communicator* c = h.get();
             AllToAllVCall call =
                 call_of(send, send_counts, send_offsets, recv, recv_counts, recv_offsets, type, c->ranks());
             now(h, [&] { return c->all_to_all_v(call); });
           })
      .def("start_send",
           [](Handle& h, Address data, size_t count, int type, int peer) {
             Communicator* c = h.get();
             return later([&] {
               return c->send_async(reinterpret_cast<const void*>(data), count, static_cast<DataType>(type), peer);
             });
           })
      .def("start_recv",
           [](Handle& h, Address data, size_t count, int type, int peer) {
             Communicator* c = h.get();
             return later([&] {
               return c->recv_async(reinterpret_cast<void*>(data), count, static_cast<DataType>(type), peer);
             });
           })
      .def("start_barrier", [](Handle& h) {
        Communicator* c = h.get();
        return later([&] { return c->barrier_async(); });
      });
}

}  // namespace theseus::bindings
