// A collective from call to result: checks, reduction, selection, execution.
#include <algorithm>
#include <cstring>

#include "base/fork.h"
#include "device/reduce.h"
#include "observe/counters.h"
#include "runtime/drive.h"
#include "runtime/impl.h"
#include "runtime/request_run.h"

namespace theseus {
namespace {

bool reduces(Collective collective) {
  return collective == Collective::AllReduce || collective == Collective::ReduceScatter ||
         collective == Collective::Reduce;
}

bool rooted(Collective collective) {
  return collective == Collective::Broadcast || collective == Collective::Reduce || collective == Collective::Gather ||
         collective == Collective::Scatter;
}

bool overlap(const void* a, size_t a_bytes, const void* b, size_t b_bytes) {
  const auto x = reinterpret_cast<uintptr_t>(a);
  const auto y = reinterpret_cast<uintptr_t>(b);
  return x < y + b_bytes && y < x + a_bytes;
}

// Buffers of a call must be apart, equal where the collective maps equal places, or in place as NCCL defines it.
Status check_overlap(const CollectiveCall& call, const BufferShape& shape, int rank) {
  const size_t block = call.count * size_of(call.type);
  const size_t input = block * static_cast<size_t>(shape.input_blocks);
  const size_t output = block * static_cast<size_t>(shape.output_blocks);
  if (input == 0 || output == 0 || !overlap(call.send, input, call.recv, output)) return {};
  const auto* send = static_cast<const uint8_t*>(call.send);
  const auto* recv = static_cast<const uint8_t*>(call.recv);
  const size_t own = block * static_cast<size_t>(rank);
  switch (call.collective) {
    case Collective::AllReduce:
    case Collective::Broadcast:
    case Collective::Reduce:
      if (send == recv) return {};
      return Status::argument("sendbuff and recvbuff overlap in part: they must be equal (in place) or apart");
    case Collective::AllGather:
    case Collective::Gather:
      if (send == recv + own) return {};
      return Status::argument("sendbuff overlaps recvbuff: in place means sendbuff = recvbuff + rank * count");
    case Collective::ReduceScatter:
    case Collective::Scatter:
      if (recv == send + own) return {};
      return Status::argument("recvbuff overlaps sendbuff: in place means recvbuff = sendbuff + rank * count");
    default:
      return Status::argument("sendbuff and recvbuff overlap: " + std::string(name_of(call.collective)) +
                              " has no in-place form");
  }
}

// The buffers are there, and either exactly in place or apart: the quick half of check_overlap.
bool well_placed(const CollectiveCall& call, const PlanCache::Selection& known, int rank) {
  if ((call.send == nullptr && known.input_bytes > 0) || (call.recv == nullptr && known.output_bytes > 0)) return false;
  const auto* send = static_cast<const uint8_t*>(call.send);
  const auto* recv = static_cast<const uint8_t*>(call.recv);
  switch (call.collective) {
    case Collective::AllReduce:
    case Collective::Broadcast:
    case Collective::Reduce:
      if (send == recv) return true;
      break;
    case Collective::AllGather:
      if (send == recv + static_cast<size_t>(rank) * known.input_bytes) return true;
      break;
    case Collective::ReduceScatter:
      if (recv == send + static_cast<size_t>(rank) * known.output_bytes) return true;
      break;
    default: break;
  }
  return !overlap(send, known.input_bytes, recv, known.output_bytes);
}

// Whether both buffers are one; nothing where this rank has but one. The call passed check_overlap.
std::optional<bool> lies_in_place(const CollectiveCall& call, const BufferShape& shape) {
  const size_t block = call.count * size_of(call.type);
  const size_t input = block * static_cast<size_t>(shape.input_blocks);
  const size_t output = block * static_cast<size_t>(shape.output_blocks);
  if (input == 0 || output == 0) return std::nullopt;
  return overlap(call.send, input, call.recv, output);
}

Status check_call(const CollectiveCall& call, int rank, int ranks, const BufferShape& shape) {
  if (static_cast<int>(call.type) >= kDataTypes) {
    return Status::argument("datatype " + std::to_string(static_cast<int>(call.type)) + " does not exist (0 to 11 do)");
  }
  if (rooted(call.collective) && (call.root < 0 || call.root >= ranks)) {
    return Status::argument("root " + std::to_string(call.root) + " is not a rank of this communicator of " +
                            std::to_string(ranks));
  }
  if (call.count == 0) return {};
  size_t bytes;
  if (__builtin_mul_overflow(call.count, size_of(call.type) * static_cast<size_t>(ranks), &bytes)) {
    return Status::argument("count " + std::to_string(call.count) + " is larger than any memory");
  }
  if (shape.input_blocks > 0 && call.send == nullptr) return Status::argument("sendbuff is NULL, but count is not 0");
  if (shape.output_blocks > 0 && call.recv == nullptr) return Status::argument("recvbuff is NULL, but count is not 0");
  return check_overlap(call, shape, rank);
}

}  // namespace

Result<ResolvedOp> Communicator::Impl::resolve(int op, DataType type) {
  ResolvedOp resolved;
  if (op >= 0 && op <= static_cast<int>(RedOp::Min)) {
    resolved.op = resolved.announced = static_cast<RedOp>(op);
    return resolved;
  }
  if (op == static_cast<int>(RedOp::Avg)) {
    resolved.announced = RedOp::Avg;
    if (is_floating(type)) {
      resolved.scaled = true;
      reciprocal(type, self->ranks(), resolved.scalar);
    } else {
      resolved.divide = self->ranks() > 1;
    }
    return resolved;
  }
  const std::lock_guard lock(ops_mutex);
  const auto found = ops.find(op);
  if (found == ops.end()) {
    return Status::argument("reduction " + std::to_string(op) +
                            " is none of the built-in ones (0 to 4) nor a handle of "
                            "this communicator");
  }
  if (found->second.type != type) {
    return Status::argument("this PreMulSum was made for " + std::string(name_of(found->second.type)) + ", not for " +
                            name_of(type));
  }
  resolved.announced = RedOp::PreMulSum;
  resolved.remembered = false;
  resolved.scaled = true;
  resolved.scalar_at = found->second.scalar_at;
  std::memcpy(resolved.scalar, found->second.scalar, sizeof resolved.scalar);
  return resolved;
}

Result<ResolvedOp> Communicator::Impl::check(const CollectiveCall& call) {
  const int rank = self->rank();
  const int ranks = self->ranks();
  const BufferShape shape = buffer_shape(call.collective, ranks, call.root, rank);
  THESEUS_TRY(check_call(call, rank, ranks, shape));
  Result<ResolvedOp> op = reduces(call.collective) ? resolve(call.op, call.type) : ResolvedOp{};
  if (device != nullptr && call.count > 0) THESEUS_TRY(device->check_buffers(call, shape));
  // Its calls are queued by a thread of ours, whose default stream is another one.
  if (device != nullptr && !self->blocking() && call.stream == cuda::per_thread_stream()) {
    return Status::usage(
        "a non-blocking communicator does not take the per-thread default stream: name a stream, or make the "
        "communicator blocking");
  }
  if (call.plan != 0 && op.ok()) {
    if (plans == nullptr) return Status::usage("this communicator is still joining, and has loaded no plan");
    THESEUS_TRY(plans->check_loaded(call, lies_in_place(call, shape), op->scaled));
  }
  return op;
}

// The caller holds `running`. Gives the request its id: from here on it counts, whatever becomes of it.
Result<PreparedRequest> Communicator::Impl::prepare(const CollectiveCall& call, const ResolvedOp& op) {
  THESEUS_TRY(usable());
  if (next_request >= next_event) THESEUS_TRY(adapt());
  CollectiveCall own = call;
  if (!rooted(call.collective)) own.root = 0;
  if (!reduces(call.collective)) own.op = 0;
  if (own.count == 0) {
    ++next_request;
    return PreparedRequest{};
  }
  note(TteEvent::Selection);
  Result<PlanCache::Selected> selected = plans->select(own, op, next_request);
  // On a GPU the others would wait in their kernels.
  if (!selected.ok()) return device == nullptr ? selected.status() : fail(selected.status());
  if (selected->set_up) note(TteEvent::Setup);
  if (selected->migrated) note(TteEvent::Migration);
  PreparedRequest prepared{bind(own, *selected->selection), std::move(selected->lease)};
  if (device != nullptr) {
    THESEUS_TRY(device->make_ready(prepared.request));
    THESEUS_TRY(check_device());
  }
  return prepared;
}

// One initialiser for all: cleared first and filled then, a Request takes longer than a small message.
Request Communicator::Impl::bind(const CollectiveCall& call, const PlanCache::Selection& selection) {
  const auto id = static_cast<uint32_t>(next_request++);
  SignatureTag tag = selection.tag;
  tag.signature.request = id;
  tag.hash = request_hash(tag.base, id);
  return {
      .plan = selection.plan,
      .held = selection.held,
      .binding = {.input = call.send,
                  .output = call.recv,
                  .count = call.count,
                  .type = call.type,
                  .op = selection.op.op,
                  .scalar = nullptr,
                  .piece_bytes = 0,
                  .tag = tag},
      .op = selection.op,
      .input_bytes = selection.input_bytes,
      .output_bytes = selection.output_bytes,
      .try_shared = selection.try_shared,
      .padded_count = selection.padded_count,
      .stream = call.stream,
  };
}

// The whole way of a call outside groups. The caller holds `running`. A call like one before skips all checks but those
// of its pointers.
Status Communicator::Impl::run(const CollectiveCall& call) {
  if (plans != nullptr && device == nullptr) {
    if (tte != nullptr) [[unlikely]] {
      timed = true;
      tte->begin();
    }
    if (next_request >= next_event) [[unlikely]]
      THESEUS_TRY(adapt());
    const PlanCache::Selection* known = plans->recall(call);
    if (known != nullptr && well_placed(call, *known, self->rank()) && plans->holds(*known)) [[likely]] {
      THESEUS_TRY(usable());
      Request request = bind(call, *known);  // complete before the plans are used again, so that nothing is pinned
      return execute(request);
    }
  }
  Result<ResolvedOp> op = check(call);
  if (!op.ok()) return op.status();
  return run(call, *op);
}

Status Communicator::Impl::adapt() {
  THESEUS_TRY(usable());
  if (report != nullptr && next_request >= report->samples().next()) {
    report->samples().begin(next_request, now_ns());
    timed = true;
  }
  if (next_request >= adaptation->next_event()) THESEUS_TRY(arrive());
  next_event = adaptation->next_event();
  if (report != nullptr) next_event = std::min(next_event, report->samples().next());
  return {};
}

Status Communicator::Impl::arrive() {
  const double limit = timeout.load(std::memory_order_relaxed);
  const uint64_t since = now_ns();
  Result<Arrival> arrival = adaptation->arrive(next_request, [&]() -> Status {
    THESEUS_TRY(check_alive());
    if (limit > 0 && static_cast<double>(now_ns() - since) > limit * 1e9) {
      return Status::timeout("no agreement after " + std::to_string(limit) + " s (THESEUS_TIMEOUT)");
    }
    return {};
  });
  if (!arrival.ok()) return fail(arrival.status());
  note(TteEvent::Agreement);
  if (arrival->waited) note(TteEvent::Wait);
  if (!arrival->changed) return {};
  plans->forget();
  if (trace != nullptr) {
    const ContextState state = adaptation->state();
    trace->context_switch(now_ns(), next_request, state.installed, state.epoch);
  }
  return {};
}

// The caller holds `running`.
Status Communicator::Impl::run(const CollectiveCall& call, const ResolvedOp& op) {
  Result<PreparedRequest> prepared = prepare(call, op);
  if (!prepared.ok()) return prepared.status();
  return prepared->request.plan == nullptr ? Status() : perform(*prepared);
}

void Communicator::Impl::first_instruction(const Request& request) {
  if (report != nullptr) report->samples().end(request.binding.tag.signature.request, now_ns());
  if (tte != nullptr) tte->end();
  timed = false;
}

Status Communicator::Impl::perform(PreparedRequest& prepared) {
  return device == nullptr ? execute(prepared.request) : launch(prepared);
}

Status Communicator::Impl::launch(PreparedRequest& prepared) {
  Request& request = prepared.request;
  if (timed) [[unlikely]]
    first_instruction(request);
  const Collective collective = request.binding.tag.signature.collective;
  Status status = device->launch(request, std::move(prepared.lease), request.stream, self->ranks());
  if (!status.ok()) {
    counters.count_failure(collective);
    return fail(status);
  }
  counters.count(collective, std::max(request.input_bytes, request.output_bytes));
  return {};
}

Status Communicator::Impl::execute(Request& request) {
  if (timed) [[unlikely]]
    first_instruction(request);
  RequestRun run(*this, request);
  Status status = drive(*this, [&] { return run.advance(); }, [&] { return run.status(); });
  if (!status.ok()) {
    counters.count_failure(request.binding.tag.signature.collective);
    return fail(status);
  }
  complete(request);
  return {};
}

void Communicator::Impl::complete(Request& request) {
  counters.count(request.binding.tag.signature.collective, std::max(request.input_bytes, request.output_bytes));
  if (trace != nullptr) [[unlikely]] {
    const RequestSignature& signature = request.binding.tag.signature;
    trace->request(request.begun_ns, now_ns(), signature.collective,
                   std::max(request.input_bytes, request.output_bytes), signature.request, request.plan->name);
  }
  if (request.padded_count != 0) [[unlikely]]
    request.plan->staging->leave(request.binding, request.padded_count, *request.held.staging);
  if (!request.op.divide || request.output_bytes == 0) return;
  const DataType type = request.binding.type;
  divide_in_place(type, request.binding.output, request.output_bytes / size_of(type), self->ranks());
}

Status Communicator::Impl::run_barrier() {
  uint8_t byte = 0;
  CollectiveCall call;
  call.collective = Collective::AllReduce;
  call.send = call.recv = device == nullptr ? &byte : device->barrier_byte();
  call.count = 1;
  call.type = DataType::Uint8;
  if (device == nullptr) return run(call, ResolvedOp{});
  call.stream = device->device().stream();
  THESEUS_TRY(run(call, ResolvedOp{}));
  return wait_for_device();
}

// Until all that was launched is done; looks for failure meanwhile.
Status Communicator::Impl::wait_for_device() {
  Patience patience(*this);
  for (;;) {
    Result<bool> idle = device->idle();
    if (!idle.ok()) return fail(idle.status());
    THESEUS_TRY(check_device());
    if (*idle) return {};
    if (Status status = patience.pause([] { return false; }); !status.ok()) return fail(status);
  }
}

}  // namespace theseus
