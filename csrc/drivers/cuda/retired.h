// What a device gives back later: memory, mappings and the like that nobody of ours uses any more, kept until giving it
// back waits for nobody and takes nothing from anybody.
//
// The driver's own release waits for all work of the device. A thread that drives several ranks must not wait so: a
// kernel of one rank may wait for the kernel of another that this very thread has yet to launch. And memory that
// another process has mapped must stay until that process has let go of it, or is gone.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/result.h"
#include "drivers/cuda/api.h"

namespace theseus::cuda {

class Retired {
 public:
  // Those of one device; never destroyed.
  static Retired& of(Driver& driver, int device);
  Retired(Driver& driver, int device) : driver_(driver), device_(device) {}

  // Takes over what allocate() gave; `held`: whether another process still has it mapped (empty: none does). Given back
  // at once where that may be. Null is nothing.
  void add_memory(void* memory, std::function<bool()> held = {});
  // The same for anything else that is given back by `give_back`, which is called once, on any thread.
  void add(std::function<void()> give_back);
  // allocate(), which takes what was retired where nothing else is left.
  Result<void*> allocate(size_t bytes);
  // Whether this was retired and is not given back yet.
  bool holds(const void* memory) const;
  size_t waiting() const;  // pieces

  // Kernels of ours that wait for others are queued on the device, or no longer: while some are, all waits. The last
  // end gives back; who begins meanwhile waits for that, since the driver would wait for what it is about to launch.
  void begin_work();
  void end_work();
  void sweep();

 private:
  struct Piece {
    void* memory;  // null: something else
    std::function<bool()> held;
    std::function<void()> give_back;
  };
  void add(Piece piece);

  Driver& driver_;
  const int device_;
  mutable std::mutex mutex_;
  std::condition_variable given_back_;
  int giving_back_ = 0;  // threads
  uint64_t working_ = 0;
  std::vector<Piece> pieces_;
};

}  // namespace theseus::cuda
