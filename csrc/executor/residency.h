// Which launches may be on a GPU at a time, over all communicators of this process: TBs wait for each other, so those
// that do must all be resident, or they wait for ever.
//
// The launches of one communicator come one after another on each of its ranks, and its ranks in this process on this
// GPU wait for each other. So a communicator claims room for all of these at once, when the first of them launches, and
// keeps it until none has anything under way. One that does not fit beside the others waits, on the GPU, for what these
// have under way; all its ranks wait for the same. Processes that share a GPU divide it by their ranks there, as far as
// their common communicators tell them: a process cannot see what else runs.
//
// Ranks have to call communicators in one order where these do not fit beside each other, as NCCL asks of its users.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "drivers/cuda/api.h"

namespace theseus {

// How a communicator's ranks lie on one GPU.
struct DeviceSharers {
  CommId communicator;
  int ranks = 1;  // on this GPU
  int here = 1;   // of them, in this process
};

class Residency {
 public:
  // That of one device; never destroyed.
  static Residency& of(cuda::Driver& driver, int device);
  Residency(cuda::Driver& driver, int device) : driver_(driver), device_(device) {}

  // One rank. Not movable: the others' gates name it.
  class Member;
  std::unique_ptr<Member> join(const DeviceSharers& sharers);

 private:
  struct Event {
    Member* whose;
    cuda::Event event;
  };
  struct Claim {
    DeviceSharers sharers;
    std::set<Member*> members{};
    uint64_t size = 0;          // of the GPU, in kWhole-ths, for all ranks here
    uint64_t captured = 0;      // likewise, of what graphs may launch at any time
    uint64_t gates = 0;         // how often the claim grew behind others
    std::vector<Event> gate{};  // what the last growth waits for and is not done
  };
  static constexpr uint64_t kWhole = 1 << 20;

  uint64_t limit() const;
  uint64_t need(const Claim& claim, uint64_t blocks, uint64_t resident) const;

  cuda::Driver& driver_;
  const int device_;
  std::mutex mutex_;
  std::list<Claim> claims_;
};

class Residency::Member {
 public:
  // Nothing of it is under way.
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  // Whether a launch of `blocks` TBs on each rank, of a kernel of which `resident` fit on the whole GPU, ever fits.
  bool fits(uint64_t blocks, uint64_t resident) const;
  // Before such a launch: makes `stream` wait for what it does not fit beside. InvalidUsage where it never fits, or not
  // beside what was captured into graphs.
  Status admit(uint64_t blocks, uint64_t resident, cuda::Stream stream, bool captured);
  // After it, and everything else of the request: `event` is recorded, and stays so until left().
  void launched(cuda::Event event);
  // The oldest one is reached.
  void left(cuda::Event event);
  // So is everything that was captured.
  void forget_captured();

 private:
  friend class Residency;
  Member(Residency& all, Claim& claim) : all_(all), claim_(claim) {}

  Residency& all_;
  Claim& claim_;
  std::vector<cuda::Event> under_way_;
  uint64_t passed_ = 0;  // gates
};

}  // namespace theseus
