// The ends of all messages, rank by rank in the order in which the rank runs them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compiler/pipeline.h"
#include "compiler/tasks.h"

namespace theseus {

// A send, or an arrival of one or several transfers (several: a fold).
struct RankEnd {
  int32_t transfer;  // the first, in TaskGraph::transfers
  uint32_t task : 31;
  uint32_t sends : 1;
};

class RankEnds {
 public:
  // Of `rank`, or of all. Where `by_stage` is set, each stage of a connection is a channel of its own.
  RankEnds(const TaskGraph& graph, const Pipeline& pipeline, int rank, bool by_stage);

  std::span<const RankEnd> of(int rank) const;
  // Where a task stands in the schedule.
  int32_t place_of(uint32_t task) const { return places_[task]; }

  struct Pair {
    int32_t src, dst;
    int16_t rail;
    int16_t channel;
  };
  // Every connection, in the order in which it is first used by a transfer of these ends.
  const std::vector<Pair>& connections() const { return connections_; }
  int32_t connection_of(int32_t transfer) const { return connection_of_[static_cast<size_t>(transfer)]; }
  // False where a channel's number does not fit.
  bool fits() const { return fits_; }

 private:
  template <class Visit>
  void for_each_send(int32_t task, Visit visit) const;
  template <class Visit>
  void for_each_arrival(int32_t task, Visit visit) const;
  void number_connections(bool by_stage);

  const TaskGraph& graph_;
  const int rank_;
  std::vector<size_t> first_;  // by rank
  std::vector<RankEnd> ends_;
  std::vector<int32_t> places_;
  std::vector<Pair> connections_;
  std::vector<int32_t> connection_of_;
  bool fits_ = true;
};

}  // namespace theseus
