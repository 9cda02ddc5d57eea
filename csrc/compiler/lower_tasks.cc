#include "compiler/lower_tasks.h"

#include <algorithm>
#include <compare>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

namespace theseus {
namespace {

constexpr int kMostIds = std::numeric_limits<int16_t>::max();

Status too_many(int rank, const char* what) {
  return Status::argument("rank " + std::to_string(rank) + " would need more than " + std::to_string(kMostIds) + " " +
                          what);
}

}  // namespace

TaskLowering::TaskLowering(const TaskGraph& graph, const Pipeline& pipeline, const CompileOptions& options,
                           const RankEnds& ends, bool rendezvous_safe)
    : graph_(graph),
      pipeline_(pipeline),
      options_(options),
      all_(ends),
      rendezvous_safe_(rendezvous_safe),
      local_id_(ends.connections().size(), -1),
      cells_(static_cast<size_t>(graph.space.chunks())) {}

Status TaskLowering::start(int rank) {
  part_ = {};
  part_.rank = rank;
  ends_ = all_.of(rank);
  fused_ = {};
  if (options_.fuse) fused_ = fuse_ends(graph_, pipeline_, all_, ends_, options_.loop);
  THESEUS_TRY(number_connections());
  group_connections();
  find_activity();
  return {};
}

Status TaskLowering::make_room_for(int rank) {
  THESEUS_TRY(start(rank));
  most_blocks_ = std::max(most_blocks_, count_thread_blocks(share_thread_blocks(groups_, sub_pipelines_)));
  forget_chunks();
  return {};
}

Result<RankPlan> TaskLowering::run(int rank) {
  THESEUS_TRY(start(rank));
  assign_thread_blocks();
  if (ends_of_tb_.size() > static_cast<size_t>(kMostIds)) return too_many(rank, "TBs");
  add_instructions();
  copy_own_chunks();
  wait_for_scratch();
  resolve_waits();
  forget_chunks();
  return std::move(part_);
}

int16_t TaskLowering::connection(int32_t transfer) const {
  return local_id_[static_cast<size_t>(all_.connection_of(transfer))];
}

size_t TaskLowering::group_at(int32_t end) const {
  return static_cast<size_t>(group_of_[static_cast<size_t>(connection(ends_[static_cast<size_t>(end)].transfer))]);
}

int32_t TaskLowering::sub_pipeline_at(int32_t end) const {
  return pipeline_.sub_pipeline[static_cast<size_t>(ends_[static_cast<size_t>(end)].task)];
}

// Indices into RankEnds::connections, of what the end uses.
template <class Visit>
void TaskLowering::for_each_connection(int32_t end, Visit visit) const {
  const RankEnd& e = ends_[static_cast<size_t>(end)];
  visit(all_.connection_of(e.transfer));
  if (e.sends != 0) return;
  const auto transfers = static_cast<int32_t>(graph_.transfers.size());
  for (int32_t i = e.transfer + 1; i < transfers && graph_.joins_previous(i); ++i) visit(all_.connection_of(i));
  if (fused_.any && fused_.send_of[static_cast<size_t>(end)] >= 0) {
    visit(all_.connection_of(ends_[static_cast<size_t>(fused_.send_of[static_cast<size_t>(end)])].transfer));
  }
}

// Numbered from the next rank upwards, so that ranks that walk their connections in order do not all meet at one peer.
Status TaskLowering::number_connections() {
  std::vector<int32_t> used;
  for (int32_t end = 0; end < static_cast<int32_t>(ends_.size()); ++end) {
    for_each_connection(end, [&](int32_t id) {
      if (std::exchange(local_id_[static_cast<size_t>(id)], int16_t{0}) < 0) used.push_back(id);
    });
  }
  const int ranks = graph_.space.ranks;
  const auto key = [&](int32_t id) {
    const RankEnds::Pair& p = all_.connections()[static_cast<size_t>(id)];
    const bool is_incoming = p.dst == part_.rank;
    const int peer = is_incoming ? p.src : p.dst;
    return std::tuple(is_incoming, (peer - part_.rank + ranks) % ranks, p.rail, p.channel);
  };
  std::sort(used.begin(), used.end(), [&](int32_t a, int32_t b) { return key(a) < key(b); });
  const bool fits = used.size() <= static_cast<size_t>(kMostIds);
  for (const int32_t id : used) {
    const RankEnds::Pair& p = all_.connections()[static_cast<size_t>(id)];
    const bool is_outgoing = p.src == part_.rank;
    local_id_[static_cast<size_t>(id)] = fits ? static_cast<int16_t>(part_.connections.size()) : int16_t{-1};
    part_.connections.push_back({is_outgoing ? p.dst : p.src, is_outgoing, p.rail, p.channel});
  }
  return fits ? Status() : too_many(part_.rank, "connections");
}

// Connections that meet in an instruction belong together.
void TaskLowering::group_connections() {
  std::vector<int16_t> parent(part_.connections.size());
  std::iota(parent.begin(), parent.end(), int16_t{0});
  const auto find = [&](int16_t id) {
    while (parent[static_cast<size_t>(id)] != id) {
      int16_t& above = parent[static_cast<size_t>(id)];
      id = above = parent[static_cast<size_t>(above)];
    }
    return id;
  };
  for (int32_t end = 0; end < static_cast<int32_t>(ends_.size()); ++end) {
    int16_t first = -1;
    for_each_connection(end, [&](int32_t id) {
      const int16_t root = find(local_id_[static_cast<size_t>(id)]);
      if (first >= 0 && root != first) parent[static_cast<size_t>(std::max(root, first))] = std::min(root, first);
      first = first < 0 ? root : std::min(root, first);
    });
  }
  groups_.clear();
  group_of_.assign(parent.size(), -1);
  for (size_t id = 0; id < parent.size(); ++id) {
    const auto root = static_cast<size_t>(find(static_cast<int16_t>(id)));
    if (group_of_[root] < 0) {
      group_of_[root] = static_cast<int16_t>(groups_.size());
      groups_.emplace_back();
    }
    group_of_[id] = group_of_[root];
    groups_[static_cast<size_t>(group_of_[id])].connections.push_back(static_cast<int16_t>(id));
  }
}

// Only those sub-pipelines count in which this rank does something.
void TaskLowering::find_activity() {
  sub_pipelines_ = 0;
  int32_t last = -1;
  for (int32_t end = 0; end < static_cast<int32_t>(ends_.size()); ++end) {
    if (is_fused(end)) continue;
    const int32_t now = sub_pipeline_at(end);
    if (std::exchange(last, now) != now) ++sub_pipelines_;
    ConnectionGroup& group = groups_[group_at(end)];
    if (group.active.empty() || group.active.back() != sub_pipelines_ - 1) group.active.push_back(sub_pipelines_ - 1);
    group.between_hosts |= graph_.between_hosts[ends_[static_cast<size_t>(end)].task] != 0;
  }
}

void TaskLowering::assign_thread_blocks() {
  const bool by_state = options_.scheduling != Scheduling::StageLevel;
  if (by_state && options_.allocation == TbAllocation::StateBased) {
    tb_of_ = share_thread_blocks(groups_, sub_pipelines_);
  } else if (by_state && options_.allocation == TbAllocation::StateBasedEven) {
    tb_of_ = spread_thread_blocks(groups_, sub_pipelines_, most_blocks_);
  } else if (by_state && options_.allocation == TbAllocation::StateBasedApart) {
    tb_of_ = part_thread_blocks(groups_, sub_pipelines_);
  } else {
    tb_of_.resize(groups_.size());
    std::iota(tb_of_.begin(), tb_of_.end(), 0);
  }
  ends_of_tb_.resize(static_cast<size_t>(count_thread_blocks(tb_of_)));
  for (auto& list : ends_of_tb_) list.clear();
  seats_.assign(ends_.size(), {});
  for (int32_t end = 0; end < static_cast<int32_t>(ends_.size()); ++end) {
    if (is_fused(end)) continue;
    const auto tb = static_cast<size_t>(tb_of_[group_at(end)]);
    seats_[static_cast<size_t>(end)] = {static_cast<int16_t>(tb), static_cast<int32_t>(ends_of_tb_[tb].size())};
    ends_of_tb_[tb].push_back(end);
  }
}

void TaskLowering::add_instructions() {
  part_.thread_blocks.resize(ends_of_tb_.size());
  for (size_t tb = 0; tb < ends_of_tb_.size(); ++tb) {
    part_.thread_blocks[tb].instructions.reserve(ends_of_tb_[tb].size());
  }
  waits_.clear();
  readers_.clear();
  sent_now_ = sent_before_ = {};
  first_wait_.assign(1, 0);
  for (int32_t end = 0; end < static_cast<int32_t>(ends_.size()); ++end) {
    const RankEnd& e = ends_[static_cast<size_t>(end)];
    if (const Seat seat = seats_[static_cast<size_t>(end)]; seat.tb >= 0) {
      Instruction& instruction = part_.thread_blocks[static_cast<size_t>(seat.tb)].instructions.emplace_back();
      instruction.sub_pipeline = pipeline_.sub_pipeline[static_cast<size_t>(e.task)];
      if (e.sends != 0) {
        add_send(end, instruction);
      } else {
        add_receive(end, instruction);
      }
    }
    first_wait_.push_back(static_cast<int32_t>(waits_.size()));
  }
}

void TaskLowering::add_send(int32_t end, Instruction& instruction) {
  const RankEnd& e = ends_[static_cast<size_t>(end)];
  const int32_t chunk = graph_.transfer(e.transfer).chunk;
  instruction.opcode = Opcode::Send;
  instruction.send = connection(e.transfer);
  instruction.src = place(graph_.ends[static_cast<size_t>(e.transfer)].src, chunk);
  read(chunk, end);
  if (options_.stagger) stagger(end);
}

// See CompileOptions::stagger.
void TaskLowering::stagger(int32_t end) {
  const int32_t now = sub_pipeline_at(end);
  if (graph_.between_hosts[ends_[static_cast<size_t>(end)].task] == 0) {
    if (sent_now_.sub_pipeline == now) return;
    sent_before_ = std::exchange(sent_now_, {now, end});
    return;
  }
  const Sent& before = sent_now_.sub_pipeline == now ? sent_before_ : sent_now_;
  if (before.end >= 0) waits_.push_back({end, before.end});
}

void TaskLowering::add_receive(int32_t end, Instruction& instruction) {
  const RankEnd& e = ends_[static_cast<size_t>(end)];
  const int32_t chunk = graph_.transfer(e.transfer).chunk;
  const TransferEnds& ends = graph_.ends[static_cast<size_t>(e.transfer)];
  const int32_t send = fused_.any ? fused_.send_of[static_cast<size_t>(end)] : -1;
  const bool keeps = send < 0 || fused_.keeps[static_cast<size_t>(end)] != 0;
  set_operands(e, instruction);
  if (ends.local != Buffer::None) {
    instruction.src = place(ends.local, chunk);
    read(chunk, end);
  }
  if (keeps) {
    write(chunk, end, ends.dst);
    instruction.dst = place(ends.dst, chunk);
  }
  if (send < 0) return;
  instruction.send = connection(ends_[static_cast<size_t>(send)].transfer);
  instruction.opcode = ends.local == Buffer::None ? Opcode::RecvCopySend
                       : keeps                    ? Opcode::RecvReduceCopySend
                                                  : Opcode::RecvReduceSend;
}

void TaskLowering::set_operands(const RankEnd& end, Instruction& instruction) const {
  const auto transfers = static_cast<int32_t>(graph_.transfers.size());
  const auto ends_at = [&](int32_t i) -> const TransferEnds& { return graph_.ends[static_cast<size_t>(i)]; };
  const bool has_local = ends_at(end.transfer).local != Buffer::None;
  const bool is_fold = end.transfer + 1 < transfers && graph_.joins_previous(end.transfer + 1);
  if (!is_fold) {
    instruction.opcode = has_local ? Opcode::RecvReduceCopy : Opcode::Recv;
    instruction.recv = connection(end.transfer);
    instruction.recv_is_left = has_local && !ends_at(end.transfer).local_before;
    return;
  }
  instruction.opcode = Opcode::Fold;
  bool local_is_in = false;
  for (int32_t i = end.transfer; i < transfers && (i == end.transfer || graph_.joins_previous(i)); ++i) {
    if (ends_at(i).local_before) {
      instruction.fold.push_back(kLocalOperand);
      local_is_in = true;
    }
    instruction.fold.push_back(connection(i));
  }
  if (has_local && !local_is_in) instruction.fold.push_back(kLocalOperand);
}

TaskLowering::Cell& TaskLowering::cell(int32_t chunk) { return cells_[static_cast<size_t>(chunk)]; }

Place TaskLowering::place(Buffer buffer, int32_t chunk) {
  if (buffer == Buffer::Input) return graph_.space.input(part_.rank, chunk);
  if (buffer == Buffer::Output) return graph_.space.output(part_.rank, chunk);
  int32_t& index = cell(chunk).scratch;
  if (index < 0) index = part_.scratch_chunks++;
  return {Buffer::Scratch, index};
}

void TaskLowering::read(int32_t chunk, int32_t end) {
  Cell& c = cell(chunk);
  if (c.writer < 0 && c.reader < 0) touched_.push_back(chunk);
  if (c.writer >= 0) waits_.push_back({end, c.writer});
  readers_.push_back({end, c.reader});
  c.reader = static_cast<int32_t>(readers_.size()) - 1;
}

// Who reads waits for the last write, so who waits for a reader has waited for that write too.
void TaskLowering::write(int32_t chunk, int32_t end, Buffer dst) {
  Cell& c = cell(chunk);
  if (c.writer < 0 && c.reader < 0) touched_.push_back(chunk);
  const bool was_input = dst == Buffer::Scratch && c.writer < 0;  // what was read so far is another place
  if (!was_input) {
    if (c.reader < 0 && c.writer >= 0) waits_.push_back({end, c.writer});
    for (int32_t r = c.reader; r >= 0; r = readers_[static_cast<size_t>(r)].previous) {
      if (readers_[static_cast<size_t>(r)].end != end) waits_.push_back({end, readers_[static_cast<size_t>(r)].end});
    }
  }
  if (c.writer < 0) c.first_writer = end;
  c.writer = end;
  c.reader = -1;
}

// An idle one that only receives, and serves no other host if there is such a one; else one of its own. A peer waits
// for what a TB does not send meanwhile, but what is sent to a TB waits in a slot.
int16_t TaskLowering::thread_block_for_copies() {
  struct Load {
    bool sends = false, between_hosts = false;
    int32_t time = 0;
    auto operator<=>(const Load&) const = default;
  };
  std::vector<Load> load(ends_of_tb_.size());
  for (size_t tb = 0; tb < load.size(); ++tb) {
    for (const int32_t end : ends_of_tb_[tb]) {
      const RankEnd& e = ends_[static_cast<size_t>(end)];
      const bool leaves = graph_.between_hosts[e.task] != 0;
      load[tb].sends |= e.sends != 0 || (fused_.any && fused_.send_of[static_cast<size_t>(end)] >= 0);
      load[tb].between_hosts |= leaves;
      load[tb].time += leaves ? kBetweenHosts : kInsideHost;
    }
  }
  const auto idlest = std::min_element(load.begin(), load.end());
  const bool is_full = load.size() == static_cast<size_t>(kMostIds);
  if (idlest == load.end() || (idlest->sends && !is_full)) {
    part_.thread_blocks.emplace_back();
    return static_cast<int16_t>(load.size());
  }
  return static_cast<int16_t>(idlest - load.begin());
}

// Output chunks that nobody sends: they are input of this rank, and need a copy where the call is not in place. A TB
// does that before it waits for what it receives. In place, source and destination are one; but a reduction may scale
// its input, and then the copy waits for who sends that, at the end of its TB.
void TaskLowering::copy_own_chunks() {
  const ChunkSpace& space = graph_.space;
  const BufferShape shape = buffer_shape(space.collective, space.ranks, space.root, part_.rank);
  const int outputs = shape.output_blocks * space.chunks_per_block;
  const bool may_scale = is_reducing(space.collective);
  std::vector<Instruction> copies;
  int16_t tb = -1;
  for (int index = 0; index < outputs; ++index) {
    const Place output{Buffer::Output, index};
    const int32_t chunk = space.chunk_at(part_.rank, output);
    const Place input = space.input(part_.rank, chunk);
    if (input.buffer == Buffer::None || cell(chunk).writer >= 0) continue;
    if (tb < 0) tb = thread_block_for_copies();
    Instruction& copy = copies.emplace_back();
    copy.opcode = Opcode::Copy;
    copy.src = input;
    copy.dst = output;
    if (may_scale) wait_for_readers(chunk, tb, copy);
  }
  if (copies.empty()) return;
  auto& list = part_.thread_blocks[static_cast<size_t>(tb)].instructions;
  int32_t now = list.empty() ? 0 : may_scale ? list.back().sub_pipeline : list.front().sub_pipeline;
  for (Instruction& copy : copies) copy.sub_pipeline = now = std::max(now, copy.sub_pipeline);
  list.insert(may_scale ? list.end() : list.begin(), copies.begin(), copies.end());
  if (may_scale || static_cast<size_t>(tb) == ends_of_tb_.size()) return;
  for (const int32_t end : ends_of_tb_[static_cast<size_t>(tb)]) {
    seats_[static_cast<size_t>(end)].step += static_cast<int32_t>(copies.size());
  }
}

// Readers are listed from the last to the first, so the first of a TB that comes up is the one to wait for.
void TaskLowering::wait_for_readers(int32_t chunk, int16_t tb, Instruction& copy) {
  for (int32_t r = cell(chunk).reader; r >= 0; r = readers_[static_cast<size_t>(r)].previous) {
    const auto end = static_cast<size_t>(readers_[static_cast<size_t>(r)].end);
    const Seat on = seats_[end];
    copy.sub_pipeline = std::max(copy.sub_pipeline, pipeline_.sub_pipeline[ends_[end].task]);
    const auto known = [&](const Dependency& d) { return d.tb == on.tb; };
    if (on.tb == tb || std::any_of(copy.dependencies.begin(), copy.dependencies.end(), known)) continue;
    copy.dependencies.push_back({on.tb, 0, on.step});
  }
  std::sort(copy.dependencies.begin(), copy.dependencies.end(),
            [](const Dependency& a, const Dependency& b) { return a.tb < b.tb; });
}

// Scratch serves every micro-batch: its first write waits for the last uses in the one before.
void TaskLowering::wait_for_scratch() {
  scratch_waits_.clear();
  if (options_.loop == LoopOrder::SubPipelines) return;
  for (const int32_t chunk : touched_) {
    const Cell& c = cell(chunk);
    if (c.scratch < 0 || c.first_writer < 0) continue;
    if (c.reader < 0) scratch_waits_.push_back({c.first_writer, c.writer});
    for (int32_t r = c.reader; r >= 0; r = readers_[static_cast<size_t>(r)].previous) {
      scratch_waits_.push_back({c.first_writer, readers_[static_cast<size_t>(r)].end});
    }
  }
  std::stable_sort(scratch_waits_.begin(), scratch_waits_.end(),
                   [](const Wait& a, const Wait& b) { return a.waiter < b.waiter; });
}

// Turns waits into dependencies, without those that program order or an earlier wait of the same TB implies. What a TB
// waits for in one micro-batch is, to the next, a thing of the past.
void TaskLowering::resolve_waits() {
  waited_now_.resize(ends_of_tb_.size());
  waited_before_.resize(ends_of_tb_.size());
  const std::span<const Wait> waits(waits_);
  const std::span<const Wait> scratch(scratch_waits_);
  const auto by_waiter = [](const Wait& wait, int32_t end) { return wait.waiter < end; };
  for (size_t tb = 0; tb < ends_of_tb_.size(); ++tb) {
    std::fill(waited_now_.begin(), waited_now_.end(), -1);
    for (const int32_t end : ends_of_tb_[tb]) {
      const auto first = static_cast<size_t>(first_wait_[static_cast<size_t>(end)]);
      const auto last = static_cast<size_t>(first_wait_[static_cast<size_t>(end) + 1]);
      resolve(static_cast<int16_t>(tb), end, waits.subspan(first, last - first), 0);
    }
    if (scratch.empty()) continue;
    waited_before_ = waited_now_;
    for (const int32_t end : ends_of_tb_[tb]) {
      const auto first = std::lower_bound(scratch.begin(), scratch.end(), end, by_waiter);
      const auto last = std::lower_bound(first, scratch.end(), end + 1, by_waiter);
      resolve(static_cast<int16_t>(tb), end, {first, last}, 1);
    }
  }
}

void TaskLowering::resolve(int16_t tb, int32_t end, std::span<const Wait> waits, int16_t distance) {
  if (waits.empty()) return;
  auto& waited = distance == 0 ? waited_now_ : waited_before_;
  const Seat seat = seats_[static_cast<size_t>(end)];
  auto& dependencies =
      part_.thread_blocks[static_cast<size_t>(tb)].instructions[static_cast<size_t>(seat.step)].dependencies;
  for (const Wait& wait : waits) {
    const Seat on = seats_[static_cast<size_t>(wait.on)];
    // A TB goes on after it has passed a reference, so even its own order does not tell when that was read.
    const bool may_refer = rendezvous_safe_ && ends_[static_cast<size_t>(wait.on)].sends != 0;
    if (on.tb == tb && !may_refer) continue;
    if (waited[static_cast<size_t>(on.tb)] >= on.step) continue;
    waited[static_cast<size_t>(on.tb)] = on.step;
    std::erase_if(dependencies, [&](const Dependency& d) { return d.tb == on.tb && d.distance == distance; });
    dependencies.push_back({on.tb, distance, on.step});
  }
  std::sort(dependencies.begin(), dependencies.end(), [](const Dependency& a, const Dependency& b) {
    return a.tb != b.tb ? a.tb < b.tb : a.distance < b.distance;
  });
}

void TaskLowering::forget_chunks() {
  for (const int32_t chunk : touched_) cell(chunk) = {};
  touched_.clear();
  for (int32_t end = 0; end < static_cast<int32_t>(ends_.size()); ++end) {
    for_each_connection(end, [&](int32_t id) { local_id_[static_cast<size_t>(id)] = -1; });
  }
}

}  // namespace theseus
