// What a rank tells its node's agent of one communicator, once a second, for `theseus top`, `theseus status` and
// Prometheus: how far its context is, what requests run, what they take before they run, what is kept for them.
//
// The request path writes where it is slow anyway (selections, agreements, samples); the watch thread reads and sends.
// Nobody waits for an agent: where none is connected, or it does not read, the report is dropped.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "net/event_loop.h"
#include "observe/selection_table.h"
#include "observe/tte_samples.h"
#include "runtime/adaptation.h"

namespace theseus {

// Everything of one report, as theseus_py/agent/reports.py reads it.
struct RankReportFacts {
  std::string communicator;  // its id
  std::string name;          // what its user called it; may be empty
  int rank = 0;
  int ranks = 0;
  ContextState context;
  uint64_t resource_bytes = 0;
  uint64_t resource_nodes = 0;
  TteQuantiles tte;
  std::vector<SelectionRow> selections;
};
std::string encode(const RankReportFacts& facts);
// That the communicator is over for this rank.
std::string encode_end(const RankReportFacts& facts);

class RankReport {
 public:
  // Null where the watch thread cannot be had.
  static std::shared_ptr<RankReport> start(const CommId& communicator, const std::string& name, int rank, int ranks,
                                           std::weak_ptr<const Adaptation> adaptation);
  // Nothing is sent afterwards but that it is over.
  void stop();

  // --- by whoever holds the communicator's lock
  TteSamples& samples() { return samples_; }
  SelectionTable& selections() { return selections_; }
  void resources(uint64_t bytes, uint64_t nodes) {
    resource_bytes_.store(bytes, std::memory_order_relaxed);
    resource_nodes_.store(nodes, std::memory_order_relaxed);
  }

 private:
  RankReport() = default;
  void tick();

  EventLoop* loop_ = nullptr;
  EventLoop::TimerId timer_ = 0;
  RankReportFacts fixed_;  // what does not change
  std::weak_ptr<const Adaptation> adaptation_;
  TteSamples samples_;
  SelectionTable selections_;
  std::atomic<uint64_t> resource_bytes_{0};
  std::atomic<uint64_t> resource_nodes_{0};
  std::mutex mutex_;  // guards stopped_, and so that nothing follows the end
  bool stopped_ = false;
};

}  // namespace theseus
