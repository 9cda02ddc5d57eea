#include <algorithm>
#include <string>

#include "compiler/cells.h"
#include "compiler/symbolic.h"
#include "schedule/places.h"

namespace theseus {
namespace {

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// A symbolic value: which chunk and micro-batch, whose contributions, and a hash of how they were combined.
struct Value {
  int32_t chunk = -1;  // -1: never written
  int32_t micro_batch = 0;
  uint64_t expression = 0;
  std::vector<uint64_t> contributors;  // a bit per rank
};

class Interpreter {
 public:
  Interpreter(const PlanGraph& graph, bool in_place)
      : graph_(graph),
        plan_(graph.plan()),
        space_(space_of(plan_)),
        in_place_(in_place),
        cells_(plan_, graph.micro_batches(), in_place),
        memory_(static_cast<size_t>(cells_.total())),
        sent_(static_cast<size_t>(graph.events())) {
    fill_inputs();
  }

  Status run(const std::vector<Event>& order, bool equal_bits) {
    for (const Event event : order) THESEUS_TRY(execute(event));
    return check_outputs(equal_bits);
  }

 private:
  int chunks(int blocks) const { return blocks * plan_.chunks_per_block; }

  void fill_inputs() {
    const size_t words = static_cast<size_t>(plan_.ranks + 63) / 64;
    for (int rank = 0; rank < plan_.ranks; ++rank) {
      const BufferShape shape = buffer_shape(plan_.collective, plan_.ranks, plan_.root, rank);
      for (int index = 0; index < chunks(shape.input_blocks); ++index) {
        const Place place{Buffer::Input, index};
        for (int micro_batch = 0; micro_batch < graph_.micro_batches(); ++micro_batch) {
          Value& value = at(rank, micro_batch, place);
          value.chunk = space_.chunk_at(rank, place);
          value.micro_batch = micro_batch;
          value.expression = mix(static_cast<uint64_t>(rank) + 1);
          value.contributors.assign(words, 0);
          value.contributors[static_cast<size_t>(rank) / 64] |= uint64_t{1} << (rank % 64);
        }
      }
    }
  }

  Value& at(int rank, int micro_batch, Place place) {
    return memory_[static_cast<size_t>(cells_.cell(rank, micro_batch, place))];
  }

  Status execute(Event event) {
    const Site& site = graph_.site(graph_.site_of(event));
    const Instruction& i = *site.instruction;
    const int micro_batch = graph_.micro_batch_of(event);
    Value local;
    if (i.src.buffer != Buffer::None) {
      local = at(site.rank, micro_batch, i.src);
      THESEUS_TRY(check_read(event, local));
    }
    std::vector<Value> arrived;
    graph_.for_each_sender(event, [&](Event sender) {
      // A message is read once; its value need not be kept.
      arrived.push_back(std::move(sent_[static_cast<size_t>(sender)]));
    });
    for (const Value& value : arrived) THESEUS_TRY(check_read(event, value));
    Value result;
    switch (i.opcode) {
      case Opcode::Nop: return {};
      case Opcode::Send:
      case Opcode::Copy: result = std::move(local); break;
      case Opcode::Recv:
      case Opcode::RecvCopySend: result = std::move(arrived[0]); break;
      case Opcode::RecvReduceCopy:
      case Opcode::RecvReduceSend:
      case Opcode::RecvReduceCopySend:
        result = i.recv_is_left ? std::move(arrived[0]) : local;
        THESEUS_TRY(combine(event, result, i.recv_is_left ? local : arrived[0]));
        break;
      case Opcode::Reduce:
        result = at(site.rank, micro_batch, i.dst);
        THESEUS_TRY(check_read(event, result));
        THESEUS_TRY(combine(event, result, local));
        break;
      case Opcode::Fold: THESEUS_TRY(fold(event, i, local, arrived, result)); break;
    }
    if (i.dst.buffer != Buffer::None) at(site.rank, micro_batch, i.dst) = result;
    if (i.send >= 0) sent_[static_cast<size_t>(event)] = std::move(result);
    return {};
  }

  Status fold(Event event, const Instruction& i, const Value& local, std::vector<Value>& arrived, Value& result) {
    size_t next = 0;
    for (size_t f = 0; f < i.fold.size(); ++f) {
      const Value& operand = i.fold[f] == kLocalOperand ? local : arrived[next++];
      if (f == 0) {
        result = operand;
      } else {
        THESEUS_TRY(combine(event, result, operand));
      }
    }
    return {};
  }

