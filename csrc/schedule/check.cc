#include "schedule/check.h"

#include <cstdint>
#include <limits>

#include "schedule/places.h"

namespace theseus {
namespace {

constexpr int64_t kMaxIndex = std::numeric_limits<int32_t>::max();

// Which operands an opcode has.
struct Operands {
  bool recv, send, src, dst;
};

Operands operands_of(Opcode opcode) {
  switch (opcode) {
    case Opcode::Nop: return {false, false, false, false};
    case Opcode::Send: return {false, true, true, false};
    case Opcode::Recv: return {true, false, false, true};
    case Opcode::RecvCopySend: return {true, true, false, true};
    case Opcode::RecvReduceCopy: return {true, false, true, true};
    case Opcode::RecvReduceSend: return {true, true, true, false};
    case Opcode::RecvReduceCopySend: return {true, true, true, true};
    case Opcode::Copy:
    case Opcode::Reduce: return {false, false, true, true};
    case Opcode::Fold: return {false, false, false, true};  // src: only where kLocalOperand occurs
  }
  return {};
}

std::string text_of(Place place) {
  static constexpr const char* names[] = {"nothing", "Input", "Output", "Scratch"};
  if (place.buffer == Buffer::None) return names[0];
  return names[static_cast<int>(place.buffer)] + ("[" + std::to_string(place.index) + "]");
}

class PartChecker {
 public:
  PartChecker(const Plan& plan, const RankPlan& part) : plan_(plan), part_(part) {
    const BufferShape shape = buffer_shape(plan.collective, plan.ranks, plan.root, part.rank);
    input_ = static_cast<int64_t>(shape.input_blocks) * plan.chunks_per_block;
    output_ = static_cast<int64_t>(shape.output_blocks) * plan.chunks_per_block;
  }

  Status run() {
    tb_ = part_.thread_blocks.size();
    THESEUS_TRY(connections());
    for (tb_ = 0; tb_ < part_.thread_blocks.size(); ++tb_) {
      const auto& instructions = part_.thread_blocks[tb_].instructions;
      for (step_ = 0; step_ < instructions.size(); ++step_) {
        const Instruction& i = instructions[step_];
        THESEUS_TRY(instruction(i));
        if (i.sub_pipeline < (step_ > 0 ? instructions[step_ - 1].sub_pipeline : 0)) {
          return refuse(i, "goes back to sub-pipeline " + std::to_string(i.sub_pipeline));
        }
      }
    }
    return {};
  }

  // What run() refused, if it was one instruction.
  Spot refused() const {
    if (tb_ >= part_.thread_blocks.size()) return {};
    return {static_cast<int>(tb_), static_cast<int>(step_)};
  }

 private:
  Status connections() const {
    const std::string who = "plan '" + plan_.name + "', rank " + std::to_string(part_.rank) + ": ";
    if (part_.rank < 0 || part_.rank >= plan_.ranks) return Status::argument(who + "there is no such rank");
    size_t instructions = 0;
    for (const ThreadBlock& tb : part_.thread_blocks) instructions += tb.instructions.size();
    // Whoever runs the plan allocates what it asks for, so it may ask only for what it can use.
    if (part_.scratch_chunks < 0 || static_cast<size_t>(part_.scratch_chunks) > instructions) {
      return Status::argument(who + std::to_string(part_.scratch_chunks) + " scratch chunks for " +
                              std::to_string(instructions) + " instructions");
    }
    constexpr size_t limit = std::numeric_limits<int16_t>::max();
    if (part_.connections.size() > limit || part_.thread_blocks.size() > limit) {
      return Status::argument(who + "more than 32767 connections or TBs");
    }
    for (const Connection& c : part_.connections) {
      if (c.peer < 0 || c.peer >= plan_.ranks || c.peer == part_.rank || c.rail < 0 || c.channel < 0) {
        return Status::argument(who + "a connection with peer " + std::to_string(c.peer) + ", rail " +
                                std::to_string(c.rail) + ", channel " + std::to_string(c.channel));
      }
    }
    return {};
  }

  Status instruction(const Instruction& i) const {
    if (static_cast<int>(i.opcode) >= kOpcodes) return refuse(i, "there is no such opcode");
    const Operands needs = operands_of(i.opcode);
    THESEUS_TRY(port(i, i.recv, needs.recv, false, "receives"));
    THESEUS_TRY(port(i, i.send, needs.send, true, "sends"));
    const bool folds_local = i.opcode == Opcode::Fold && i.src.buffer != Buffer::None;
    THESEUS_TRY(place(i, i.src, needs.src || folds_local, "source"));
    THESEUS_TRY(place(i, i.dst, needs.dst, "destination"));
    if (i.dst.buffer == Buffer::Input) return refuse(i, "the input is not the plan's to write");
    THESEUS_TRY(fold(i));
    for (const Dependency& d : i.dependencies) {
      const bool known =
          d.tb >= 0 && static_cast<size_t>(d.tb) < part_.thread_blocks.size() && d.step >= 0 &&
          static_cast<size_t>(d.step) < part_.thread_blocks[static_cast<size_t>(d.tb)].instructions.size();
      if (!known || d.distance < 0 || d.distance > 1) {
        return refuse(i, "waits for TB " + std::to_string(d.tb) + ", step " + std::to_string(d.step) + ", distance " +
                             std::to_string(d.distance) + ", which does not exist");
      }
    }
    return {};
  }

