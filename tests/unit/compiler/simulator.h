// A plain executor of plans on integers: the reference that lowering and verifier are held to. All ranks in one thread,
// TBs run in a random order, connections hold a bounded number of messages.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
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
  int slots = 2;      // ignored by reference
  bool in_place = false;
  bool by_reference = false;  // a Send passes a pointer and is over when its receiver is
  uint64_t seed = 1;
};

class Simulator {
 public:
  using Element = uint64_t;

  Simulator(const Plan& plan, const RunOptions& run)
      : plan_(plan), run_(run), random_(run.seed), space_(space_of(plan)) {
    for (const RankPlan& part : plan.rank_plans) ranks_.push_back(make_rank(part));
    const int64_t longest = piece_length(0);
    micro_batches_ = std::max<int64_t>(1, (longest + run.slot - 1) / run.slot);
  }

  // "" if every rank ended with the right data; else what went wrong.
  std::string run() {
    std::vector<std::pair<size_t, size_t>> blocks;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      for (size_t t = 0; t < ranks_[r].at.size(); ++t) {
        if (!plan_.rank_plans[r].thread_blocks[t].instructions.empty()) blocks.emplace_back(r, t);
      }
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
  };
  struct Position {
    int64_t micro_batch = 0;
    size_t step = 0;
    bool posted = false;  // by reference: waits for its receiver
    uint64_t ticket = 0;
  };
  struct Rank {
    std::vector<Element> input, output, original, scratch;
    Element* in = nullptr;
    Element* out = nullptr;
    std::vector<Position> at;
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
    rank.scratch.assign(static_cast<size_t>(part.scratch_chunks * run_.slot), 0xbeef);
    rank.at.resize(part.thread_blocks.size());
    return rank;
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

  bool finished(size_t r, size_t t) const { return ranks_[r].at[t].micro_batch >= micro_batches_; }

  bool is_over(size_t r, const Dependency& d, int64_t micro_batch) const {
    const Position& at = ranks_[r].at[static_cast<size_t>(d.tb)];
    const int64_t wanted = micro_batch - d.distance;
    if (wanted < 0) return true;
    return at.micro_batch > wanted || (at.micro_batch == wanted && at.step > static_cast<size_t>(d.step));
  }

  Key key(size_t r, int16_t id) const {
    const Connection& c = plan_.rank_plans[r].connections[static_cast<size_t>(id)];
    const int self = plan_.rank_plans[r].rank;
    return {c.outgoing ? self : c.peer, c.outgoing ? c.peer : self, c.rail, c.channel};
  }

  Element* memory(size_t r, Place place, int64_t micro_batch) {
    place_buffers(r);
    Rank& rank = ranks_[r];
    if (place.buffer == Buffer::Scratch) return rank.scratch.data() + place.index * run_.slot;
    const int64_t block = place.index / plan_.chunks_per_block;
    const int64_t piece = place.index % plan_.chunks_per_block;
    Element* base = place.buffer == Buffer::Input ? rank.in : rank.out;
    return base + block * run_.count + piece_begin(piece) + micro_batch * run_.slot;
  }

  // Elements of the micro-batch that an instruction handles. Scratch and messages know their own length.
  int64_t length_at(Place place, int64_t micro_batch) const {
    return length(place.index % plan_.chunks_per_block, micro_batch);
  }

  void advance(size_t r, size_t t) {
    Position& at = ranks_[r].at[t];
    at.posted = false;
    if (++at.step == plan_.rank_plans[r].thread_blocks[t].instructions.size()) {
      at.step = 0;
      ++at.micro_batch;
    }
  }

