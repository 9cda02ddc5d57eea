#include "nccl_api/fallback.h"

#include <algorithm>
#include <cctype>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>

#include "base/env.h"
#include "base/log.h"
#include "nccl_api/errors.h"
#include "nccl_api/forward.h"
#include "nccl_api/real_handles.h"
#include "nccl_api/real_nccl.h"
#include "nccl_api/twins.h"

namespace theseus::nccl_api {
namespace {

// What the real NCCL has a function for.
constexpr Collective kForwardable[] = {Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter,
                                       Collective::Broadcast, Collective::Reduce,    Collective::AllToAll,
                                       Collective::Gather,    Collective::Scatter,   Collective::SendRecv};

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char each) { return std::tolower(each); });
  return text;
}

// Warns about a word that is no operation, and passes it over.
uint32_t operations_of(const std::string& word) {
  uint32_t found = 0;
  for (const Collective collective : kForwardable)
    if (lower(word) == "all" || lower(word) == lower(name_of(collective))) found |= 1U << static_cast<int>(collective);
  if (found == 0) {
    THESEUS_WARN("THESEUS_FALLBACK: '%s' is no operation; AllReduce, SendRecv and the like are, or all", word.c_str());
  }
  return found;
}

struct Queued {
  Communicator* communicator;
  ForTwin call;
};
thread_local std::vector<Queued> queued;

Status run(const RealNccl& nccl, ncclComm_t twin, const ForwardedCall& call) {
  const auto op = static_cast<ncclRedOp_t>(call.op);
  const auto with = [&](auto function, auto... arguments) {
    if (function == nullptr) return lacks(nccl, call.function);
    return real_status(nccl, call.function, function(arguments..., twin, call.stream));
  };
  switch (call.collective) {
    case Collective::AllReduce: return with(nccl.ncclAllReduce, call.send, call.recv, call.count, call.type, op);
    case Collective::ReduceScatter:
      return with(nccl.ncclReduceScatter, call.send, call.recv, call.count, call.type, op);
    case Collective::Reduce: return with(nccl.ncclReduce, call.send, call.recv, call.count, call.type, op, call.root);
    case Collective::Broadcast: return with(nccl.ncclBroadcast, call.send, call.recv, call.count, call.type, call.root);
    case Collective::AllGather: return with(nccl.ncclAllGather, call.send, call.recv, call.count, call.type);
    case Collective::AllToAll: return with(nccl.ncclAlltoAll, call.send, call.recv, call.count, call.type);
    case Collective::Gather: return with(nccl.ncclGather, call.send, call.recv, call.count, call.type, call.root);
    case Collective::Scatter: return with(nccl.ncclScatter, call.send, call.recv, call.count, call.type, call.root);
    case Collective::SendRecv:
      return call.sends ? with(nccl.ncclSend, call.send, call.count, call.type, call.root)
                        : with(nccl.ncclRecv, call.recv, call.count, call.type, call.root);
    default: return Status::internal(std::string(call.function) + " cannot be forwarded");
  }
}

// Each rank's own NCCL is told its device, whatever device the thread works with.
Status run_on_twin(const Communicator& communicator, const ForTwin& call) {
  const ncclComm_t twin = twin_of(&communicator);
  // Where a twin should be and is not, some ranks may never come to make one.
  if (twin == nullptr) {
    return Status::usage(std::string(call.function) +
                         ": no communicator of the real NCCL stands beside this one yet, and few ranks make this call: "
                         "let all ranks call ncclCommWindowRegister before it, or make a blocking communicator while "
                         "SendRecv is in THESEUS_FALLBACK");
  }
  const OnDevice device(communicator);
  THESEUS_TRY(device.status());
  return call.run(*real_nccl(), twin);
}

// Who needs a twin first, by what every rank calls.
std::vector<Communicator*> who_needs_twins(const std::vector<Queued>& calls) {
  std::vector<Communicator*> need;
  for (const auto& [communicator, call] : calls)
    if (call.everyone && std::find(need.begin(), need.end(), communicator) == need.end()) need.push_back(communicator);
  return need;
}

