// The watch over what a communicator left in the kernel when its last request ended: bytes that the peer has not
// acknowledged yet, and that may have to go another way though nobody calls the library.
//
// TcpLinks belong to the thread that holds their communicator's lock. At the end of a request that thread lends them to
// the watch thread, and takes them back when it next touches them.
#pragma once

#include <atomic>
#include <cstdint>

namespace theseus {

class EventLoop;

class Tended {
 public:
  virtual ~Tended() = default;

  // By the user, before it touches anything that tend() may.
  void enter() {
    if (lent_) [[unlikely]]
      take_back();
  }
  // By the user, when it leaves. Wakes the watch where it sleeps.
  void lend(EventLoop& loop);

 protected:
  // Moves what can move, on the watch thread. True where nothing is left to watch.
  virtual bool tend(uint64_t now) = 0;

 private:
  friend class TcpWatch;
  enum State : int { kOwned, kLent, kSettled, kBorrowed };
  void take_back();
  bool try_borrow();

  bool lent_ = false;  // the user's view
  std::atomic<int> state_{kOwned};
};

// One a process.
class TcpWatch {
 public:
  // remove() returns when the watch thread no longer touches it.
  static void add(Tended* tended);
  static void remove(Tended* tended);

 private:
  friend class Tended;
  static void rouse(EventLoop& loop);
  static bool tick();
};

}  // namespace theseus
