// The calls of _core.Communicator that take arrays: checks of size and type, then the runtime without the GIL. `plan`:
// what load_plan() numbered it, or 0. `stream`: see stream_of(); on host memory it is not looked at.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <numeric>
#include <optional>

#include "bindings/handle.h"
#include "bindings/module.h"
#include "runtime/progress_thread.h"

namespace py = pybind11;

namespace theseus::bindings {

namespace {

using std::to_string;

// What a GPU's stream has to do for `now`.
template <class Now>
std::shared_ptr<Work> queue(Handle& handle, void* stream, Now now) {
  Status status = now();
  if (status.ok()) {
    Result<std::shared_ptr<Work>> work = work_of_stream(*handle.gpu(), handle.get()->config().device, stream);
    if (work.ok()) return *work;
    status = work.status();
  }
  return finished_work(status);
}

// Runs `now` (or, asynchronously, `later`) with the buffers kept alive for as long as the runtime needs them. On a GPU
// `now` only queues on `stream`, so that this is what asynchronous work waits for; a call without a stream waits
// itself.
template <class Now, class Later>
py::object run(Handle& handle, bool asynchronous, std::optional<void*> stream, Buffer&& first, Buffer&& second, Now now,
               Later later) {
  if (asynchronous) [[unlikely]] {
    if (group_depth() > 0) {
      throw StatusError(
          Status::usage("async_op=True inside group(): a group runs when it ends; leave one of the two out"));
    }
    std::shared_ptr<Work> work;
    {
      py::gil_scoped_release release;
      work = handle.gpu() == nullptr || !stream ? later() : queue(handle, *stream, now);
    }
    std::vector<Buffer> buffers;
    buffers.push_back(std::move(first));
    buffers.push_back(std::move(second));
    return py::cast(std::make_unique<WorkHandle>(std::move(work), std::move(buffers)));
  }
  Status status;
  {
    py::gil_scoped_release release;
    status = now();
  }
  if (group_depth() > 0) {
    hold_for_group(std::move(first));
    hold_for_group(std::move(second));
  } else if (status.code() == Code::InProgress) [[unlikely]] {
    handle.hold(std::move(first));
    handle.hold(std::move(second));
  }
  handle.check_call(status);
  return py::none();
}

// What a call on a GPU takes its place in; nothing on host memory.
void* stream_for(const Handle& handle, const char* function, py::handle stream, const Buffer& buffer) {
  return handle.gpu() == nullptr ? nullptr : stream_of(function, stream, buffer);
}

py::object submit(Handle& handle, const char* function, CollectiveCall& call, bool asynchronous, py::handle stream,
                  Buffer&& first, Buffer&& second) {
  Communicator* communicator = handle.get();
  call.stream = stream_for(handle, function, stream, first.data() != nullptr ? first : second);
  return run(
      handle, asynchronous, call.stream, std::move(first), std::move(second),
      [&] { return communicator->submit(call); }, [&] { return communicator->submit_async(call); });
}

// sum, prod, ... or the handle of a PreMulSum: an int, or an object with an int `handle`.
int op_of(const char* function, py::handle op) {
  if (PyUnicode_Check(op.ptr())) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(op.ptr(), &size);
    if (text == nullptr) throw py::error_already_set();
    const std::string_view name(text, static_cast<size_t>(size));
    if (name == "sum") return static_cast<int>(RedOp::Sum);
    if (name == "avg") return static_cast<int>(RedOp::Avg);
    if (name == "max") return static_cast<int>(RedOp::Max);
    if (name == "min") return static_cast<int>(RedOp::Min);
    if (name == "prod") return static_cast<int>(RedOp::Prod);
    throw StatusError(Status::argument(std::string(function) + ": op '" + std::string(name) +
                                       "' is unknown; it is sum, prod, max, min, avg, or what premulsum() returned"));
  }
  if (PyLong_Check(op.ptr())) return op.cast<int>();
  if (py::hasattr(op, "handle")) return op.attr("handle").cast<int>();
  throw StatusError(Status::argument(std::string(function) + ": op is neither a name nor what premulsum() returned"));
}

// The operation on the numbers that really travel: bool as 0 and 1, complex as two reals.
int op_for(const char* function, const ElementType& element, py::handle op) {
  const int code = op_of(function, op);
  if (element.boolean) {
    // Kept at 0 and 1: "sum" is or, "prod" is and, as torch defines it.
    switch (static_cast<RedOp>(code)) {
      case RedOp::Sum:
      case RedOp::Max: return static_cast<int>(RedOp::Max);
      case RedOp::Prod:
      case RedOp::Min: return static_cast<int>(RedOp::Min);
      default:
        throw StatusError(Status::argument(std::string(function) + ": bool can be reduced by sum (or), prod (and), "
                                                                   "max and min only"));
    }
  }
  if (element.parts == 2 && code != static_cast<int>(RedOp::Sum) && code != static_cast<int>(RedOp::Avg)) {
    throw StatusError(Status::argument(std::string(function) + ": complex numbers can be reduced by sum and avg only"));
  }
  return code;
}

void check_types(const char* function, const Buffer& send, const Buffer& recv) {
  if (send.element() == recv.element()) return;
  throw StatusError(Status::argument(std::string(function) + ": send holds " + name_of(send.element()) +
                                     " but recv holds " + name_of(recv.element())));
}

// `large` must hold `ranks` times the elements of `small`.
void check_share(const char* function, const char* large_name, const Buffer& large, const char* small_name,
                 const Buffer& small, int ranks) {
  if (large.elements() == small.elements() * static_cast<size_t>(ranks)) return;
  throw StatusError(Status::argument(
      std::string(function) + ": " + large_name + " holds " + to_string(large.elements()) + " elements, but " +
      small_name + " holds " + to_string(small.elements()) + " and " + to_string(ranks) +
      " ranks take part, so it must hold " + to_string(small.elements() * static_cast<size_t>(ranks))));
}

void check_equal(const char* function, const Buffer& send, const Buffer& recv) {
  if (send.elements() == recv.elements()) return;
  throw StatusError(Status::argument(std::string(function) + ": send holds " + to_string(send.elements()) +
                                     " elements but recv holds " + to_string(recv.elements())));
}

void check_root(const char* function, int root, int ranks) {
  if (root >= 0 && root < ranks) return;
  throw StatusError(Status::argument(std::string(function) + ": root " + to_string(root) + " is not one of the " +
                                     to_string(ranks) + " ranks"));
}

CollectiveCall call_of(Collective collective, const Buffer* send, const Buffer* recv, size_t count, DataType type) {
  CollectiveCall call;
  call.collective = collective;
  call.send = send == nullptr ? nullptr : send->data();
  call.recv = recv == nullptr ? nullptr : recv->data();
  call.count = count;
  call.type = type;
  return call;
}

py::object all_reduce(Handle& handle, py::handle send, py::handle recv, py::handle op, bool asynchronous, int plan,
                      py::handle stream) {
  const bool in_place = recv.is_none();
  Buffer input = handle.borrow(send, {"all_reduce", "send", in_place});
  Buffer output;
  if (!in_place) {
    output = handle.borrow(recv, {"all_reduce", "recv", true});
    check_types("all_reduce", input, output);
    check_equal("all_reduce", input, output);
  }
  CollectiveCall call =
      call_of(Collective::AllReduce, &input, in_place ? &input : &output, input.count(), input.element().type);
  call.op = op_for("all_reduce", input.element(), op);
  call.plan = plan;
  return submit(handle, "all_reduce", call, asynchronous, stream, std::move(input), std::move(output));
}

py::object reduce(Handle& handle, py::handle send, py::handle recv, py::handle op, int root, bool asynchronous,
                  int plan, py::handle stream) {
  Communicator* communicator = handle.get();
  check_root("reduce", root, communicator->ranks());
  const bool is_root = communicator->rank() == root;
  const bool in_place = recv.is_none();
  Buffer input = handle.borrow(send, {"reduce", "send", is_root && in_place});
  Buffer output;
  if (is_root && !in_place) {
    output = handle.borrow(recv, {"reduce", "recv", true});
    check_types("reduce", input, output);
    check_equal("reduce", input, output);
  }
  const Buffer* target = !is_root ? nullptr : in_place ? &input : &output;
  CollectiveCall call = call_of(Collective::Reduce, &input, target, input.count(), input.element().type);
  call.op = op_for("reduce", input.element(), op);
  call.root = root;
  call.plan = plan;
  return submit(handle, "reduce", call, asynchronous, stream, std::move(input), std::move(output));
}

py::object broadcast(Handle& handle, py::handle data, int root, bool asynchronous, int plan, py::handle stream) {
  Communicator* communicator = handle.get();
  check_root("broadcast", root, communicator->ranks());
  Buffer buffer = handle.borrow(data, {"broadcast", "data", communicator->rank() != root});
  CollectiveCall call = call_of(Collective::Broadcast, &buffer, &buffer, buffer.count(), buffer.element().type);
  call.root = root;
  call.plan = plan;
  return submit(handle, "broadcast", call, asynchronous, stream, std::move(buffer), Buffer());
}

py::object all_gather(Handle& handle, py::handle send, py::handle recv, bool asynchronous, int plan,
                      py::handle stream) {
  Buffer input = handle.borrow(send, {"all_gather", "send", false});
  Buffer output = handle.borrow(recv, {"all_gather", "recv", true});
  check_types("all_gather", input, output);
  check_share("all_gather", "recv", output, "send", input, handle.get()->ranks());
  CollectiveCall call = call_of(Collective::AllGather, &input, &output, input.count(), input.element().type);
  call.plan = plan;
  return submit(handle, "all_gather", call, asynchronous, stream, std::move(input), std::move(output));
}

py::object reduce_scatter(Handle& handle, py::handle send, py::handle recv, py::handle op, bool asynchronous, int plan,
                          py::handle stream) {
  Buffer input = handle.borrow(send, {"reduce_scatter", "send", false});
  Buffer output = handle.borrow(recv, {"reduce_scatter", "recv", true});
  check_types("reduce_scatter", input, output);
  check_share("reduce_scatter", "send", input, "recv", output, handle.get()->ranks());
  CollectiveCall call = call_of(Collective::ReduceScatter, &input, &output, output.count(), input.element().type);
  call.op = op_for("reduce_scatter", input.element(), op);
  call.plan = plan;
  return submit(handle, "reduce_scatter", call, asynchronous, stream, std::move(input), std::move(output));
}

py::object all_to_all(Handle& handle, py::handle send, py::handle recv, bool asynchronous, int plan,
                      py::handle stream) {
  const int ranks = handle.get()->ranks();
  Buffer input = handle.borrow(send, {"all_to_all", "send", false});
  Buffer output = handle.borrow(recv, {"all_to_all", "recv", true});
  check_types("all_to_all", input, output);
  check_equal("all_to_all", input, output);
  if (input.elements() % static_cast<size_t>(ranks) != 0) {
    throw StatusError(Status::argument("all_to_all: " + to_string(input.elements()) + " elements do not divide among " +
                                       to_string(ranks) + " ranks; all_to_all_v takes uneven splits"));
  }
  const size_t count = input.count() / static_cast<size_t>(ranks);
  CollectiveCall call = call_of(Collective::AllToAll, &input, &output, count, input.element().type);
  call.plan = plan;
  return submit(handle, "all_to_all", call, asynchronous, stream, std::move(input), std::move(output));
}

py::object gather(Handle& handle, py::handle send, py::handle recv, int root, bool asynchronous, int plan,
                  py::handle stream) {
  Communicator* communicator = handle.get();
  check_root("gather", root, communicator->ranks());
  const bool is_root = communicator->rank() == root;
  Buffer input = handle.borrow(send, {"gather", "send", false});
  Buffer output;
  if (is_root) {
    if (recv.is_none()) refuse({"gather", "recv", true}, "is None, but this rank is the root and gets the result");
    output = handle.borrow(recv, {"gather", "recv", true});
    check_types("gather", input, output);
    check_share("gather", "recv", output, "send", input, communicator->ranks());
  }
  CollectiveCall call =
      call_of(Collective::Gather, &input, is_root ? &output : nullptr, input.count(), input.element().type);
  call.root = root;
  call.plan = plan;
  return submit(handle, "gather", call, asynchronous, stream, std::move(input), std::move(output));
}

py::object scatter(Handle& handle, py::handle send, py::handle recv, int root, bool asynchronous, int plan,
                   py::handle stream) {
  Communicator* communicator = handle.get();
  check_root("scatter", root, communicator->ranks());
  const bool is_root = communicator->rank() == root;
  Buffer output = handle.borrow(recv, {"scatter", "recv", true});
  Buffer input;
  if (is_root) {
    if (send.is_none()) refuse({"scatter", "send", false}, "is None, but this rank is the root and has the data");
    input = handle.borrow(send, {"scatter", "send", false});
    check_types("scatter", input, output);
    check_share("scatter", "send", input, "recv", output, communicator->ranks());
  }
  CollectiveCall call =
      call_of(Collective::Scatter, is_root ? &input : nullptr, &output, output.count(), output.element().type);
  call.root = root;
  call.plan = plan;
  return submit(handle, "scatter", call, asynchronous, stream, std::move(input), std::move(output));
}

// Counts and running offsets, in the runtime's elements, of one side of an uneven all-to-all.
struct Splits {
  std::vector<size_t> counts;
  std::vector<size_t> offsets;

