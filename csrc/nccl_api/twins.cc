#include "nccl_api/twins.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

#include "base/log.h"
#include "nccl_api/real_nccl.h"
#include "net/wire.h"
#include "runtime/device_rank.h"

namespace theseus::nccl_api {
namespace {

constexpr uint64_t kOffer = 0x4c4c4146434c414e;  // tells this exchange from others on the control plane
constexpr size_t kLongestReason = 4096;

// By the communicator that they stand beside.
struct Twins {
  std::mutex mutex;
  std::unordered_map<const Communicator*, ncclComm_t> of;

  void add(const Communicator* communicator, ncclComm_t twin) {
    const std::lock_guard lock(mutex);
    of[communicator] = twin;
  }
};

Twins& twins() {
  static Twins* const all = new Twins;  // never destroyed: threads may still call while the process ends
  return *all;
}

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
    const std::string who = "the real NCCL, rank " + std::to_string(rank) + ": ";
    WireReader in(offers[rank]);
    const auto magic = in.number<uint64_t>();
    const auto code = in.number<int32_t>();
    const auto version = in.number<int32_t>();
    const std::string bytes = in.text();
    const std::string reason = in.text();
    if (!in.at_end() || magic != kOffer || bytes.size() != sizeof id.internal) {
      return Status::usage(who + "is in another call; all ranks must hand over the same operations");
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
std::vector<Result<ncclUniqueId>> agree_on_ids(const std::vector<Communicator*>& ranks) {
  std::vector<Result<ncclUniqueId>> ids(ranks.size(), Status::internal("no id"));
  std::vector<std::thread> threads;
  for (size_t i = 1; i < ranks.size(); ++i) threads.emplace_back([&, i] { ids[i] = agree_on_id(ranks[i]); });
  ids[0] = agree_on_id(ranks[0]);
  for (std::thread& thread : threads) thread.join();
  return ids;
}

Status join(const RealNccl& nccl, const Communicator& ours, const ncclUniqueId& id, ncclComm_t* made) {
  const OnDevice device(ours);
  THESEUS_TRY(device.status());
  return real_status(nccl, "ncclCommInitRank", nccl.ncclCommInitRank(made, ours.ranks(), id, ours.rank()));
}

// In one group, since each would wait for the others.
Status join_together(const RealNccl& nccl, const std::vector<Communicator*>& ranks,
                     const std::vector<Result<ncclUniqueId>>& ids) {
  std::vector<ncclComm_t> made(ranks.size(), nullptr);
  Status joined = real_status(nccl, "ncclGroupStart", nccl.ncclGroupStart());
  if (!joined.ok()) return joined;
  for (size_t i = 0; joined.ok() && i < made.size(); ++i) joined = join(nccl, *ranks[i], *ids[i], &made[i]);
  const Status ended = real_status(nccl, "ncclGroupEnd", nccl.ncclGroupEnd());
  if (joined.ok()) joined = ended;
  for (size_t i = 0; i < made.size(); ++i) {
    if (joined.ok()) {
      twins().add(ranks[i], made[i]);
    } else if (made[i] != nullptr) {
      (void)nccl.ncclCommAbort(made[i]);
    }
  }
  return joined;
}

// The ranks of one communicator that this process has.
Status make_twins_of_one(const std::vector<Communicator*>& ranks, bool* nobody) {
  const std::vector<Result<ncclUniqueId>> ids = agree_on_ids(ranks);
  for (const Result<ncclUniqueId>& id : ids) {
    if (id.ok()) continue;
    if (nobody != nullptr) *nobody = true;
    return id.status();
  }
  THESEUS_INFO(kLogInit, "communicator %s hands operations to NCCL %d, %s", ranks[0]->id().to_string().c_str(),
               real_nccl()->code, real_nccl()->path.c_str());
  return join_together(*real_nccl(), ranks, ids);
}

}  // namespace

Status make_twins(const std::vector<Communicator*>& communicators, bool* nobody) {
  std::vector<Communicator*> left = communicators;
  std::erase_if(left, [](const Communicator* each) { return twin_of(each) != nullptr; });
  while (!left.empty()) {
    // Communicators of a single rank have no id to tell them apart, and nobody to wait for.
    const auto same = [first = left.front()](const Communicator* each) {
      return each == first || (first->ranks() > 1 && each->id() == first->id());
    };
    std::vector<Communicator*> ranks;
    std::copy_if(left.begin(), left.end(), std::back_inserter(ranks), same);
    std::erase_if(left, same);
    THESEUS_TRY(make_twins_of_one(ranks, nobody));
  }
  return {};
}

ncclComm_t twin_of(const Communicator* communicator) {
  const std::lock_guard lock(twins().mutex);
  const auto found = twins().of.find(communicator);
  return found == twins().of.end() ? nullptr : found->second;
}

ncclComm_t take_twin(const Communicator* communicator) {
  const std::lock_guard lock(twins().mutex);
  const auto node = twins().of.extract(communicator);
  return node.empty() ? nullptr : node.mapped();
}

OnDevice::OnDevice(const Communicator& communicator) {
  if (!communicator.on_gpu()) return;
  const Result<cuda::Driver*> driver = device_driver();
  if (!driver.ok()) {
    status_ = driver.status();
    return;
  }
  const Result<int> current = (*driver)->current_device();
  if (!current.ok()) {
    status_ = current.status();
    return;
  }
  const int wanted = communicator.config().device;
  if (*current == wanted) return;
  status_ = (*driver)->set_current_device(wanted);
  if (status_.ok()) before_ = *current;
}

OnDevice::~OnDevice() {
  if (before_ < 0) return;
  if (const Result<cuda::Driver*> driver = device_driver(); driver.ok()) {
    (void)(*driver)->set_current_device(before_).ok();
  }
}

}  // namespace theseus::nccl_api
