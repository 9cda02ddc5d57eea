// One rank's part of a plan, from scheduled tasks. See compile.h for the order of instructions and why it is free of
// deadlocks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "compiler/compile.h"
#include "compiler/fuse.h"
#include "compiler/rank_ends.h"
#include "compiler/tasks.h"
#include "schedule/plan.h"

namespace theseus {

class TaskLowering {
 public:
  // `ends` must hold those of every rank that is lowered. `rendezvous_safe`: as the plan will say.
  TaskLowering(const TaskGraph& graph, const Pipeline& pipeline, const CompileOptions& options, const RankEnds& ends,
               bool rendezvous_safe);

  // From now on ranks spread over as many TBs as `rank` needs (TbAllocation::StateBasedEven).
  Status make_room_for(int rank);

  Result<RankPlan> run(int rank);

 private:
  // What touched the place of a chunk since its last write. Input and Output of a chunk are one, as they are in place.
  // A rank writes a chunk either to Output or to Scratch, never to both.
  struct Cell {
    int32_t writer = -1;  // indices into ends_
    int32_t first_writer = -1;
    int32_t reader = -1;   // the last of a list in readers_
    int32_t scratch = -1;  // its index in Scratch
  };
  struct Reader {
    int32_t end, previous;
  };
  struct Wait {
    int32_t waiter, on;
  };
  struct Seat {
    int16_t tb = -1;
    int32_t step = -1;
  };

  struct Sent {
    int32_t sub_pipeline = -1;
    int32_t end = -1;  // the first send inside the host in it
  };

  Status start(int rank);
  Status number_connections();
  void group_connections();
  void find_activity();
  void assign_thread_blocks();
  void add_instructions();
  void add_send(int32_t end, Instruction& instruction);
  void stagger(int32_t end);
  void add_receive(int32_t end, Instruction& instruction);
  void set_operands(const RankEnd& end, Instruction& instruction) const;
  void copy_own_chunks();
  int16_t thread_block_for_copies();
  void wait_for_readers(int32_t chunk, int16_t tb, Instruction& copy);
  void wait_for_scratch();
  void resolve_waits();
  void resolve(int16_t tb, int32_t end, std::span<const Wait> waits, int16_t distance);
  void forget_chunks();

  void read(int32_t chunk, int32_t end);
  void write(int32_t chunk, int32_t end, Buffer dst);
  Cell& cell(int32_t chunk);
  Place place(Buffer buffer, int32_t chunk);
  int16_t connection(int32_t transfer) const;
  // Something else does it.
  bool is_fused(int32_t end) const { return fused_.any && fused_.receive_of[static_cast<size_t>(end)] >= 0; }
  size_t group_at(int32_t end) const;
  int32_t sub_pipeline_at(int32_t end) const;
  template <class Visit>
  void for_each_connection(int32_t end, Visit visit) const;

  const TaskGraph& graph_;
  const Pipeline& pipeline_;
  const CompileOptions options_;
  const RankEnds& all_;
  const bool rendezvous_safe_;
  std::vector<int16_t> local_id_;  // by index of RankEnds::connections
  std::vector<Cell> cells_;        // by chunk
  std::vector<int32_t> touched_;   // chunks
  int32_t most_blocks_ = 0;        // that a rank may spread over

  // Of the rank at hand.
  RankPlan part_;
  std::span<const RankEnd> ends_;
  Fused fused_;
  std::vector<ConnectionGroup> groups_;
  std::vector<int16_t> group_of_;  // by connection
  std::vector<int32_t> tb_of_;     // by group
  int sub_pipelines_ = 0;          // in which the rank is active
  std::vector<Seat> seats_;        // of each end
  std::vector<std::vector<int32_t>> ends_of_tb_;
  Sent sent_now_, sent_before_;  // in the last two sub-pipelines where it sends inside its host
  std::vector<Reader> readers_;
  std::vector<Wait> waits_;                          // by waiter
  std::vector<int32_t> first_wait_;                  // of end e: [first_wait_[e], first_wait_[e + 1])
  std::vector<Wait> scratch_waits_;                  // for the micro-batch before
  std::vector<int32_t> waited_now_, waited_before_;  // by TB
};

}  // namespace theseus
