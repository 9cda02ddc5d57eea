#include "nccl_api/fallback.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/env.h"
#include "base/log.h"
#include "nccl_api/errors.h"
#include "nccl_api/real_nccl.h"
#include "net/wire.h"

namespace theseus::nccl_api {
namespace {

constexpr uint64_t kOffer = 0x4c4c4146434c414e;  // tells this exchange from others on the control plane
constexpr size_t kLongestReason = 4096;

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

// Twins by the communicator that they stand beside.
struct Twins {
  std::mutex mutex;
  std::unordered_map<const Communicator*, ncclComm_t> of;

  ncclComm_t find(const Communicator* communicator) {
    const std::lock_guard lock(mutex);
    const auto found = of.find(communicator);
    return found == of.end() ? nullptr : found->second;
  }
  void add(const Communicator* communicator, ncclComm_t twin) {
    const std::lock_guard lock(mutex);
    of[communicator] = twin;
  }
  ncclComm_t take(const Communicator* communicator) {
    const std::lock_guard lock(mutex);
    const auto node = of.extract(communicator);
    return node.empty() ? nullptr : node.mapped();
  }
};

Twins& twins() {
  static Twins* const all = new Twins;  // never destroyed: threads may still call while the process ends
  return *all;
}

thread_local std::vector<std::pair<Communicator*, ForwardedCall>> queued;

// What a rank tells the others before the twin is made: its NCCL, or why it has none; rank 0 also the new id.
std::string encode_offer(const Communicator& communicator) {
  ncclUniqueId id{};
  Status status = real_nccl().status();
  if (real_nccl().ok() && communicator.rank() == 0) {
    status = real_status(*real_nccl(), "ncclGetUniqueId", real_nccl()->ncclGetUniqueId(&id));
  }
  WireWriter out;
  out.number(kOffer).number(static_cast<int32_t>(status.code()));
  out.number(static_cast<int32_t>(real_nccl().ok() ? real_nccl()->code : 0));
  out.text({id.internal, sizeof id.internal}).text(status.message().substr(0, kLongestReason));
  return out.take();
}

// The id that all ranks join, once every one has an NCCL of one version: other versions do not talk to each other.
Result<ncclUniqueId> agree(const std::vector<std::string>& offers) {
  ncclUniqueId id{};
  int32_t first_version = 0;
  for (size_t rank = 0; rank < offers.size(); ++rank) {
    const std::string who = "THESEUS_FALLBACK, rank " + std::to_string(rank) + ": ";
    WireReader in(offers[rank]);
    const auto magic = in.number<uint64_t>();
    const auto code = in.number<int32_t>();
    const auto version = in.number<int32_t>();
    const std::string bytes = in.text();
    const std::string reason = in.text();
    if (!in.at_end() || magic != kOffer || bytes.size() != sizeof id.internal) {
      return Status::usage(who + "is in another call; all ranks must fall back in the same operations");
    }
    if (code < 0 || code > static_cast<int32_t>(Code::Timeout)) return Status::internal(who + "sent a malformed code");
    if (code != 0) return Status(static_cast<Code>(code), who + reason);
    if (rank == 0) {
      first_version = version;
      std::memcpy(id.internal, bytes.data(), sizeof id.internal);
    } else if (version != first_version) {
      return Status::usage(who + "its NCCL has version code " + std::to_string(version) + ", rank 0's " +
                           std::to_string(first_version) + "; name one and the same in THESEUS_NCCL");
    }
  }
  return id;
}

Result<ncclUniqueId> agree_on_id(Communicator* communicator) {
  const Result<std::vector<std::string>> offers = communicator->exchange(encode_offer(*communicator));
  if (!offers.ok()) return offers.status();
  return agree(*offers);
}

// A communicator's ranks wait for each other, so those of one thread need a thread each.
std::vector<Result<ncclUniqueId>> agree_on_ids(const std::vector<Communicator*>& communicators) {
  std::vector<Result<ncclUniqueId>> ids(communicators.size(), Status::internal("no id"));
  std::vector<std::thread> threads;
  for (size_t i = 1; i < communicators.size(); ++i)
    threads.emplace_back([&, i] { ids[i] = agree_on_id(communicators[i]); });
  ids[0] = agree_on_id(communicators[0]);
  for (std::thread& thread : threads) thread.join();
  return ids;
}

Status join_twins(const RealNccl& nccl, const std::vector<Communicator*>& communicators,
                  const std::vector<Result<ncclUniqueId>>& ids) {
  std::vector<ncclComm_t> made(communicators.size(), nullptr);
  Status joined = real_status(nccl, "ncclGroupStart", nccl.ncclGroupStart());
  for (size_t i = 0; joined.ok() && i < made.size(); ++i) {
    const Communicator& ours = *communicators[i];
    joined = real_status(nccl, "ncclCommInitRank", nccl.ncclCommInitRank(&made[i], ours.ranks(), *ids[i], ours.rank()));
  }
  const Status ended = real_status(nccl, "ncclGroupEnd", nccl.ncclGroupEnd());
  if (joined.ok()) joined = ended;
  for (size_t i = 0; i < made.size(); ++i) {
    if (joined.ok()) {
      twins().add(communicators[i], made[i]);
    } else if (made[i] != nullptr) {
      (void)nccl.ncclCommAbort(made[i]);
    }
  }
  return joined;
}

// Every rank of these communicators is in here, too.
Status make_twins(std::vector<Communicator*> communicators) {
  std::erase_if(communicators, [](const Communicator* each) { return twins().find(each) != nullptr; });
  if (communicators.empty()) return {};
  const std::vector<Result<ncclUniqueId>> ids = agree_on_ids(communicators);
  for (const Result<ncclUniqueId>& id : ids)
    if (!id.ok()) return id.status();
  THESEUS_INFO(kLogInit, "THESEUS_FALLBACK=%s: those run on NCCL %d, %s", settings::fallback().c_str(),
               real_nccl()->code, real_nccl()->path.c_str());
  return join_twins(*real_nccl(), communicators, ids);
}

Status missing(const RealNccl& nccl, const ForwardedCall& call) {
  return Status::usage(std::string(call.function) + ": the NCCL of THESEUS_FALLBACK has none (version code " +
                       std::to_string(nccl.code) + ", " + nccl.path + "): name a newer one in THESEUS_NCCL");
}

Status run(const RealNccl& nccl, ncclComm_t twin, const ForwardedCall& call) {
  const auto op = static_cast<ncclRedOp_t>(call.op);
  const auto with = [&](auto function, auto... arguments) {
    if (function == nullptr) return missing(nccl, call);
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

// Where a twin should be and is not, some ranks may never come to make one.
Result<ncclComm_t> twin_for(Communicator* communicator, const ForwardedCall& call) {
  if (call.collective != Collective::SendRecv) THESEUS_TRY(make_twins({communicator}));
  const ncclComm_t twin = twins().find(communicator);
  if (twin != nullptr) return twin;
  return Status::usage(std::string(call.function) +
                       ": THESEUS_FALLBACK of SendRecv needs blocking communicators, made while it was set");
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

ncclResult_t forward(Communicator* communicator, const ForwardedCall& call) {
  if (group_depth() > 0) {
    queued.emplace_back(communicator, call);
    return ncclSuccess;
  }
  const Result<ncclComm_t> twin = twin_for(communicator, call);
  if (!twin.ok()) return fail(twin.status());
  return report(run(*real_nccl(), *twin, call));
}

Status end_forwarded_group(bool run_them) {
  const std::vector<std::pair<Communicator*, ForwardedCall>> calls = std::exchange(queued, {});
  if (!run_them || calls.empty()) return {};
  std::vector<Communicator*> need;
  for (const auto& [communicator, call] : calls)
    if (call.collective != Collective::SendRecv && std::find(need.begin(), need.end(), communicator) == need.end())
      need.push_back(communicator);
  THESEUS_TRY(make_twins(std::move(need)));
  if (!real_nccl().ok()) return real_nccl().status();
  const RealNccl& nccl = *real_nccl();
  Status result = real_status(nccl, "ncclGroupStart", nccl.ncclGroupStart());
  for (const auto& [communicator, call] : calls) {
    if (!result.ok()) break;
    const Result<ncclComm_t> twin = twin_for(communicator, call);
    result = twin.ok() ? run(nccl, *twin, call) : twin.status();
  }
  const Status ended = real_status(nccl, "ncclGroupEnd", nccl.ncclGroupEnd());
  return result.ok() ? ended : result;
}

Status make_early_twins(const std::vector<Communicator*>& communicators) {
  if (!falls_back(Collective::SendRecv)) return {};
  std::vector<Communicator*> ready = communicators;
  std::erase_if(ready, [](const Communicator* each) { return !each->blocking(); });
  return make_twins(std::move(ready));
}

Status end_both(Communicator* communicator, Ending ending) {
  Status twin_ended;
  if (const ncclComm_t twin = twins().take(communicator); twin != nullptr) {
    const RealNccl& nccl = *real_nccl();
    twin_ended = ending == Ending::Destroy ? real_status(nccl, "ncclCommDestroy", nccl.ncclCommDestroy(twin))
                                           : real_status(nccl, "ncclCommAbort", nccl.ncclCommAbort(twin));
  }
  Status ended = ending == Ending::Destroy ? Communicator::destroy(communicator) : Communicator::abort(communicator);
  return ended.ok() ? twin_ended : ended;
}

Status twin_error(const Communicator* communicator) {
  if (fallback_operations.load(std::memory_order_relaxed) == 0) return {};
  const ncclComm_t twin = twins().find(communicator);
  if (twin == nullptr) return {};
  ncclResult_t error = ncclSuccess;
  THESEUS_TRY(real_status(*real_nccl(), "ncclCommGetAsyncError", real_nccl()->ncclCommGetAsyncError(twin, &error)));
  return error == ncclInProgress ? Status() : real_status(*real_nccl(), "an operation of THESEUS_FALLBACK", error);
}

}  // namespace theseus::nccl_api
