// A plain executor of plans on integers: the reference that lowering and verifier are held to. All ranks in one thread,
// TBs run in a random order, connections hold a bounded number of messages. (resccl/interpret.py sees more: it tracks
// where data comes from, and finds races even where they do no harm. This one is fast.)
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "schedule/places.h"
#include "schedule/plan.h"

namespace theseus::testing {

struct RunOptions {
  int64_t count = 7;  // elements of a block
  int64_t slot = 2;   // elements of a micro-batch of a piece
  int slots = 2;      // 0: every send is over, and its TB goes on, when its receiver is over
  bool in_place = false;
  bool by_reference = false;  // a Send passes a pointer; its TB goes on, but it is over when its receiver has it
  uint64_t seed = 1;
};

class Simulator {
 public:
  using Element = uint64_t;

  Simulator(const Plan& plan, const RunOptions& run)
      : plan_(plan), run_(run), random_(run.seed), space_(space_of(plan)) {
    const int64_t longest = piece_length(0);
    micro_batches_ = std::max<int64_t>(1, (longest + run.slot - 1) / run.slot);
    for (const RankPlan& part : plan.rank_plans) ranks_.push_back(make_rank(part));
  }

  // "" if every rank ended with the right data; else what went wrong.
  std::string run() {
    std::vector<std::pair<size_t, size_t>> blocks;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      for (size_t t = 0; t < ranks_[r].blocks.size(); ++t) blocks.emplace_back(r, t);
    }
    while (!blocks.empty()) {
      std::shuffle(blocks.begin(), blocks.end(), random_);
      bool progressed = false;
      for (const auto& [r, t] : blocks) {
        // Bursts of random length, so that some TBs run far ahead of others.
        for (uint64_t burst = random_() % 4 + 1; burst > 0 && !finished(r, t) && step(r, t); --burst) progressed = true;
      }
      std::erase_if(blocks, [&](const auto& b) { return finished(b.first, b.second); });
      if (!progressed) return "deadlock";
    }
    for (const auto& [key, fifo] : fifos_) {
      if (!fifo.empty()) return "a message was left over";
    }
    return check();
  }

 private:
  struct Message {
    std::vector<Element> data;
    const Element* reference = nullptr;
    bool over = false;  // received
  };
  using MessagePointer = std::shared_ptr<Message>;
  struct Turn {
    int64_t micro_batch;
    size_t step;
  };
  // A TB under way.
  struct Position {
    std::vector<Turn> turns;   // all that it runs, in the order of Plan::loop
    std::vector<size_t> turn;  // the inverse, by step * micro-batches + micro-batch
    size_t next = 0;
    MessagePointer posted;              // without slots: what it waits for ...
    std::vector<MessagePointer> taken;  // ... and what is over when that is
    std::deque<std::pair<size_t, MessagePointer>> references;
  };
  struct Rank {
    std::vector<Element> input, output, original, scratch;
    Element* in = nullptr;
    Element* out = nullptr;
    std::vector<Position> blocks;
  };
  using Key = std::tuple<int, int, int, int>;

  Rank make_rank(const RankPlan& part) {
    const BufferShape shape = buffer_shape(plan_.collective, plan_.ranks, plan_.root, part.rank);
    Rank rank;
    const auto size = [&](int blocks) { return static_cast<size_t>(blocks * run_.count); };
    rank.input.resize(size(shape.input_blocks));
    for (size_t i = 0; i < rank.input.size(); ++i) rank.input[i] = value(part.rank, static_cast<int64_t>(i));
    rank.original = rank.input;
    rank.output.assign(size(shape.output_blocks), 0xdead);
    rank.scratch.assign(static_cast<size_t>(part.scratch_chunks * scratch_rounds() * run_.slot), 0xbeef);
    for (const ThreadBlock& block : part.thread_blocks) rank.blocks.push_back(make_position(block));
    return rank;
  }

  // Under SubPipelines, Scratch holds whole chunks.
  int64_t scratch_rounds() const { return plan_.loop == LoopOrder::SubPipelines ? micro_batches_ : 1; }

  Position make_position(const ThreadBlock& block) const {
    Position position;
    const auto& list = block.instructions;
    position.turn.resize(list.size() * static_cast<size_t>(micro_batches_));
    for (size_t begin = 0; begin < list.size();) {
      size_t end = list.size();
      if (plan_.loop == LoopOrder::SubPipelines) {
        end = begin + 1;
        while (end < list.size() && list[end].sub_pipeline == list[begin].sub_pipeline) ++end;
      }
      for (int64_t m = 0; m < micro_batches_; ++m) {
        for (size_t step = begin; step < end; ++step) {
          position.turn[turn_index(step, m)] = position.turns.size();
          position.turns.push_back({m, step});
        }
      }
      begin = end;
    }
    return position;
  }
  size_t turn_index(size_t step, int64_t micro_batch) const {
    return step * static_cast<size_t>(micro_batches_) + static_cast<size_t>(micro_batch);
  }

