// The plans of one communicator: chosen by the policy, lowered for this rank, resolved to its connections, kept.
//
// Selection is a pure function of what NCCL obliges to be equal on all ranks, so every rank picks the same.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>

#include "executor/execution.h"
#include "policy/choose.h"
#include "runtime/communicator.h"
#include "runtime/links.h"

namespace theseus {

// A plan ready to run on this communicator. One request uses it at a time.
struct PreparedPlan {
  std::string algorithm;
  uint32_t digest = 0;  // low bits; part of every message's signature
  std::unique_ptr<Program> program;
  std::unique_ptr<Execution> execution;
};

class PlanCache {
 public:
  PlanCache(int rank, const Topology& topology, Links* links, const Forced& forced);

  struct Selection {
    PreparedPlan* plan = nullptr;
    size_t piece_bytes = 0;
    SignatureTag tag;  // complete but for the request id
  };
  // Valid until the next call with other arguments that hash alike; plans live as long as the cache.
  Result<const Selection*> select(Collective collective, size_t count, DataType type, RedOp op, int root);

  Choice choose_for(Collective collective, size_t count, DataType type, int root) const;

 private:
  struct Key {
    size_t count = SIZE_MAX;
    int32_t root = 0;
    Collective collective = Collective::AllReduce;
    DataType type = DataType::Int8;
    RedOp op = RedOp::Sum;
    bool operator==(const Key&) const = default;
  };
  struct Line {
    Key key;
    Selection selection;
  };
  Result<PreparedPlan*> prepare(const std::string& algorithm, Collective collective, int root);
  size_t piece_bytes_for(Collective collective, size_t block_bytes) const;

  int rank_;
  Topology topology_;
  TopologySummary summary_;
  Links* links_;
  Forced forced_;
  std::map<std::tuple<std::string, Collective, int>, PreparedPlan> plans_;
  std::array<Line, 64> recent_;
};

}  // namespace theseus