  Status check_read(Event event, const Value& value) const {
    if (value.chunk < 0) return refuse(event, "reads what nothing has written");
    if (value.micro_batch != graph_.micro_batch_of(event)) {
      return refuse(event, "reads a value of micro-batch " + std::to_string(value.micro_batch));
    }
    return {};
  }

  Status combine(Event event, Value& left, const Value& right) const {
    if (left.chunk != right.chunk) {
      return refuse(event,
                    "combines chunk " + std::to_string(left.chunk) + " with chunk " + std::to_string(right.chunk));
    }
    for (size_t w = 0; w < left.contributors.size(); ++w) {
      if (const uint64_t both = left.contributors[w] & right.contributors[w]; both != 0) {
        const int rank = static_cast<int>(64 * w) + __builtin_ctzll(both);
        return refuse(event, "counts the contribution of rank " + std::to_string(rank) + " to chunk " +
                                 std::to_string(left.chunk) + " twice");
      }
      left.contributors[w] |= right.contributors[w];
    }
    left.expression = mix(left.expression * 3 + mix(right.expression));
    return {};
  }

  Status check_outputs(bool equal_bits) {
    std::vector<uint64_t> expression(static_cast<size_t>(space_.chunks()), 0);
    for (int rank = 0; rank < plan_.ranks; ++rank) {
      const BufferShape shape = buffer_shape(plan_.collective, plan_.ranks, plan_.root, rank);
      for (int index = 0; index < chunks(shape.output_blocks); ++index) {
        for (int micro_batch = 0; micro_batch < graph_.micro_batches(); ++micro_batch) {
          const Place place{Buffer::Output, index};
          const Value& value = at(rank, micro_batch, place);
          THESEUS_TRY(check_output(rank, index, micro_batch, value));
          uint64_t& known = expression[static_cast<size_t>(value.chunk)];
          if (known == 0) known = value.expression;
          if (equal_bits && known != value.expression) {
            return wrong(rank, index, "is reduced in another order than on a lower rank, so its bits may differ");
          }
        }
      }
    }
    return {};
  }

  Status check_output(int rank, int index, int micro_batch, const Value& value) const {
    const int chunk = space_.chunk_at(rank, {Buffer::Output, index});
    if (value.chunk < 0) return wrong(rank, index, "is never written");
    if (value.chunk != chunk || value.micro_batch != micro_batch) {
      return wrong(
          rank, index,
          "ends with chunk " + std::to_string(value.chunk) + " of micro-batch " + std::to_string(value.micro_batch));
    }
    for (int contributor = 0; contributor < plan_.ranks; ++contributor) {
      const bool is_in = (value.contributors[static_cast<size_t>(contributor) / 64] >> (contributor % 64) & 1) != 0;
      if (is_in == space_.contributes(contributor, chunk)) continue;
      return wrong(rank, index,
                   std::string(is_in ? "holds" : "lacks") + " the contribution of rank " + std::to_string(contributor));
    }
    return {};
  }

  Status wrong(int rank, int index, const std::string& why) const {
    const std::string where = "plan '" + plan_.name + "'" + (in_place_ ? ", in place" : "") + ": rank " +
                              std::to_string(rank) + ", chunk Output[" + std::to_string(index) + "] ";
    return Status::argument(where + why + last_writer(rank, index));
  }

  // Which instruction to look at first.
  std::string last_writer(int rank, int index) const {
    int32_t writer = -1;
    for (const Program& program : graph_.programs()) {
      if (program.rank != rank) continue;
      for (int32_t s = program.site; s < program.site + program.length; ++s) {
        const Place dst = graph_.site(s).instruction->dst;
        if (dst.buffer == Buffer::Output && dst.index == index) writer = s;
      }
    }
    return writer < 0 ? "; no instruction writes it" : "; written by " + graph_.describe(writer);
  }

  Status refuse(Event event, const std::string& why) const {
    return Status::argument("plan '" + plan_.name + "'" + (in_place_ ? ", in place" : "") + ": " +
                            graph_.describe(graph_.site_of(event)) + " " + why);
  }

  const PlanGraph& graph_;
  const Plan& plan_;
  ChunkSpace space_;
  bool in_place_;
  Cells cells_;
  std::vector<Value> memory_;
  std::vector<Value> sent_;
};

}  // namespace

Status check_values(const PlanGraph& graph, const std::vector<Event>& order, bool in_place, bool equal_bits) {
  return Interpreter(graph, in_place).run(order, equal_bits);
}

}  // namespace theseus
