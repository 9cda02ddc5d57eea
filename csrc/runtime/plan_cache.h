// The plans of one communicator: chosen by the policy and made for this rank, or loaded; resolved to its connections,
// kept.
//
// Selection is a pure function of what NCCL obliges to be equal on all ranks, so every rank picks the same.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "compiler/pipeline.h"
#include "executor/execution.h"
#include "policy/choose.h"
#include "runtime/adaptation.h"
#include "runtime/communicator.h"
#include "runtime/links.h"
#include "runtime/resolved_op.h"
#include "runtime/staging.h"

namespace theseus {

// THESEUS_SCHEDULING: "per-connection" or "hpds".
Result<Scheduling> parse_scheduling(const std::string& text);

// A plan ready to run on this communicator. One request uses it at a time.
struct PreparedPlan {
  std::string algorithm;
  uint32_t digest = 0;  // low bits; part of every message's signature
  std::unique_ptr<Program> program;
  std::unique_ptr<Execution> execution;
  std::unique_ptr<Staging> staging;  // of loaded plans that need it
};

class PlanCache {
 public:
  // `scheduling`: how chosen algorithms become plans.
  PlanCache(int rank, const Topology& topology, Links* links, const Forced& forced, Scheduling scheduling);

  struct Selection {
    PreparedPlan* plan = nullptr;
    size_t piece_bytes = 0;
    size_t input_bytes = 0;  // of this rank's buffers
    size_t output_bytes = 0;
    bool try_shared = false;  // large enough for SharedExecution; equal on all ranks
    size_t padded_count = 0;  // not 0: the plan runs on copies of the buffers, with that many elements a block
    ResolvedOp op;
    SignatureTag tag;  // complete but for the request id
  };
  // What was remembered of an equal call, or null. Only calls whose arguments passed are remembered, and none with a
  // reduction that may be destroyed.
  const Selection* recall(const CollectiveCall& call) const {
    const Line& line = recent_[place_of(call)];
    return line.key == key_of(call) ? &line.selection : nullptr;
  }
  // For a call that passed its checks, as request `id`. Valid until the next call that hashes alike, or forget().
  Result<const Selection*> select(const CollectiveCall& call, const ResolvedOp& op, uint64_t id);

  // Schedules of the job's context come before the built-in ones. `adaptation` outlives the cache.
  void use_context(Adaptation& adaptation) { adaptation_ = &adaptation; }
  // Another context holds from here on: selections are made anew, and schedules that are gone free what they had.
  void forget();

  // This rank's part of `plan`, ready to run. `plan` needs no other.
  Status resolve(const Plan& plan, bool share_slots, PreparedPlan& prepared);
  // Takes a loaded plan in, and returns its description with the id that it got.
  Result<LoadedPlan> add_loaded(LoadedPlan description, PreparedPlan prepared);
  // Whether the call's plan exists and is made for such a call. `in_place`: where this rank has both buffers, whether
  // they are one; `scaled`: ResolvedOp::scaled. From any thread.
  Status check_loaded(const CollectiveCall& call, std::optional<bool> in_place, bool scaled) const;

  PolicyRequest policy_request(const CollectiveCall& call, RedOp op) const;
  Choice choose_for(Collective collective, size_t count, DataType type, int root) const;

 private:
  struct Key {
    size_t count = SIZE_MAX;
    int32_t root = 0;
    int32_t op = 0;
    int32_t plan = 0;
    Collective collective = Collective::AllReduce;
    DataType type = DataType::Int8;
    bool operator==(const Key&) const = default;
  };
  static Key key_of(const CollectiveCall& call) {
    return {call.count, call.root, call.op, call.plan, call.collective, call.type};
  }
  static size_t place_of(const CollectiveCall& call) {
    const uint64_t rest = uint64_t(uint32_t(call.root)) << 24 ^ uint64_t(uint32_t(call.op)) << 16 ^
                          uint64_t(call.collective) << 8 ^ uint64_t(call.type) ^ uint64_t(uint32_t(call.plan)) << 32;
    return ((call.count ^ rest << 20) * 0x9e3779b97f4a7c15ull) >> 58;
  }
  struct Line {
    Key key;
    Selection selection;
  };
  struct Loaded {
    LoadedPlan description;
    PreparedPlan prepared;
  };
  Loaded* loaded(int id) const;
  // False: none of the context's schedules is for this call. `remembered` falls where the next may be another.
  Result<bool> use_schedule(const CollectiveCall& call, const ResolvedOp& op, uint64_t id, Selection& selection,
                            bool& remembered);
  Result<PreparedPlan*> prepare_schedule(const LoadedSchedule& schedule, int root);
  Status use_chosen(const CollectiveCall& call, Selection& selection);
  void use_loaded(Loaded& loaded, const CollectiveCall& call, Selection& selection) const;
  Result<PreparedPlan*> prepare(const std::string& algorithm, Collective collective, int root);
  size_t piece_bytes_for(const Program& program, Collective collective, size_t block_bytes) const;

  int rank_;
  Topology topology_;
  TopologySummary summary_;
  Links* links_;
  Forced forced_;
  Scheduling scheduling_;
  Adaptation* adaptation_ = nullptr;
  std::map<std::tuple<std::string, Collective, int>, PreparedPlan> plans_;
  std::map<std::pair<uint32_t, int>, PreparedPlan> scheduled_;  // by schedule id and root
  mutable std::mutex loaded_mutex_;              // of the list; what it holds is used under the communicator's lock
  std::vector<std::unique_ptr<Loaded>> loaded_;  // by id - 1
  std::array<Line, 64> recent_;
  Line unremembered_;
};

}  // namespace theseus