  // Runs the TB's next instruction; false where it must wait.
  bool step(size_t r, size_t t) {
    Position& at = ranks_[r].at[t];
    const Instruction& i = plan_.rank_plans[r].thread_blocks[t].instructions[at.step];
    if (at.posted) {
      if (released_[key(r, i.send)] < at.ticket) return false;
      advance(r, t);
      return true;
    }
    for (const Dependency& d : i.dependencies) {
      if (!is_over(r, d, at.micro_batch)) return false;
    }
    std::vector<int16_t> sources = i.fold;
    if (i.recv >= 0) sources.push_back(i.recv);
    for (const int16_t id : sources) {
      if (id != kLocalOperand && fifos_[key(r, id)].empty()) return false;
    }
    const bool sends = i.send >= 0;
    if (sends && !run_.by_reference && fifos_[key(r, i.send)].size() >= static_cast<size_t>(run_.slots)) return false;
    execute(r, i, at);
    if (!at.posted) advance(r, t);
    return true;
  }

  std::vector<Element> take(size_t r, int16_t id) {
    const Key connection = key(r, id);
    Message message = std::move(fifos_[connection].front());
    fifos_[connection].pop_front();
    ++released_[connection];
    if (message.reference == nullptr) return std::move(message.data);
    return {message.reference, message.reference + message.data.size()};
  }

  std::vector<Element> load(size_t r, Place place, int64_t micro_batch) {
    const Element* from = memory(r, place, micro_batch);
    const int64_t size =
        place.buffer == Buffer::Scratch ? scratch_length_[{r, place.index}] : length_at(place, micro_batch);
    return {from, from + size};
  }

  void store(size_t r, Place place, int64_t micro_batch, const std::vector<Element>& data) {
    if (place.buffer == Buffer::Scratch) scratch_length_[{r, place.index}] = static_cast<int64_t>(data.size());
    const int64_t size =
        place.buffer == Buffer::Scratch ? static_cast<int64_t>(data.size()) : length_at(place, micro_batch);
    Element* to = memory(r, place, micro_batch);
    for (int64_t e = 0; e < size; ++e)
      to[e] = static_cast<size_t>(e) < data.size() ? data[static_cast<size_t>(e)] : 0xbad;
  }

  static void add(std::vector<Element>& left, const std::vector<Element>& right) {
    for (size_t e = 0; e < left.size(); ++e) left[e] += e < right.size() ? right[e] : 0xbad;
  }

  void execute(size_t r, const Instruction& i, Position& at) {
    const int64_t m = at.micro_batch;
    std::vector<Element> result;
    switch (i.opcode) {
      case Opcode::Nop: return;
      case Opcode::Send:
      case Opcode::Copy: result = load(r, i.src, m); break;
      case Opcode::Recv:
      case Opcode::RecvCopySend: result = take(r, i.recv); break;
      case Opcode::RecvReduceCopy:
      case Opcode::RecvReduceSend:
      case Opcode::RecvReduceCopySend:
        result = load(r, i.src, m);
        add(result, take(r, i.recv));
        break;
      case Opcode::Reduce:
        result = load(r, i.dst, m);
        add(result, load(r, i.src, m));
        break;
      case Opcode::Fold:
        for (size_t f = 0; f < i.fold.size(); ++f) {
          std::vector<Element> operand = i.fold[f] == kLocalOperand ? load(r, i.src, m) : take(r, i.fold[f]);
          if (f == 0)
            result = std::move(operand);
          else
            add(result, operand);
        }
        break;
    }
    if (i.dst.buffer != Buffer::None) store(r, i.dst, m, result);
    if (i.send < 0) return;
    const Key connection = key(r, i.send);
    Message message{std::move(result), nullptr};
    if (run_.by_reference && i.opcode == Opcode::Send) {
      message.reference = memory(r, i.src, m);
      at.posted = true;
      at.ticket = released_[connection] + fifos_[connection].size() + 1;
    }
    fifos_[connection].push_back(std::move(message));
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
  std::map<Key, std::deque<Message>> fifos_;
  std::map<Key, uint64_t> released_;
  std::map<std::pair<size_t, int32_t>, int64_t> scratch_length_;
  int64_t micro_batches_ = 1;
};

inline std::string simulate(const Plan& plan, const RunOptions& run) { return Simulator(plan, run).run(); }

}  // namespace theseus::testing
