// What a plan computes: the run of one micro-batch on symbolic values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compiler/cells.h"
#include "compiler/plan_graph.h"
#include "compiler/verify.h"
#include "compiler/verify_run.h"

namespace theseus {

// How contributions were combined: a tree whose leaves are ranks. Equal trees have equal numbers, so that equal results
// are known by one comparison, without hashing anything away.
class Trees {
 public:
  static constexpr int32_t kNothing = 0;

  explicit Trees(int ranks);
  int32_t leaf(int rank) const { return rank + 1; }
  // `event` and `chunk` say where the tree was first made.
  int32_t combine(int32_t left, int32_t right, Event event, int32_t chunk);
  // Where requests scale their input, a leaf is the scaled one. In place it can be read before it was scaled ...
  int32_t unscaled(int rank, Event event, int32_t chunk) { return combine(leaf(rank), kNothing, event, chunk); }
  // ... and what is no input any more be scaled again.
  int32_t scaled(int32_t tree, Event event, int32_t chunk);

  enum class Flaw : uint8_t { None, Missing, Twice, Unscaled, ScaledAgain };
  struct Finding {
    Flaw flaw = Flaw::None;
    int rank = -1;     // Missing, Twice: whose contribution
    int32_t tree = 0;  // the smallest part that shows it
  };
  // Whether each rank is a leaf exactly once. Asked again for the same tree, it answers at once.
  Finding examine(int32_t tree);
  // Where an inner tree was first made.
  Event event_of(int32_t tree) const { return made_[static_cast<size_t>(tree - ranks_ - 1)].event; }
  int32_t chunk_of(int32_t tree) const { return made_[static_cast<size_t>(tree - ranks_ - 1)].chunk; }

 private:
  struct Node {
    int32_t left, right;
  };
  struct Made {
    Event event;
    int32_t chunk;
  };
  bool is_leaf(int32_t tree) const { return tree <= ranks_; }
  const Node& node(int32_t tree) const { return nodes_[static_cast<size_t>(tree - ranks_ - 1)]; }
  void grow();
  int32_t smallest_with_both(int32_t tree, int rank) const;

  const int32_t ranks_;
  std::vector<Node> nodes_;
  std::vector<Made> made_;
  std::vector<int32_t> table_;  // open addressing: trees, or kNothing
  std::vector<bool> proven_;    // by inner tree
  std::vector<int32_t> seen_in_;
  int32_t round_ = 0;
};

// The chunk, and what was put together for it.
struct Value {
  int32_t chunk = -1;
  int32_t tree = Trees::kNothing;
  bool operator==(const Value&) const = default;
};

class SymbolicMemory {
 public:
  // `slots` as for run_once().
  SymbolicMemory(const PlanGraph& graph, const VerifyOptions& options, bool in_place, int slots);

  // In an order in which the plan can run. After a fault it does nothing.
  void execute(int32_t program, int32_t step);
  const std::optional<Refusal>& fault() const { return fault_; }
  // What went wrong first, or is wrong in the end; `run` is complete. Without an interleaving.
  std::optional<Refusal> finish(const Run& run);
  // Out of place: whether an instruction would have read something else in place.
  bool differs_in_place() const { return differs_; }

 private:
  struct Message {
    Value value;
    int32_t sub_pipeline;
  };
  struct Here {
    int32_t program;
    int32_t step;
    const Program& tb;
    const Instruction& instruction;
  };

  Value load(const Here& here, Place place);
  Value load_input(const Here& here, Place place);
  Value take(const Here& here, int16_t connection);
  Value combine(const Here& here, Value left, Value right);
  Value fold(const Here& here, Value local);
  void store(const Here& here, Place place, Value value);
  void send(const Here& here, Value value);
  void refuse(const Here& here, Place place, const std::string& why, FaultKind kind = FaultKind::Value);
  std::optional<Refusal> check_output(const Run& run, int rank, int32_t index);
  Refusal flawed(const Run& run, int rank, int32_t index, const Trees::Finding& finding) const;
  Refusal wrong(const Run& run, int rank, int32_t index, const std::string& why) const;
  std::string who() const { return in_place_ ? "in place: " : ""; }

  const PlanGraph& graph_;
  const VerifyOptions& options_;
  const bool in_place_;
  const bool scaled_;  // what Input holds is not yet what is reduced
  const bool reducing_;
  Cells cells_;
  Trees trees_;
  std::vector<Value> memory_;
  // Messages under way: a ring a link, [first_message_[l], first_message_[l + 1]).
  std::vector<int64_t> first_message_;
  std::vector<Message> messages_;
  std::vector<int32_t> sent_;
  std::vector<int32_t> received_;
  std::vector<int32_t> final_tree_;  // by chunk
  bool differs_ = false;
  std::optional<Refusal> fault_;
};

}  // namespace theseus
