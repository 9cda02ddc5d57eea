// Inside of Communicator. Private to csrc/runtime.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/owned_mutex.h"
#include "executor/shared_execution.h"
#include "executor/transfer.h"
#include "net/star.h"
#include "observe/counters.h"
#include "observe/trace.h"
#include "observe/tte.h"
#include "runtime/adaptation.h"
#include "runtime/communicator.h"
#include "runtime/device_rank.h"
#include "runtime/links.h"
#include "runtime/plan_cache.h"
#include "runtime/progress_thread.h"
#include "runtime/rank_report.h"
#include "runtime/resolved_op.h"

namespace theseus {

enum class Phase : int { Joining, Ready, Finalized };

// A collective ready to run: arguments checked, plan selected, id given.
struct Request {
  const KnownPlan* plan = nullptr;  // null: nothing to do
  HostResources held = {};          // nothing where the buffers are a GPU's
  Binding binding;
  ResolvedOp op;
  size_t input_bytes = 0;  // of this rank's buffers
  size_t output_bytes = 0;
  bool try_shared = false;  // see SharedExecution
  size_t padded_count = 0;  // not 0: see Staging
  void* stream = nullptr;   // see CollectiveCall
  uint64_t begun_ns = 0;    // where a trace is kept
};

// With what keeps its resources until it is complete; given back under `running`.
struct PreparedRequest {
  Request request;
  ResourceTree::Lease lease;
};

struct Communicator::Impl {
  explicit Impl(Communicator* owner) : self(owner) {}
  // The watch thread may hold the adaptation a moment longer than its links live.
  ~Impl() {
    if (report != nullptr) report->stop();
    if (adaptation != nullptr) adaptation->close();
    // What requests hold goes back before the plans do.
    if (device != nullptr) {
      if (star != nullptr) star->close();  // from here on nobody reports a failure
      device->close();
    }
  }

  Communicator* self;
  CommId id;
  std::vector<Peer> peers;
  Topology topology;
  std::unique_ptr<Links> links;                 // null with one rank
  std::unique_ptr<Star> star;                   // null with one rank
  std::shared_ptr<Adaptation> adaptation;       // null where schedules do not change (THESEUS_ADAPT, one rank)
  std::shared_ptr<RankReport> report;           // null where no agent is to be told
  int ordinal = -1;                             // of the GPU that buffers are on; -1: host memory
  std::unique_ptr<DeviceRank> device;           // null: host memory
  bool forwards = false;                        // to the real NCCL, all of it (THESEUS_NET)
  std::atomic<DeviceRank*> abortable{nullptr};  // the same, for whoever reports a failure
  std::unique_ptr<PlanCache> plans;
  std::unique_ptr<SharedExecution> shared;  // null unless all ranks share one host

  OwnedMutex running;  // held by whoever runs requests of this communicator
  std::atomic<Phase> phase{Phase::Joining};
  std::atomic<bool> aborted{false};
  std::atomic<bool> failed{false};
  mutable std::mutex failure_mutex;
  Status failure;

  uint64_t next_request = 1;  // by whoever holds `running`
  // The request id before which adapt() is to be called; by whoever holds `running`.
  uint64_t next_event = UINT64_MAX;
  int splits = 0;
  int shrinks = 0;
  std::atomic<double> timeout{0};
  int spins = 0;                              // looks before the first yield
  bool crowded = false;                       // more local ranks than cores
  std::unique_ptr<TteRecorder> tte;           // null: nobody asks; by whoever holds `running`
  bool timed = false;                         // `tte`, or `report`, waits for the first instruction; likewise
  std::unique_ptr<Trace> trace;               // null: THESEUS_TRACE is empty; by whoever holds `running`
  RequestCounters counters;                   // by whoever holds `running`
  const SignatureTag* running_tag = nullptr;  // of the collective under way; by whoever holds `running`
  uint64_t next_local_check = 0;              // ns; by whoever holds `running`

  std::mutex ops_mutex;
  struct PremulSum {
    DataType type;
    uint8_t scalar[8];
    const void* scalar_at;  // see ResolvedOp
  };
  std::map<int, PremulSum> ops;
  int next_op = 5;

  ProgressThread progress;

  // --- life (init.cc)
  Status join(const UniqueId& unique_id);
  Status join_split(Communicator::Impl& parent, int color, int key);
  Status join_shrink(const Communicator::Impl& parent, const std::vector<int>& survivors, int generation);
  Status meet(const UniqueId& unique_id, const Deadline& deadline);
  Status open_device();
  Status become_ready();
  Status leave();

  // --- failure (failure.cc)
  void set_failure(const Status& status);  // first one wins
  Status fail(const Status& status);       // set_failure, and tell the other ranks; returns the failure
  Status failure_status() const;
  Status usable() const;            // ok, or why no request may start
  void report_waiting(bool waits);  // so that ranks that wait for ever in different calls find out
  Status check_device();            // what kernels found wrong; ok on the host
  Status check_alive();             // slow path of waiting: local deaths, aborts, failures

  // --- requests (request.cc)
  Result<ResolvedOp> check(const CollectiveCall& call);  // arguments; captures the reduction
  Result<ResolvedOp> resolve(int op, DataType type);
  Result<PreparedRequest> prepare(const CollectiveCall& call, const ResolvedOp& op);
  Request bind(const CollectiveCall& call, const PlanCache::Selection& selection);
  Status run(const CollectiveCall& call);
  Status run(const CollectiveCall& call, const ResolvedOp& op);
  Status execute(Request& request);
  // What was prepared, on the host to its end; on a GPU until it is queued.
  Status perform(PreparedRequest& prepared);
  Status launch(PreparedRequest& prepared);
  Status wait_for_device();
  void complete(Request& request);
  Status run_barrier();
  void note(TteEvent event) {
    if (tte != nullptr) tte->note(event);
  }
  Status adapt();   // what is due before the next request: an agreement, or a sample of its time to execution
  Status arrive();  // see Adaptation::arrive
  void first_instruction(const Request& request);

  // --- plans from outside (load_plan.cc); the caller holds `running`
  Result<LoadedPlan> load_plan(const std::string& file);
  Status take_part(const std::string& file, LoadedPlan& description, Plan& plan);

  // --- point-to-point (p2p.cc)
  struct PointToPoint {
    bool sends;
    void* data;
    size_t bytes;
    size_t count;
    DataType type;
    int peer;
    void* stream;  // see CollectiveCall
  };
  Status check_point_to_point(const PointToPoint& operation) const;
  Status run_point_to_point(const PointToPoint& operation);
  Status check_all_to_all_v(const AllToAllVCall& call) const;
  Status run_all_to_all_v(const AllToAllVCall& call);
};

// The way in for the runtime's own files.
class CommunicatorAccess {
 public:
  static Communicator::Impl& impl(Communicator& communicator) { return *communicator.impl_; }
  // A live handle, still to join.
  static Communicator* make(int ranks, int rank, const CommConfig& config);
  static void set_shape(Communicator& communicator, int ranks, int rank);
  // Takes the handle back: false where it was not live. remove() also deletes.
  static bool forget(Communicator* communicator);
  static void remove(Communicator* communicator);
};

}  // namespace theseus