  Status port(const Instruction& i, int16_t id, bool needed, bool is_outgoing, const char* verb) const {
    if (!needed)
      return id == -1 ? Status() : refuse(i, std::string("names a connection that it never ") + verb + " on");
    if (id < 0 || static_cast<size_t>(id) >= part_.connections.size()) {
      return refuse(i, std::string(verb) + " on connection " + std::to_string(id) + ", which does not exist");
    }
    if (part_.connections[static_cast<size_t>(id)].outgoing != is_outgoing) {
      return refuse(i, std::string(verb) + " on connection " + std::to_string(id) + ", which goes the other way");
    }
    return {};
  }

  Status place(const Instruction& i, Place p, bool needed, const char* what) const {
    if (!needed) {
      return p.buffer == Buffer::None ? Status() : refuse(i, std::string("names a ") + what + " that it does not use");
    }
    int64_t limit = 0;
    if (p.buffer == Buffer::Input) limit = input_;
    if (p.buffer == Buffer::Output) limit = output_;
    if (p.buffer == Buffer::Scratch) limit = part_.scratch_chunks;
    if (p.buffer <= Buffer::Scratch && p.index >= 0 && p.index < limit) return {};
    return refuse(i, std::string(what) + " outside of its buffer, which has " + std::to_string(limit) + " chunks");
  }

  Status fold(const Instruction& i) const {
    if (i.opcode != Opcode::Fold) return i.fold.empty() ? Status() : refuse(i, "has operands to fold, but is no Fold");
    if (i.fold.empty()) return refuse(i, "folds nothing");
    int locals = 0;
    for (size_t a = 0; a < i.fold.size(); ++a) {
      if (i.fold[a] == kLocalOperand) {
        ++locals;
        continue;
      }
      THESEUS_TRY(port(i, i.fold[a], true, false, "receives"));
    }
    const bool has_source = i.src.buffer != Buffer::None;
    if (locals != (has_source ? 1 : 0)) return refuse(i, "must fold its local source exactly once if it has one");
    return {};
  }

  Status refuse(const Instruction& i, const std::string& why) const {
    return Status::argument("plan '" + plan_.name + "', " + describe(part_.rank, tb_, step_, i) + ": " + why);
  }

  const Plan& plan_;
  const RankPlan& part_;
  int64_t input_ = 0;
  int64_t output_ = 0;
  size_t tb_ = 0;
  size_t step_ = 0;
};

}  // namespace

const char* name_of(Opcode opcode) {
  static constexpr const char* names[kOpcodes] = {
      "Nop",  "Send",   "Recv", "RecvCopySend", "RecvReduceCopy", "RecvReduceSend", "RecvReduceCopySend",
      "Copy", "Reduce", "Fold"};
  return static_cast<int>(opcode) < kOpcodes ? names[static_cast<int>(opcode)] : "unknown opcode";
}

std::string describe(int rank, size_t tb, size_t step, const Instruction& i) {
  const Place place = i.dst.buffer != Buffer::None ? i.dst : i.src;
  std::string text = "rank " + std::to_string(rank) + ", TB " + std::to_string(tb) + ", step " + std::to_string(step) +
                     " (" + name_of(i.opcode);
  if (place.buffer != Buffer::None && place.buffer <= Buffer::Scratch) text += ", chunk " + text_of(place);
  return text + ")";
}

Status check_head(const Plan& plan) {
  const std::string who = "plan '" + plan.name + "': ";
  if (static_cast<int>(plan.collective) >= kCollectives || !has_plans(plan.collective)) {
    return Status::argument(who + "its collective has no plans");
  }
  if (plan.ranks < 1) return Status::argument(who + "it has no ranks");
  if (plan.root < 0 || plan.root >= plan.ranks) return Status::argument(who + "its root is not among its ranks");
  if (static_cast<int>(plan.loop) >= kLoopOrders) return Status::argument(who + "there is no such order of loops");
  if (plan.chunks_per_block < 1) return Status::argument(who + "blocks cut into no chunks");
  const int64_t blocks = plan.collective == Collective::AllToAll ? int64_t{plan.ranks} * plan.ranks : plan.ranks;
  if (blocks > kMaxIndex / plan.chunks_per_block) return Status::argument(who + "too many chunks to number");
  return {};
}

Status check_part(const Plan& plan, const RankPlan& part, Spot* spot) {
  PartChecker checker(plan, part);
  Status status = checker.run();
  if (spot != nullptr) *spot = checker.refused();
  return status;
}

}  // namespace theseus