  // Pointers are taken lazily: ranks_ moves while it is filled.
  void place_buffers(size_t r) {
    Rank& rank = ranks_[r];
    if (rank.in != nullptr || rank.out != nullptr) return;
    rank.in = rank.input.data();
    rank.out = rank.output.data();
    if (!run_.in_place || rank.input.empty() || rank.output.empty()) return;
    const bool shrinks = rank.output.size() < rank.input.size();
    const bool grows = rank.output.size() > rank.input.size();
    const auto offset = static_cast<ptrdiff_t>(r) * run_.count;
    if (shrinks) {
      rank.out = rank.in + offset;
    } else {
      std::copy(rank.input.begin(), rank.input.end(), rank.out + (grows ? offset : 0));
      rank.in = rank.out + (grows ? offset : 0);
    }
  }

  static Element value(int rank, int64_t index) {
    uint64_t x = (static_cast<uint64_t>(rank) + 1) * 0x9E3779B97F4A7C15ull +
                 static_cast<uint64_t>(index) * 0xD1B54A32D192ED03ull;
    return (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9ull;
  }

  int64_t piece_length(int64_t piece) const {
    const int64_t k = plan_.chunks_per_block;
    return run_.count / k + (piece < run_.count % k ? 1 : 0);
  }
  int64_t piece_begin(int64_t piece) const {
    const int64_t k = plan_.chunks_per_block;
    return piece * (run_.count / k) + std::min(piece, run_.count % k);
  }
  int64_t length(int64_t piece, int64_t micro_batch) const {
    return std::clamp<int64_t>(piece_length(piece) - micro_batch * run_.slot, 0, run_.slot);
  }

  bool finished(size_t r, size_t t) const {
    const Position& at = ranks_[r].blocks[t];
    return at.next == at.turns.size();
  }

  // Turns of a TB that are over, from its first; none beyond a reference that is still in use.
  static size_t turns_over(Position& at) {
    while (!at.references.empty() && at.references.front().second->over) at.references.pop_front();
    return at.references.empty() ? at.next : at.references.front().first;
  }

  bool is_over(size_t r, const Dependency& d, int64_t micro_batch) {
    Position& at = ranks_[r].blocks[static_cast<size_t>(d.tb)];
    const int64_t wanted = micro_batch - d.distance;
    return wanted < 0 || turns_over(at) > at.turn[turn_index(static_cast<size_t>(d.step), wanted)];
  }

  Key key(size_t r, int16_t id) const {
    const Connection& c = plan_.rank_plans[r].connections[static_cast<size_t>(id)];
    const int self = plan_.rank_plans[r].rank;
    return {c.outgoing ? self : c.peer, c.outgoing ? c.peer : self, c.rail, c.channel};
  }

  Element* memory(size_t r, Place place, int64_t micro_batch) {
    place_buffers(r);
    Rank& rank = ranks_[r];
    if (place.buffer == Buffer::Scratch) {
      const int64_t round = scratch_rounds() > 1 ? micro_batch : 0;
      return rank.scratch.data() + (place.index * scratch_rounds() + round) * run_.slot;
    }
    const int64_t block = place.index / plan_.chunks_per_block;
    const int64_t piece = place.index % plan_.chunks_per_block;
    Element* base = place.buffer == Buffer::Input ? rank.in : rank.out;
    return base + block * run_.count + piece_begin(piece) + micro_batch * run_.slot;
  }

  // Elements of the micro-batch that an instruction handles. Scratch and messages know their own length.
  int64_t length_at(Place place, int64_t micro_batch) const {
    return length(place.index % plan_.chunks_per_block, micro_batch);
  }

  // Runs the TB's next instruction; false where it must wait.
  bool step(size_t r, size_t t) {
    Position& at = ranks_[r].blocks[t];
    if (at.posted != nullptr) return false;
    const auto [micro_batch, step] = at.turns[at.next];
    const Instruction& i = plan_.rank_plans[r].thread_blocks[t].instructions[step];
    for (const Dependency& d : i.dependencies) {
      if (!is_over(r, d, micro_batch)) return false;
    }
    std::vector<int16_t> sources = i.fold;
    if (i.recv >= 0) sources.push_back(i.recv);
    for (const int16_t id : sources) {
      if (id != kLocalOperand && fifos_[key(r, id)].empty()) return false;
    }
    const auto slots = static_cast<size_t>(run_.slots);
    if (i.send >= 0 && slots > 0 && fifos_[key(r, i.send)].size() >= slots) return false;
    at.taken.clear();
    execute(r, i, micro_batch, at);
    if (at.posted == nullptr) finish(at);
    return true;
  }

  void finish(Position& at) {
    ++at.next;
    at.posted = nullptr;
    for (const MessagePointer& message : std::vector(at.taken)) {
      message->over = true;
      if (run_.slots > 0) continue;
      for (Rank& rank : ranks_) {
        for (Position& other : rank.blocks) {
          if (other.posted == message) finish(other);
        }
      }
    }
  }

  std::vector<Element> take(size_t r, int16_t id, Position& at) {
    auto& fifo = fifos_[key(r, id)];
    const MessagePointer message = fifo.front();
    fifo.pop_front();
    at.taken.push_back(message);
    if (message->reference == nullptr) return message->data;
    return {message->reference, message->reference + message->data.size()};
  }

  int64_t& scratch_length(size_t r, Place place, int64_t micro_batch) {
    return scratch_length_[{r, place.index, scratch_rounds() > 1 ? micro_batch : 0}];
  }

  std::vector<Element> load(size_t r, Place place, int64_t micro_batch) {
    const Element* from = memory(r, place, micro_batch);
    const int64_t size =
        place.buffer == Buffer::Scratch ? scratch_length(r, place, micro_batch) : length_at(place, micro_batch);
    return {from, from + size};
  }

  void store(size_t r, Place place, int64_t micro_batch, const std::vector<Element>& data) {
    if (place.buffer == Buffer::Scratch) scratch_length(r, place, micro_batch) = static_cast<int64_t>(data.size());
    const int64_t size =
        place.buffer == Buffer::Scratch ? static_cast<int64_t>(data.size()) : length_at(place, micro_batch);
    Element* to = memory(r, place, micro_batch);
    for (int64_t e = 0; e < size; ++e)
      to[e] = static_cast<size_t>(e) < data.size() ? data[static_cast<size_t>(e)] : 0xbad;
  }

  static void add(std::vector<Element>& left, const std::vector<Element>& right) {
    for (size_t e = 0; e < left.size(); ++e) left[e] += e < right.size() ? right[e] : 0xbad;
  }

  void execute(size_t r, const Instruction& i, int64_t m, Position& at) {
    std::vector<Element> result;
    switch (i.opcode) {
      case Opcode::Nop: return;
      case Opcode::Send:
      case Opcode::Copy: result = load(r, i.src, m); break;
      case Opcode::Recv:
      case Opcode::RecvCopySend: result = take(r, i.recv, at); break;
      case Opcode::RecvReduceCopy:
      case Opcode::RecvReduceSend:
      case Opcode::RecvReduceCopySend:
        result = load(r, i.src, m);
        add(result, take(r, i.recv, at));
        break;
      case Opcode::Reduce:
        result = load(r, i.dst, m);
        add(result, load(r, i.src, m));
        break;
      case Opcode::Fold:
        for (size_t f = 0; f < i.fold.size(); ++f) {
          std::vector<Element> operand = i.fold[f] == kLocalOperand ? load(r, i.src, m) : take(r, i.fold[f], at);
          if (f == 0)
            result = std::move(operand);
          else
            add(result, operand);
        }
        break;
    }
    if (i.dst.buffer != Buffer::None) store(r, i.dst, m, result);
    if (i.send < 0) return;
    const auto message = std::make_shared<Message>();
    message->data = std::move(result);
    if (i.opcode == Opcode::Send && (run_.by_reference || run_.slots == 0)) {
      message->reference = memory(r, i.src, m);
      at.references.emplace_back(at.next, message);
    }
    if (run_.slots == 0) at.posted = message;
    fifos_[key(r, i.send)].push_back(message);
  }

  std::string check() {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      place_buffers(r);
      const BufferShape shape = buffer_shape(plan_.collective, plan_.ranks, plan_.root, static_cast<int>(r));
      for (int index = 0; index < shape.output_blocks * plan_.chunks_per_block; ++index) {
        if (std::string wrong = check_chunk(r, index); !wrong.empty()) return wrong;
      }
      if (!run_.in_place && ranks_[r].input != ranks_[r].original)
        return "rank " + std::to_string(r) + ": input changed";
    }
    return "";
  }

