// Making communicators from communicators: split, shrink, grow.
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "nccl_api/api.h"
#include "nccl_api/config.h"
#include "nccl_api/errors.h"
#include "nccl_api/groups.h"
#include "nccl_api/handles.h"
#include "nccl_api/lifecycle.h"

namespace theseus::nccl_api {
namespace {

// The options of a derived communicator: those given, or the parent's where config is NULL.
Result<CommConfig> derived_config(const char* function, const Communicator& parent, const ncclConfig_t* config) {
  if (config == nullptr) return parent.config();
  return read_config(function, config);
}

// The ranks that stay learn the new id from the one among them that holds it: it contributes the bytes, the others
// zeros, and the last byte counts those who hold one.
Result<UniqueId> agree_on_id(const char* function, Communicator* communicator, const ncclUniqueId* own) {
  std::array<uint8_t, NCCL_UNIQUE_ID_BYTES + 1> message{};
  if (own != nullptr) {
    std::memcpy(message.data(), own->internal, NCCL_UNIQUE_ID_BYTES);
    message[NCCL_UNIQUE_ID_BYTES] = 1;
  }
  const Status summed = communicator->submit({.collective = Collective::AllReduce,
                                              .send = message.data(),
                                              .recv = message.data(),
                                              .count = message.size(),
                                              .type = DataType::Uint8,
                                              .op = static_cast<int>(RedOp::Sum)});
  if (!summed.ok()) return summed;
  if (message[NCCL_UNIQUE_ID_BYTES] != 1) {
    return Status::usage(std::string(function) + ": exactly one rank of the communicator must pass a uniqueId, " +
                         std::to_string(message[NCCL_UNIQUE_ID_BYTES]) + " did");
  }
  UniqueId id;
  std::memcpy(id.bytes, message.data(), sizeof(id.bytes));
  return id;
}

Result<Communicator*> join_grown(const char* function, int nranks, const ncclUniqueId* id, int rank,
                                 const ncclConfig_t* config) {
  const std::string prefix = std::string(function) + ": ";
  if (id == nullptr) return Status::argument(prefix + "a new rank (comm NULL) must pass the uniqueId");
  if (nranks < 1 || rank < 0 || rank >= nranks) {
    return Status::argument(prefix + "a new rank must pass its rank, from 0 to nRanks - 1 = " +
                            std::to_string(nranks - 1) + "; it is " + std::to_string(rank));
  }
  const Result<CommConfig> options = read_config(function, config);
  if (!options.ok()) return options.status();
  return Communicator::init(from_nccl(*id), nranks, rank, *options);
}

Result<Communicator*> grow_from(const char* function, Communicator* parent, int nranks, const ncclUniqueId* id,
                                int rank, const ncclConfig_t* config) {
  const std::string prefix = std::string(function) + ": ";
  if (rank != -1) return Status::argument(prefix + "rank must be -1 where comm is given: a rank keeps its number");
  if (nranks <= parent->ranks()) {
    return Status::argument(prefix + "nRanks is " + std::to_string(nranks) + ", must be above the present " +
                            std::to_string(parent->ranks()));
  }
  if (group_depth() > 0) return Status::usage(prefix + "not inside a group");
  if (!parent->blocking()) return Status::usage(prefix + "a non-blocking communicator cannot grow: make a new one");
  const Result<CommConfig> options = derived_config(function, *parent, config);
  if (!options.ok()) return options.status();
  const Result<UniqueId> agreed = agree_on_id(function, parent, id);
  if (!agreed.ok()) return agreed.status();
  return Communicator::init(*agreed, nranks, parent->rank(), *options);
}

}  // namespace

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config) noexcept {
  constexpr const char* kFunction = "ncclCommSplit";
  if (newcomm == nullptr) return invalid_argument(kFunction, "newcomm is NULL");
  *newcomm = nullptr;
  Communicator* parent = usable(comm);
  if (parent == nullptr) return note_group_error(refuse_handle(kFunction, comm));
  if (color < 0 && color != NCCL_SPLIT_NOCOLOR) {
    return note_group_error(invalid_argument(
        kFunction, "color is " + std::to_string(color) + ", must be 0 or more, or NCCL_SPLIT_NOCOLOR (-1)"));
  }
  const Result<CommConfig> options = derived_config(kFunction, *parent, config);
  if (!options.ok()) return note_group_error(fail(options.status()));
  return hand_out(kFunction, parent->split(color, key, &options.value()), slot_of(comm)->device, newcomm);
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int* excludeRanksList, int excludeRanksCount, ncclComm_t* newcomm,
                            ncclConfig_t* config, int shrinkFlags) noexcept {
  constexpr const char* kFunction = "ncclCommShrink";
  if (newcomm == nullptr) return invalid_argument(kFunction, "newcomm is NULL");
  *newcomm = nullptr;
  Communicator* parent = usable(comm);
  if (parent == nullptr) return refuse_handle(kFunction, comm);
  if (shrinkFlags != NCCL_SHRINK_DEFAULT && shrinkFlags != NCCL_SHRINK_ABORT) {
    return invalid_argument(kFunction,
                            "shrinkFlags is " + std::to_string(shrinkFlags) + ", must be 0 or NCCL_SHRINK_ABORT");
  }
  if (excludeRanksCount < 1 || excludeRanksList == nullptr) {
    return invalid_argument(kFunction, "the list of excluded ranks is empty");
  }
  const std::vector<int> excluded(excludeRanksList, excludeRanksList + excludeRanksCount);
  for (const int rank : excluded) {
    if (rank < 0 || rank >= parent->ranks()) {
      return invalid_argument(kFunction, "excluded rank " + std::to_string(rank) +
                                             " is not a rank of the communicator (0 to " +
                                             std::to_string(parent->ranks() - 1) + ")");
    }
    if (rank == parent->rank()) {
      return invalid_argument(kFunction,
                              "rank " + std::to_string(rank) + " excludes itself: only ranks that stay call this");
    }
  }
  const Result<CommConfig> options = derived_config(kFunction, *parent, config);
  if (!options.ok()) return fail(options.status());
  const bool abort = shrinkFlags == NCCL_SHRINK_ABORT;
  return hand_out(kFunction, parent->shrink(excluded, &options.value(), abort), slot_of(comm)->device, newcomm);
}

ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* uniqueId) noexcept {
  constexpr const char* kFunction = "ncclCommGetUniqueId";
  if (usable(comm) == nullptr) return refuse_handle(kFunction, comm);
  if (uniqueId == nullptr) return invalid_argument(kFunction, "uniqueId is NULL");
  CommSlot* slot = slot_of(comm);
  if (slot->grow_id_outstanding.exchange(true)) {
    return invalid_usage(kFunction,
                         "the last id of this communicator has not been used yet: call ncclCommGrow with it first");
  }
  const Result<UniqueId> id = Communicator::create_unique_id();
  if (!id.ok()) {
    slot->grow_id_outstanding = false;
    return fail(id.status());
  }
  *uniqueId = to_nccl(id.value());
  return ncclSuccess;
}

ncclResult_t ncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId* uniqueId, int rank, ncclComm_t* newcomm,
                          ncclConfig_t* config) noexcept {
  constexpr const char* kFunction = "ncclCommGrow";
  if (newcomm == nullptr) return invalid_argument(kFunction, "newcomm is NULL");
  *newcomm = nullptr;
  if (comm == nullptr) return hand_out(kFunction, join_grown(kFunction, nRanks, uniqueId, rank, config), 0, newcomm);
  Communicator* parent = usable(comm);
  if (parent == nullptr) return refuse_handle(kFunction, comm);
  CommSlot* slot = slot_of(comm);
  const ncclResult_t result =
      hand_out(kFunction, grow_from(kFunction, parent, nRanks, uniqueId, rank, config), slot->device, newcomm);
  if (result == ncclSuccess) slot->grow_id_outstanding = false;
  return result;
}

}  // namespace theseus::nccl_api
