// The communicator: what the C API (nccl_api) and the Python bindings talk to.
//
// A Communicator is one rank's endpoint. Ranks are processes or threads of one process. On host memory a call returns
// when its result is there; inside a group, at the outermost group_end(); as asynchronous work, when Work says so. On a
// GPU (THESEUS_DEVICE) it returns when it is queued on the caller's stream.
// All calls of one communicator are serialised by it, from whichever thread they come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/types.h"
#include "observe/tte.h"

namespace theseus {

struct CommConfig {
  bool blocking = true;  // false: init and calls return InProgress; poll in_progress() and async_error()
  std::string name;      // ncclConfig_t::commName, torch's "default_pg:0"
  int traffic_class = -1;
  bool split_share = false;
  bool shrink_share = false;
  int device = -1;  // GPU of this rank, where buffers are on GPUs; -1: the calling thread's
};

// A collective of this rank. Pointers are host memory, or the rank's GPU's (THESEUS_DEVICE); `count` as NCCL defines it
// for the collective (elements per rank for AllGather, ReduceScatter, AllToAll, Gather, Scatter; elements of the buffer
// for the others).
struct CollectiveCall {
  Collective collective = Collective::AllReduce;
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;
  DataType type = DataType::Float32;
  int op = 0;  // RedOp, or a handle from create_premulsum()
  int root = 0;
  int plan = 0;  // LoadedPlan::id; 0: the policy picks
  // Buffers on a GPU: the CUstream that the call takes its place in. On host memory it is not looked at.
  void* stream = nullptr;
};

// All-to-all with uneven splits: counts and offsets in elements, one per rank. Arrays are read during the call.
struct AllToAllVCall {
  const void* send = nullptr;
  const size_t* send_counts = nullptr;
  const size_t* send_offsets = nullptr;
  void* recv = nullptr;
  const size_t* recv_counts = nullptr;
  const size_t* recv_offsets = nullptr;
  DataType type = DataType::Float32;
  void* stream = nullptr;  // see CollectiveCall
};

// Handle of asynchronous work. Thread-safe.
class Work {
 public:
  virtual ~Work() = default;
  virtual bool done() const = 0;
  // Waits at most `seconds` (negative: for ever). Timeout leaves the work running.
  virtual Status wait(double seconds) = 0;
  // InProgress until done, then the outcome.
  virtual Status status() const = 0;
};

// A plan that load_plan() took in.
struct LoadedPlan {
  int id = 0;  // what CollectiveCall::plan takes; the same on all ranks
  std::string name;
  Collective collective = Collective::AllReduce;
  int root = 0;
  int chunks_per_block = 1;
  // What the plan is right for: few are not right both in place and out of place.
  bool in_place = false;
  bool out_of_place = false;
  // False: counts that do not divide into chunks_per_block run on copies of the buffers.
  bool any_count = false;
  // False: no reduction that scales inputs (PreMulSum, floating Avg), since the plan may read an input it has written.
  bool scales = false;
  int thread_blocks = 0;  // of this rank
  int connections = 0;    // of this rank, both directions
};

// How far this rank is with the job's context (Theseus): what `theseus status` shows.
struct ContextState {
  uint64_t log_id = 0;     // 0: no log yet
  uint64_t read = 0;       // records of the log read here, as of the last agreement
  uint64_t installed = 0;  // those that all ranks agreed on
  uint64_t epoch = 0;      // changes of the installed context
  uint64_t agreements = 0;
  uint64_t agreement_ns = 0;  // over all of them, from when this rank joined each to its decision
  uint64_t messages = 0;      // that this rank sent for them
  uint32_t next_k = 0;        // requests until the next one is installed
  int held_back_by = -1;      // a rank that kept the last candidate from being installed
};

// How a request would run, for `theseus explain`.
struct Explanation {
  struct Candidate {
    std::string algorithm;
    bool usable;
    double score;  // predicted seconds, lower is better; meaningless where not usable
    std::string reason;
  };
  std::string chosen;
  std::string reason;
  std::vector<Candidate> candidates;
};

class Communicator {
 public:
  struct Impl;  // csrc/runtime only
  static Result<UniqueId> create_unique_id();

  // Joins the communicator `id` as `rank` of `ranks`. Blocking: returns a ready communicator or the reason why not.
  // Inside a group, or non-blocking: returns at once; it is ready when in_progress() is false and async_error() is ok.
  // The caller owns the handle until destroy().
  static Result<Communicator*> init(const UniqueId& id, int ranks, int rank, const CommConfig& config);
  // One process, one thread, `ranks` communicators that talk to each other (ncclCommInitAll).
  // `devices`: the GPU of each, where buffers are on GPUs; empty: 0, 1, 2, ...
  static Result<std::vector<Communicator*>> init_all(int ranks, const std::vector<int>& devices = {});
  // True for handles that init/split/shrink returned and destroy/abort has not yet taken back.
  static bool is_live(const void* handle);

