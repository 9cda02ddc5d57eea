#include "compiler/rank_lowering.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

namespace theseus {

RankLowering::RankLowering(const ChunkedTransfers& grouped, int rank)
    : grouped_(grouped), rank_(rank), lowest_(static_cast<size_t>(grouped.space.ranks), -1) {
  plan_.rank = rank;
}

Result<RankPlan> RankLowering::run() {
  find_connections();
  if (plan_.connections.size() > static_cast<size_t>(std::numeric_limits<int16_t>::max()) - 1) {
    return Status::argument("rank " + std::to_string(rank_) + " would need " +
                            std::to_string(plan_.connections.size()) + " connections; a plan holds at most 32766");
  }
  for (int chunk = 0; chunk < grouped_.space.chunks(); ++chunk) THESEUS_TRY(lower_chunk(chunk));
  assign_thread_blocks();
  order_instructions();
  resolve_waits();
  number_scratch();
  return std::move(plan_);
}

size_t RankLowering::slot(bool is_outgoing, int peer, int rail) const {
  const auto row = static_cast<size_t>(is_outgoing ? peer : peer + grouped_.space.ranks);
  return row * static_cast<size_t>(grouped_.rails) + static_cast<size_t>(rail);
}

// Numbered from the next rank upwards, so that ranks that walk their connections in order do not all meet at one peer.
void RankLowering::find_connections() {
  const int ranks = grouped_.space.ranks;
  connection_id_.assign(2 * static_cast<size_t>(ranks) * static_cast<size_t>(grouped_.rails), -1);
  for (const Transfer& t : grouped_.transfers) {
    if (t.src == rank_) connection_id_[slot(true, t.dst, t.rail)] = 0;
    if (t.dst == rank_) connection_id_[slot(false, t.src, t.rail)] = 0;
  }
  for (const bool is_outgoing : {true, false}) {
    for (int offset = 1; offset < ranks; ++offset) {
      const int peer = (rank_ + offset) % ranks;
      for (int rail = 0; rail < grouped_.rails; ++rail) {
        int16_t& id = connection_id_[slot(is_outgoing, peer, rail)];
        if (id < 0) continue;
        id = static_cast<int16_t>(plan_.connections.size());
        plan_.connections.push_back({peer, is_outgoing, static_cast<int16_t>(rail), 0});
      }
    }
  }
}

Status RankLowering::lower_chunk(int chunk) {
  const ChunkSpace& space = grouped_.space;
  set_holders(chunk);
  place_ = space.input(rank_, chunk);
  user_.clear();
  scratch_.clear();
  const Transfer* begin = grouped_.transfers.data() + grouped_.first[static_cast<size_t>(chunk)];
  const Transfer* const end = grouped_.transfers.data() + grouped_.first[static_cast<size_t>(chunk) + 1];
  while (begin != end) {
    const Transfer* step_end = begin;
    while (step_end != end && step_end->step == begin->step) ++step_end;
    THESEUS_TRY(lower_step(begin, step_end));
    begin = step_end;
  }
  finish_chunk(chunk);
  return {};
}

// Where a chunk has one owner, only those whom the previous chunk reached need to be reset.
void RankLowering::set_holders(int chunk) {
  const int owner = grouped_.space.owner(chunk);
  if (owner < 0) {
    std::iota(lowest_.begin(), lowest_.end(), 0);
    return;
  }
  if (chunk > 0) {
    lowest(grouped_.space.owner(chunk - 1)) = -1;
    for (int32_t i = grouped_.first[static_cast<size_t>(chunk) - 1]; i < grouped_.first[static_cast<size_t>(chunk)];
         ++i) {
      lowest(grouped_.transfers[static_cast<size_t>(i)].dst) = -1;
    }
  }
  lowest(owner) = owner;
}

// Sends read what earlier steps left, so they come before what arrives in the same step.
Status RankLowering::lower_step(const Transfer* begin, const Transfer* end) {
  THESEUS_TRY(check_step(begin, end));
  arrivals_.clear();
  for (const Transfer* t = begin; t != end; ++t) {
    if (t->src == rank_) add_send(*t);
    if (t->dst == rank_) arrivals_.push_back(t);
  }
  if (!arrivals_.empty()) add_arrivals(begin->chunk, begin->step);
  advance_holders(begin, end);
  return {};
}

Status RankLowering::check_step(const Transfer* begin, const Transfer* end) {
  for (const Transfer* t = begin; t != end; ++t) {
    if (lowest(t->src) < 0) {
      return Status::argument(describe(*t) + ": rank " + std::to_string(t->src) + " does not hold that chunk yet");
    }
    const bool is_twice = t != begin && t[-1].src == t->src && t[-1].dst == t->dst;
    if (is_twice) return Status::argument(describe(*t) + " occurs twice");
  }
  if (end - begin == 1) return {};
  // A copy must be the only arrival of its step. advanced_ serves as the list of (receiver, is copy) here.
  advanced_.clear();
  for (const Transfer* t = begin; t != end; ++t) advanced_.emplace_back(t->dst, t->op == TransferOp::Copy ? 1 : 0);
  std::sort(advanced_.begin(), advanced_.end());
  for (size_t i = 1; i < advanced_.size(); ++i) {
    if (advanced_[i].first == advanced_[i - 1].first && advanced_[i].second == 1) {
      return Status::argument("chunk " + std::to_string(begin->chunk) + " at step " + std::to_string(begin->step) +
                              ": rank " + std::to_string(advanced_[i].first) +
                              " receives a copy beside another transfer; which one stays is undefined");
    }
  }
  return {};
}

void RankLowering::add_send(const Transfer& transfer) {
  Draft draft;
  draft.kind = Kind::Send;
  draft.step = transfer.step;
  draft.chunk = transfer.chunk;
  draft.instruction.opcode = Opcode::Send;
  draft.instruction.send = outgoing(transfer);
  draft.instruction.src = place_;
  read(cell_of(place_), add(std::move(draft)));
}

void RankLowering::add_arrivals(int chunk, int step) {
  const bool is_reduce = arrivals_[0]->op == TransferOp::Reduce;
  const bool has_local = is_reduce && place_.buffer != Buffer::None;
  Draft draft;
  draft.kind = Kind::Receive;
  draft.step = step;
  draft.chunk = chunk;
  Instruction& instruction = draft.instruction;
  if (has_local) instruction.src = place_;
  instruction.dst = grouped_.space.output(rank_, chunk);
  if (instruction.dst.buffer == Buffer::None) instruction.dst = {Buffer::Scratch, chunk};
  if (arrivals_.size() == 1) {
    instruction.opcode = has_local ? Opcode::RecvReduceCopy : Opcode::Recv;
    instruction.recv = incoming(*arrivals_[0]);
    instruction.recv_is_left = has_local && lowest(arrivals_[0]->src) < lowest(rank_);
  } else {
    instruction.opcode = Opcode::Fold;
    std::vector<std::pair<int32_t, int16_t>> operands;
    if (has_local) operands.emplace_back(lowest(rank_), kLocalOperand);
    for (const Transfer* t : arrivals_) operands.emplace_back(lowest(t->src), incoming(*t));
    std::sort(operands.begin(), operands.end());
    for (const auto& [contributor, operand] : operands) instruction.fold.push_back(operand);
  }
  if (!has_local) close_version(false);  // a version that is read here has more than one way out
  const Place dst = instruction.dst;
  const int32_t index = add(std::move(draft));
  if (has_local) read(cell_of(place_), index);
  write(cell_of(dst), index);
  place_ = dst;
}

void RankLowering::close_version(bool is_final) {
  if (!grouped_.fusable || place_.buffer == Buffer::None) return;
  Cell& cell = cell_of(place_);
  if (cell.writer < 0 || cell.readers.size() != 1) return;
  Draft& way_in = drafts_[static_cast<size_t>(cell.writer)];
  Draft& way_out = drafts_[static_cast<size_t>(cell.readers[0])];
  if (way_out.kind != Kind::Send || way_out.step != way_in.step + 1) return;
  Instruction& fused = way_in.instruction;
  if (fused.opcode == Opcode::Recv) {
    fused.opcode = Opcode::RecvCopySend;
  } else if (fused.opcode == Opcode::RecvReduceCopy) {
    const bool keeps = is_final && place_.buffer == Buffer::Output;
    fused.opcode = keeps ? Opcode::RecvReduceCopySend : Opcode::RecvReduceSend;
    if (!keeps) fused.dst = {};
    if (!keeps && scratch_.first_writer == cell.writer) scratch_.first_writer = -1;
  } else {
    return;
  }
  fused.send = way_out.instruction.send;
  way_out.dead = true;
  cell.readers[0] = cell.writer;
}

void RankLowering::finish_chunk(int chunk) {
  const Place output = grouped_.space.output(rank_, chunk);
  close_version(true);
  if (place_.buffer == Buffer::Input && output.buffer == Buffer::Output) {
    Draft draft;
    draft.chunk = chunk;
    draft.instruction.opcode = Opcode::Copy;
    draft.instruction.src = place_;
    draft.instruction.dst = output;
    add(std::move(draft));  // waits for nobody: in place, source and destination are one
  }
  // Scratch serves every micro-batch: its first write waits for the last uses in the one before.
  if (scratch_.first_writer < 0) return;
  for (const int32_t reader : scratch_.readers) waits_.push_back({scratch_.first_writer, reader, 1});
  waits_.push_back({scratch_.first_writer, scratch_.writer, 1});
}

void RankLowering::advance_holders(const Transfer* begin, const Transfer* end) {
  advanced_.clear();
  for (const Transfer* t = begin; t != end; ++t) advanced_.emplace_back(t->dst, lowest(t->src));
  const Transfer* t = begin;
  for (const auto& [receiver, contributor] : advanced_) {
    int32_t& held = lowest(receiver);
    const bool is_reduce = (t++)->op == TransferOp::Reduce;
    held = is_reduce && held >= 0 ? std::min(held, contributor) : contributor;
  }
}

int32_t RankLowering::add(Draft draft) {
  drafts_.push_back(std::move(draft));
  return static_cast<int32_t>(drafts_.size()) - 1;
}

void RankLowering::read(Cell& cell, int32_t draft) {
  if (cell.writer >= 0) waits_.push_back({draft, cell.writer, 0});
  cell.readers.push_back(draft);
}

void RankLowering::write(Cell& cell, int32_t draft) {
  for (const int32_t reader : cell.readers) {
    if (reader != draft) waits_.push_back({draft, reader, 0});
  }
  if (cell.writer >= 0) waits_.push_back({draft, cell.writer, 0});
  if (cell.first_writer < 0) cell.first_writer = draft;
  cell.writer = draft;
  cell.readers.clear();
}

// Connections that meet in an instruction share a TB; the rest have one each. Copies come last.
void RankLowering::assign_thread_blocks() {
  std::vector<int16_t> parent(plan_.connections.size());
  std::iota(parent.begin(), parent.end(), int16_t{0});
  const auto find = [&](int16_t id) {
    while (parent[static_cast<size_t>(id)] != id) id = parent[static_cast<size_t>(id)];
    return id;
  };
  const auto unite = [&](int16_t a, int16_t b) {
    if (a < 0 || b < 0) return;
    const auto [low, high] = std::minmax({find(a), find(b)});
    parent[static_cast<size_t>(high)] = low;
  };
  for (const Draft& draft : drafts_) {
    if (draft.dead) continue;
    unite(draft.instruction.recv, draft.instruction.send);
    for (const int16_t operand : draft.instruction.fold) {
      unite(operand, *std::max_element(draft.instruction.fold.begin(), draft.instruction.fold.end()));
    }
  }
  std::vector<int32_t> tb_of(plan_.connections.size(), -1);
  int32_t blocks = 0;
  for (size_t id = 0; id < tb_of.size(); ++id) {
    const auto root = static_cast<size_t>(find(static_cast<int16_t>(id)));
    if (tb_of[root] < 0) tb_of[root] = blocks++;
    tb_of[id] = tb_of[root];
  }
  bool has_local = false;
  for (Draft& draft : drafts_) {
    const Instruction& i = draft.instruction;
    int16_t connection = std::max(i.recv, i.send);
    for (const int16_t operand : i.fold) connection = std::max(connection, operand);
    draft.tb = connection < 0 ? blocks : tb_of[static_cast<size_t>(connection)];
    has_local |= connection < 0;
  }
  programs_.resize(static_cast<size_t>(blocks) + (has_local ? 1 : 0));
}

void RankLowering::order_instructions() {
  // (step, chunk, send before receive); where instructions are fused, a send counts with the receive it would follow.
  const bool fusable = grouped_.fusable;
  const auto key = [&](const Draft& draft) {
    const bool is_send = draft.kind == Kind::Send;
    const int64_t step = fusable && is_send ? draft.step - 1 : draft.step;
    const int64_t late = is_send == fusable ? 1 : 0;
    return std::tuple(step, draft.chunk, late);
  };
  for (size_t i = 0; i < drafts_.size(); ++i) {
    if (!drafts_[i].dead) programs_[static_cast<size_t>(drafts_[i].tb)].push_back(static_cast<int32_t>(i));
  }
  for (auto& program : programs_) {
    std::sort(program.begin(), program.end(), [&](int32_t a, int32_t b) {
      return key(drafts_[static_cast<size_t>(a)]) < key(drafts_[static_cast<size_t>(b)]);
    });
    for (size_t i = 0; i < program.size(); ++i) {
      drafts_[static_cast<size_t>(program[i])].position = static_cast<int32_t>(i);
    }
  }
}

// Turns waits into dependencies, without those that program order or an earlier wait of the same TB implies.
void RankLowering::resolve_waits() {
  std::stable_sort(waits_.begin(), waits_.end(), [](const Wait& a, const Wait& b) { return a.waiter < b.waiter; });
  std::vector<size_t> first(drafts_.size() + 1, 0);
  for (const Wait& wait : waits_) ++first[static_cast<size_t>(wait.waiter) + 1];
  for (size_t i = 0; i + 1 < first.size(); ++i) first[i + 1] += first[i];

  std::vector<int32_t> waited_now(programs_.size());
  std::vector<int32_t> waited_before(programs_.size());
  plan_.thread_blocks.resize(programs_.size());
  for (size_t tb = 0; tb < programs_.size(); ++tb) {
    std::fill(waited_now.begin(), waited_now.end(), -1);
    std::fill(waited_before.begin(), waited_before.end(), -1);
    // Two rounds: what this TB waits for in one micro-batch is, to the next, a thing of the past.
    for (const int16_t distance : {int16_t{0}, int16_t{1}}) {
      if (distance == 1) {
        for (size_t i = 0; i < programs_.size(); ++i) waited_before[i] = waited_now[i];
      }
      for (const int32_t index : programs_[tb]) {
        auto& dependencies = drafts_[static_cast<size_t>(index)].instruction.dependencies;
        for (size_t w = first[static_cast<size_t>(index)]; w < first[static_cast<size_t>(index) + 1]; ++w) {
          const Draft& on = drafts_[static_cast<size_t>(waits_[w].on)];
          if (waits_[w].distance != distance || on.dead || on.tb == static_cast<int32_t>(tb)) continue;
          int32_t& waited = (distance == 0 ? waited_now : waited_before)[static_cast<size_t>(on.tb)];
          if (waited >= on.position) continue;
          waited = on.position;
          const auto same = [&](const Dependency& d) { return d.tb == on.tb && d.distance == distance; };
          std::erase_if(dependencies, same);
          dependencies.push_back({static_cast<int16_t>(on.tb), distance, on.position});
        }
        std::sort(dependencies.begin(), dependencies.end(), [](const Dependency& a, const Dependency& b) {
          return a.tb != b.tb ? a.tb < b.tb : a.distance < b.distance;
        });
      }
    }
    auto& instructions = plan_.thread_blocks[tb].instructions;
    for (const int32_t index : programs_[tb]) {
      instructions.push_back(std::move(drafts_[static_cast<size_t>(index)].instruction));
    }
  }
}

// Until here a Scratch place is named by its chunk; only those in use get an index.
void RankLowering::number_scratch() {
  std::vector<int32_t> index(static_cast<size_t>(grouped_.space.chunks()), -1);
  for (ThreadBlock& block : plan_.thread_blocks) {
    for (Instruction& instruction : block.instructions) {
      for (Place* place : {&instruction.src, &instruction.dst}) {
        if (place->buffer != Buffer::Scratch) continue;
        int32_t& known = index[static_cast<size_t>(place->index)];
        if (known < 0) known = plan_.scratch_chunks++;
        place->index = known;
      }
    }
  }
}

}  // namespace theseus