  Splits(const Role& role, const Buffer& buffer, const std::vector<int64_t>& splits, int ranks) {
    if (splits.size() != static_cast<size_t>(ranks)) {
      refuse(role, "has " + to_string(splits.size()) + " counts, but " + to_string(ranks) + " ranks take part");
    }
    size_t total = 0;
    for (int64_t split : splits) {
      if (split < 0) refuse(role, "has a negative count, " + to_string(split));
      const size_t count = static_cast<size_t>(split) * static_cast<size_t>(buffer.element().parts);
      offsets.push_back(total);
      counts.push_back(count);
      total += count;
    }
    if (total != buffer.count()) {
      refuse(role, "has counts that sum to " + to_string(total / static_cast<size_t>(buffer.element().parts)) +
                       ", but the buffer holds " + to_string(buffer.elements()) + " elements");
    }
  }
};

py::object all_to_all_v(Handle& handle, py::handle send, const std::vector<int64_t>& send_counts, py::handle recv,
                        const std::vector<int64_t>& recv_counts, bool asynchronous, py::handle stream) {
  Communicator* communicator = handle.get();
  Buffer input = handle.borrow(send, {"all_to_all_v", "send", false});
  Buffer output = handle.borrow(recv, {"all_to_all_v", "recv", true});
  check_types("all_to_all_v", input, output);
  Splits out({"all_to_all_v", "send_counts", false}, input, send_counts, communicator->ranks());
  Splits in({"all_to_all_v", "recv_counts", false}, output, recv_counts, communicator->ranks());
  AllToAllVCall call;
  call.send = input.data();
  call.send_counts = out.counts.data();
  call.send_offsets = out.offsets.data();
  call.recv = output.data();
  call.recv_counts = in.counts.data();
  call.recv_offsets = in.offsets.data();
  call.type = input.element().type;
  void* const on = stream_for(handle, "all_to_all_v", stream, input);
  call.stream = on;
  return run(
      handle, asynchronous, on, std::move(input), std::move(output), [&] { return communicator->all_to_all_v(call); },
      [&] { return communicator->all_to_all_v_async(call); });
}

py::object send(Handle& handle, py::handle data, int peer, bool asynchronous, py::handle stream) {
  Communicator* communicator = handle.get();
  Buffer buffer = handle.borrow(data, {"send", "data", false});
  const void* memory = buffer.data();
  const size_t count = buffer.count();
  const DataType type = buffer.element().type;
  void* const on = stream_for(handle, "send", stream, buffer);
  return run(
      handle, asynchronous, on, std::move(buffer), Buffer(),
      [&] { return communicator->send(memory, count, type, peer, on); },
      [&] { return communicator->send_async(memory, count, type, peer); });
}

py::object recv(Handle& handle, py::handle data, int peer, bool asynchronous, py::handle stream) {
  Communicator* communicator = handle.get();
  Buffer buffer = handle.borrow(data, {"recv", "data", true});
  void* memory = buffer.data();
  const size_t count = buffer.count();
  const DataType type = buffer.element().type;
  void* const on = stream_for(handle, "recv", stream, buffer);
  return run(
      handle, asynchronous, on, std::move(buffer), Buffer(),
      [&] { return communicator->recv(memory, count, type, peer, on); },
      [&] { return communicator->recv_async(memory, count, type, peer); });
}

py::object barrier(Handle& handle, bool asynchronous) {
  Communicator* communicator = handle.get();
  return run(
      handle, asynchronous, std::nullopt, Buffer(), Buffer(), [&] { return communicator->barrier(); },
      [&] { return communicator->barrier_async(); });
}

// One element of a real type, as bytes, is the factor.
int create_premulsum(Handle& handle, int type, const py::bytes& scalar) {
  const std::string_view bytes = scalar;
  if (type < 0 || type >= kDataTypes || bytes.size() != size_of(static_cast<DataType>(type))) {
    throw StatusError(Status::argument("premulsum: the scalar is not one element of the type given"));
  }
  return take(handle.get()->create_premulsum(static_cast<DataType>(type), bytes.data()));
}

}  // namespace

void bind_collectives(py::module_& module) {
  auto communicator = py::reinterpret_borrow<py::class_<Handle>>(module.attr("Communicator"));
  communicator.def("all_reduce", &all_reduce)
      .def("reduce", &reduce)
      .def("broadcast", &broadcast)
      .def("all_gather", &all_gather)
      .def("reduce_scatter", &reduce_scatter)
      .def("all_to_all", &all_to_all)
      .def("all_to_all_v", &all_to_all_v)
      .def("gather", &gather)
      .def("scatter", &scatter)
      .def("send", &send)
      .def("recv", &recv)
      .def("barrier", &barrier)
      .def("create_premulsum", &create_premulsum)
      .def("destroy_op", [](Handle& h, int op) { check(h.get()->destroy_op(op)); });
}

}  // namespace theseus::bindings