// Those that can do without: their ranks have agreed that there is no twin.
Status run_without(const std::vector<Queued>& calls, const Status& why) {
  Status first;
  for (const auto& [communicator, call] : calls) {
    const Status status = call.without ? call.without() : why;
    if (first.ok()) first = status;
  }
  return first;
}

Status run_group(const std::vector<Queued>& calls) {
  bool nobody = false;
  if (const Status made = make_twins(who_needs_twins(calls), &nobody); !made.ok()) {
    return nobody ? run_without(calls, made) : made;
  }
  if (!real_nccl().ok()) return real_nccl().status();
  const RealNccl& nccl = *real_nccl();
  Status result = real_status(nccl, "ncclGroupStart", nccl.ncclGroupStart());
  for (const auto& [communicator, call] : calls) {
    if (!result.ok()) break;
    result = run_on_twin(*communicator, call);
  }
  const Status ended = real_status(nccl, "ncclGroupEnd", nccl.ncclGroupEnd());
  if (result.ok()) result = ended;
  for (const auto& [communicator, call] : calls)
    if (result.ok() && call.after) call.after();
  return result;
}

}  // namespace

void read_fallback() {
  static std::mutex mutex;
  static std::string known;  // warns once, not at each communicator
  const std::lock_guard lock(mutex);
  const std::string text = settings::fallback();
  if (text == known) return;
  known = text;
  uint32_t operations = 0;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');)
    if (!word.empty()) operations |= operations_of(word);
  fallback_operations.store(operations, std::memory_order_relaxed);
}

ncclResult_t give_to_twin(Communicator* communicator, ForTwin call) {
  if (group_depth() > 0) {
    queued.push_back({communicator, std::move(call)});
    return ncclSuccess;
  }
  bool nobody = false;
  const Status made = call.everyone ? make_twins({communicator}, &nobody) : Status();
  if (!made.ok()) return nobody && call.without ? report(call.without()) : fail(made);
  const Status ran = run_on_twin(*communicator, call);
  if (ran.ok() && call.after) call.after();
  return report(ran);
}

ncclResult_t forward(Communicator* communicator, const ForwardedCall& call) {
  return give_to_twin(communicator,
                      {.function = call.function,
                       .everyone = call.collective != Collective::SendRecv,
                       .run = [call](const RealNccl& nccl, ncclComm_t twin) { return run(nccl, twin, call); }});
}

Status end_forwarded_group(bool run_them) {
  const std::vector<Queued> calls = std::exchange(queued, {});
  return run_them && !calls.empty() ? run_group(calls) : Status();
}

Status make_early_twins(const std::vector<Communicator*>& communicators) {
  std::vector<Communicator*> ready = communicators;
  std::erase_if(ready,
                [](const Communicator* each) { return !each->blocking() || !falls_back(*each, Collective::SendRecv); });
  return make_twins(std::move(ready));
}

Status end_both(Communicator* communicator, Ending ending) {
  Status twin_ended;
  RealHandles::all().forget(communicator);
  if (const ncclComm_t twin = take_twin(communicator); twin != nullptr) {
    const RealNccl& nccl = *real_nccl();
    const OnDevice device(*communicator);
    twin_ended = ending == Ending::Destroy ? real_status(nccl, "ncclCommDestroy", nccl.ncclCommDestroy(twin))
                                           : real_status(nccl, "ncclCommAbort", nccl.ncclCommAbort(twin));
  }
  Status ended = ending == Ending::Destroy ? Communicator::destroy(communicator) : Communicator::abort(communicator);
  return ended.ok() ? twin_ended : ended;
}

Status twin_error(const Communicator* communicator) {
  const ncclComm_t twin = twin_of(communicator);
  if (twin == nullptr) return {};
  ncclResult_t error = ncclSuccess;
  THESEUS_TRY(real_status(*real_nccl(), "ncclCommGetAsyncError", real_nccl()->ncclCommGetAsyncError(twin, &error)));
  return error == ncclInProgress ? Status() : real_status(*real_nccl(), "an operation of the real NCCL's", error);
}

}  // namespace theseus::nccl_api
