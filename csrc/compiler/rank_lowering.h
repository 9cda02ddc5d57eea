// One rank's part of a plan. See lower.h for the order of instructions and why it is free of deadlocks.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "compiler/transfers.h"
#include "schedule/plan.h"

namespace theseus {

class RankLowering {
 public:
  RankLowering(const ChunkedTransfers& grouped, int rank);
  // Once.
  Result<RankPlan> run();

 private:
  enum class Kind : uint8_t { Send, Receive, Local };

  // An instruction before it has a place in a TB.
  struct Draft {
    Instruction instruction;
    int32_t step = 0;
    int32_t chunk = 0;
    Kind kind = Kind::Local;
    bool dead = false;  // merged into another
    int32_t tb = -1;
    int32_t position = -1;
  };
  struct Wait {
    int32_t waiter;
    int32_t on;
    int16_t distance;
  };
  // What touched a cell since its last write. Input and Output of a chunk are one cell, as they are in place.
  struct Cell {
    int32_t writer = -1;
    int32_t first_writer = -1;
    std::vector<int32_t> readers;
    void clear() {
      writer = first_writer = -1;
      readers.clear();
    }
  };

  void find_connections();
  Status lower_chunk(int chunk);
  void set_holders(int chunk);
  Status lower_step(const Transfer* begin, const Transfer* end);
  Status check_step(const Transfer* begin, const Transfer* end);
  void add_send(const Transfer& transfer);
  void add_arrivals(int chunk, int step);
  void finish_chunk(int chunk);
  // The current version is about to be replaced, or is final: fuses its way in with its only way out, if it may.
  void close_version(bool is_final);
  void advance_holders(const Transfer* begin, const Transfer* end);

  int32_t add(Draft draft);
  void read(Cell& cell, int32_t draft);
  void write(Cell& cell, int32_t draft);
  Cell& cell_of(Place place) { return place.buffer == Buffer::Scratch ? scratch_ : user_; }

  void assign_thread_blocks();
  void order_instructions();
  void resolve_waits();
  void number_scratch();

  int16_t outgoing(const Transfer& t) const { return connection_id_[slot(true, t.dst, t.rail)]; }
  int16_t incoming(const Transfer& t) const { return connection_id_[slot(false, t.src, t.rail)]; }
  size_t slot(bool is_outgoing, int peer, int rail) const;
  // The lowest rank whose contribution `rank`'s version of the chunk at hand holds; -1 where it holds none.
  int32_t& lowest(int rank) { return lowest_[static_cast<size_t>(rank)]; }

  const ChunkedTransfers& grouped_;
  const int rank_;
  RankPlan plan_;
  std::vector<int16_t> connection_id_;
  std::vector<Draft> drafts_;
  std::vector<Wait> waits_;
  std::vector<std::vector<int32_t>> programs_;  // per TB, indices into drafts_

  // Of the chunk at hand.
  std::vector<int32_t> lowest_;
  std::vector<const Transfer*> arrivals_;
  std::vector<std::pair<int32_t, int32_t>> advanced_;
  Place place_;
  Cell user_;
  Cell scratch_;
};

}  // namespace theseus