  // Collective over this communicator. color < 0: takes part, gets null. Ranks order by key, ties by parent rank.
  Result<Communicator*> split(int color, int key, const CommConfig* config);
  // The survivors of `excluded` build a communicator of their own, even when this one has failed (`abort` true:
  // outstanding work of this one is abandoned first).
  Result<Communicator*> shrink(const std::vector<int>& excluded, const CommConfig* config, bool abort);

  Status finalize();                                  // flushes outstanding work; later calls are InvalidUsage
  static Status destroy(Communicator* communicator);  // finalize if need be, then frees
  static Status abort(Communicator* communicator);    // never waits for peers, then frees
  Status revoke();                                    // outstanding and later collectives fail with InvalidUsage

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  // The same on all ranks and on no other communicator, once this one is ready; zero with one rank.
  const CommId& id() const;
  // Whether its buffers are a real GPU's, config().device. False until it is ready.
  bool on_gpu() const;
  // Whether the real NCCL is to do its collectives (THESEUS_NET); the same on all ranks. False until it is ready.
  bool forwards() const;
  bool blocking() const { return config_.blocking; }
  const CommConfig& config() const { return config_; }

  bool in_progress() const;    // init or calls outstanding (non-blocking)
  Status async_error() const;  // ok, or why this communicator is dead

  // Checks arguments, then: outside a group runs to completion (or enqueues, non-blocking: InProgress);
  // inside a group queues.
  Status submit(const CollectiveCall& call);
  Status all_to_all_v(const AllToAllVCall& call);
  // `stream`: see CollectiveCall.
  Status send(const void* data, size_t count, DataType type, int peer, void* stream = nullptr);
  Status recv(void* data, size_t count, DataType type, int peer, void* stream = nullptr);
  Status barrier();

  // The same on the communicator's progress thread, in order of submission. Buffers must stay until done.
  std::shared_ptr<Work> submit_async(const CollectiveCall& call);
  std::shared_ptr<Work> all_to_all_v_async(const AllToAllVCall& call);
  std::shared_ptr<Work> send_async(const void* data, size_t count, DataType type, int peer);
  std::shared_ptr<Work> recv_async(void* data, size_t count, DataType type, int peer);
  std::shared_ptr<Work> barrier_async();

  // Collective over this communicator: every rank gives the same plan file (schedule/plan.h). The lowest rank of each
  // host proves it whole; all ranks take it, or all refuse it for the same reason: InvalidArgument where the files
  // differ, or the plan is broken, for another number of ranks, or not right. Plans stay until the communicator ends.
  Result<LoadedPlan> load_plan(const std::string& file);

  // Collective over this communicator, on the control plane: everybody's blob (at most 1 MiB), by rank.
  Result<std::vector<std::string>> exchange(const std::string& blob);

  // scalar: one element of `type`, this rank's factor. The handle is valid for this communicator and type. `pointed`:
  // on a GPU the scalar, which kernels can reach, is read when they run; on the host it is read now all the same.
  Result<int> create_premulsum(DataType type, const void* scalar, bool pointed = false);
  Status destroy_op(int op);

  // Seconds after which a call gives up with Timeout; <= 0: never (default; THESEUS_TIMEOUT).
  void set_timeout(double seconds);

  // Records the time to execution of the next `capacity` collectives outside groups; 0: no more.
  void record_tte(size_t capacity);
  std::vector<TteSample> take_tte();
  // Nothing where schedules do not change on this communicator (THESEUS_ADAPT, or one rank).
  std::optional<ContextState> context_state() const;
  Explanation explain(Collective collective, size_t count, DataType type, int root) const;
  // What this rank knows of the others, one line each for `theseus info`: host, rails, process, transport.
  std::vector<std::string> describe_peers() const;

  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

 private:
  friend class CommunicatorAccess;
  Communicator(int ranks, int rank, CommConfig config);
  ~Communicator();

  CommConfig child_config(const CommConfig* config) const;

  static constexpr uint64_t kMagic = 0x5355455345485421;
  uint64_t magic_ = kMagic;
  int rank_;
  int ranks_;
  CommConfig config_;
  std::unique_ptr<Impl> impl_;

 public:
  // Cheap first check of a handle from C: reads 8 bytes.
  bool has_magic() const { return magic_ == kMagic; }
};

// Groups are per thread and nest. The outermost end runs everything queued and returns the first error.
void group_start();
Status group_end();
int group_depth();
// Notes that a call inside this thread's group was refused: group_end() runs nothing then, and returns the first error.
Status group_error(Status status);

// Page-aligned memory that peers on the same host can map (no copy is needed for it). Freed by mem_free only.
Result<void*> mem_alloc(size_t bytes);
Status mem_free(void* pointer);

}  // namespace theseus
