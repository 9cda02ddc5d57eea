#include "base/fork.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <set>

namespace theseus {
namespace {

std::atomic<uint32_t> generation{0};
std::atomic<bool> forked{false};

// Never destroyed: descriptors are closed by threads that outlive static destructors.
struct Registry {
  std::mutex mutex;
  std::set<int> descriptors;
};
Registry& registry() {
  static Registry* instance = new Registry;
  return *instance;
}

// The lock is held over fork(), so that the child finds the set whole.
void before_fork() { registry().mutex.lock(); }
void after_fork_in_parent() { registry().mutex.unlock(); }
void after_fork_in_child() {
  for (const int descriptor : registry().descriptors) close(descriptor);
  forked.store(true, std::memory_order_release);
  generation.fetch_add(1, std::memory_order_acq_rel);
  // The set is left as it is: freeing memory here could meet an allocator lock held by a thread that is gone.
  registry().mutex.unlock();
}

}  // namespace

void arm_fork_guard() {
  static const int armed = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  static_cast<void>(armed);
}

bool is_forked_child() { return forked.load(std::memory_order_acquire); }
uint32_t fork_generation() { return generation.load(std::memory_order_acquire); }

Status check_not_forked() {
  if (!is_forked_child()) return {};
  return Status::usage(
      "this process was forked from one that uses Theseus; the library is inert here. Start workers with 'spawn' or "
      "'forkserver', or fork before the first communicator");
}

void register_descriptor(int descriptor) {
  if (is_forked_child()) return;
  std::lock_guard lock(registry().mutex);
  registry().descriptors.insert(descriptor);
}

void unregister_descriptor(int descriptor) {
  if (is_forked_child()) return;
  std::lock_guard lock(registry().mutex);
  registry().descriptors.erase(descriptor);
}

}  // namespace theseus
