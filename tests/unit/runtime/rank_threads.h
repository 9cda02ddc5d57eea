// The ranks of a communicator as threads of this process.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/communicator.h"

namespace theseus::testing {

// Runs body(rank) on one thread a rank and waits for all.
inline void on_threads(int ranks, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

inline UniqueId fresh_id() {
  Result<UniqueId> id = Communicator::create_unique_id();
  EXPECT_TRUE(id.ok()) << id.status().message();
  return *id;
}

// Named after what it expects: EXPECT_OK(communicator.barrier()).
#define EXPECT_OK(expression)                                                 \
  do {                                                                        \
    const ::theseus::Status status_of_expression = (expression);              \
    EXPECT_TRUE(status_of_expression.ok()) << status_of_expression.message(); \
  } while (0)

// A communicator of `ranks` ranks, whose handles are used by a thread each. Destroyed in good order.
class Ranks {
 public:
  explicit Ranks(int ranks, const CommConfig& config = {}) : handles_(static_cast<size_t>(ranks)) {
    const UniqueId id = fresh_id();
    on_threads(ranks, [&](int rank) {
      Result<Communicator*> made = Communicator::init(id, ranks, rank, config);
      EXPECT_TRUE(made.ok()) << made.status().message();
      if (made.ok()) handles_[static_cast<size_t>(rank)] = *made;
    });
  }
  ~Ranks() {
    on_threads(size(), [this](int rank) {
      if (Communicator* handle = take(rank); handle != nullptr) (void)Communicator::destroy(handle).ok();
    });
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int size() const { return static_cast<int>(handles_.size()); }
  Communicator& operator[](int rank) { return *handles_[static_cast<size_t>(rank)]; }
  // The caller ends this one.
  Communicator* take(int rank) { return std::exchange(handles_[static_cast<size_t>(rank)], nullptr); }

  // body(communicator) on every rank's thread.
  void run(const std::function<void(Communicator&)>& body) {
    on_threads(size(), [&](int rank) { body((*this)[rank]); });
  }

 private:
  std::vector<Communicator*> handles_;
};

// Sum over all ranks of rank + 1, by a real AllReduce: whether `communicator` works. 0 where it failed.
inline int64_t sum_of_ranks(Communicator& communicator) {
  int64_t value = communicator.rank() + 1;
  CollectiveCall call;
  call.send = call.recv = &value;
  call.count = 1;
  call.type = DataType::Int64;
  const Status status = communicator.submit(call);
  EXPECT_TRUE(status.ok()) << status.message();
  return status.ok() ? value : 0;
}
inline int64_t sum_up_to(int ranks) { return int64_t{ranks} * (ranks + 1) / 2; }

}  // namespace theseus::testing
