// The plans of one communicator: chosen by the policy and made for this rank, or loaded, or the context's; what they
// need to run is kept in a resource tree.
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
#include "executor/cuda_builder.h"
#include "executor/host_builder.h"
#include "policy/choose.h"
#include "resource/tree.h"
#include "runtime/adaptation.h"
#include "runtime/communicator.h"
#include "runtime/links.h"
#include "runtime/rank_report.h"
#include "runtime/resolved_op.h"
#include "runtime/staging.h"

namespace theseus {

class DeviceRank;

// THESEUS_SCHEDULING: "per-connection" or "hpds".
Result<Scheduling> parse_scheduling(const std::string& text);

// A plan that requests of this communicator run: what there is of it whether or not anything is made for it now.
struct KnownPlan {
  uint64_t family = 0;  // both: see ResourceRequest
  uint64_t tag = 0;
  Collective collective = Collective::AllReduce;
  int root = 0;           // 0 where the collective has none
  std::string algorithm;  // built in; else empty
  // Both of a built-in algorithm are there from its first walk on.
  std::string name;
  uint16_t signature = 0;              // part of every message's
  std::optional<Staging> staging;      // of those that need it
  std::shared_ptr<const Plan> loaded;  // of those that load_plan brought
};

class PlanCache final : private ScheduleSource {
 public:
  // `scheduling`: how chosen algorithms become plans. `resource_bytes`: budget of the resource tree.
  // `device`: where buffers are a GPU's; null: host memory. It outlives the cache.
  PlanCache(int rank, const Topology& topology, Links* links, const Forced& forced, Scheduling scheduling,
            size_t resource_bytes, DeviceRank* device = nullptr);

  struct Selection {
    const KnownPlan* plan = nullptr;
    HostResources held = {};    // good as long as `trail`; nothing where buffers are a GPU's
    ResourceTree::Trail trail;  // where the walk for it ended
    size_t input_bytes = 0;     // of this rank's buffers
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
  // Whether what was remembered is still held. If not: select() again. If so: until the next select() or forget().
  bool holds(const Selection& known) { return tree_.touch(known.trail); }

  struct Selected {
    const Selection* selection = nullptr;  // valid until the next call that hashes alike, or forget()
    ResourceTree::Lease lease;
    bool set_up = false;    // resources of the schedule were made, and not only those of this count
    bool migrated = false;  // some were another schedule's, and only the difference was made
  };
  // For a call that passed its checks, as request `id`.
  Result<Selected> select(const CollectiveCall& call, const ResolvedOp& op, uint64_t id);

  // Schedules of the job's context come before the built-in ones. `adaptation` outlives the cache.
  void use_context(Adaptation& adaptation) { adaptation_ = &adaptation; }
  // Tells of selections and of the tree's size from now on; null: nobody. `report` outlives the cache.
  void report_to(RankReport* report) { report_ = report; }
  // Another context holds from here on: selections are made anew, and schedules that are gone free what they had, those
  // of requests under way with the request.
  void forget();

  // Whether this rank can run its part of a plan from outside; opens its connections.
  Status try_out(const Plan& plan);
  // Takes a loaded plan in, and returns its description with the id that it got.
  Result<LoadedPlan> add_loaded(LoadedPlan description, Plan plan);
  // Whether the call's plan exists and is made for such a call. `in_place`: where this rank has both buffers, whether
  // they are one; `scaled`: ResolvedOp::scaled. From any thread.
  Status check_loaded(const CollectiveCall& call, std::optional<bool> in_place, bool scaled) const;

  PolicyRequest policy_request(const CollectiveCall& call, RedOp op) const;
  Choice choose_for(Collective collective, size_t count, DataType type, int root) const;

  ResourceTree& resources() { return tree_; }

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
    KnownPlan* plan;
  };
  const Loaded* loaded(int id) const;
  // False: none of the context's schedules is for this call. `remembered` falls where the next may be another.
  Result<bool> use_schedule(const CollectiveCall& call, const ResolvedOp& op, uint64_t id, Selection& selection,
                            bool& remembered);
  void use_chosen(const CollectiveCall& call, Selection& selection);
  void use_loaded(const Loaded& loaded, const CollectiveCall& call, Selection& selection) const;
  Status walk(const CollectiveCall& call, Selected& selected, Selection& selection);
  void report_selection(const CollectiveCall& call, const Selection& selection, uint64_t id);
  void report_resources();
  KnownPlan& plan_of_schedule(const LoadedSchedule& schedule, int root);
  KnownPlan& plan_of_algorithm(const std::string& algorithm, Collective collective, int root);
  uint64_t family_of_schedule(const LoadedSchedule& schedule, int root);
  KnownPlan& add(uint64_t family, uint64_t tag, Collective collective, int root);
  Staging staging_of(const KnownPlan& plan, bool in_place) const;
  bool is_gone(uint64_t tag) const;

  // --- ScheduleSource
  Result<SchedulePlan> plan_of(uint64_t tag) override;
  Result<SchedulePlan> compile_algorithm(KnownPlan& known) const;
  Result<SchedulePlan> take_schedule(const KnownPlan& known) const;
  size_t piece_bytes(const Program& program, const ResourceRequest& request) override;

  int rank_;
  Topology topology_;
  TopologySummary summary_;
  Links* links_;
  Forced forced_;
  Scheduling scheduling_;
  Adaptation* adaptation_ = nullptr;
  RankReport* report_ = nullptr;
  std::map<uint64_t, KnownPlan> known_;                                   // by tag
  std::map<std::tuple<std::string, Collective, int>, uint64_t> numbers_;  // tags of algorithms, by collective and root
  std::map<std::string, uint64_t> healed_;                                // families of the healer's schedules
  uint64_t next_number_ = 0;
  HostBuilder builder_;
  std::unique_ptr<CudaBuilder> cuda_builder_;  // null on the host
  ResourceTree tree_;
  mutable std::mutex loaded_mutex_;                    // of the list; plans are used under the communicator's lock
  std::vector<std::unique_ptr<const Loaded>> loaded_;  // by id - 1
  std::array<Line, 64> recent_;
  Line unremembered_;
};

}  // namespace theseus