  std::string check_chunk(size_t r, int index) {
    const int chunk = space_.chunk_at(static_cast<int>(r), {Buffer::Output, index});
    const int64_t piece = index % plan_.chunks_per_block;
    const Element* got = memory(r, {Buffer::Output, index}, 0);
    for (int64_t e = 0; e < piece_length(piece); ++e) {
      Element want = 0;
      for (int rank = 0; rank < plan_.ranks; ++rank) {
        const Place place = space_.input(rank, chunk);
        if (place.buffer == Buffer::None) continue;
        want += value(rank, place.index / plan_.chunks_per_block * run_.count + piece_begin(piece) + e);
      }
      if (got[e] != want) {
        return "rank " + std::to_string(r) + ", Output[" + std::to_string(index) + "], element " + std::to_string(e) +
               " is wrong";
      }
    }
    return "";
  }

  const Plan& plan_;
  RunOptions run_;
  std::mt19937_64 random_;
  ChunkSpace space_;
  std::vector<Rank> ranks_;
  std::map<Key, std::deque<MessagePointer>> fifos_;
  std::map<std::tuple<size_t, int32_t, int64_t>, int64_t> scratch_length_;
  int64_t micro_batches_ = 1;
};

inline std::string simulate(const Plan& plan, const RunOptions& run) { return Simulator(plan, run).run(); }

}  // namespace theseus::testing
