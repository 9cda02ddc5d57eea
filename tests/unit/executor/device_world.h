// The ranks of a plan with device memory of their own, all of it in this process: what the CUDA executor lays out, for
// tests of device code; and the same request on the host executor, for comparison.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "compiler/flatten.h"
#include "device/kernel_abi.h"
#include "device_run.h"
#include "executor/execution.h"
#include "shm_world.h"
#include "unit/collectives.h"

namespace theseus::testing {

// What is done to a sum besides: PreMulSum's factor, of any bits; or Avg, which scales floating inputs by 1/n, and
// divides sums of integers.
enum class Factor { None, Any, Mean };

struct DeviceCase {
  CollectiveCase call;
  DataType type = DataType::Float32;
  Factor factor = Factor::None;
  device::Protocol protocol = device::Protocol::Simple;
  uint64_t seed = 0;

  bool scales() const { return factor == Factor::Any || (factor == Factor::Mean && is_floating(type)); }
  bool divides() const { return factor == Factor::Mean && !is_floating(type); }
  std::string name() const {
    const char* const factors[] = {"", ", scaled", ", mean"};
    return call.name() + " of " + name_of(type) + factors[static_cast<int>(factor)] +
           (protocol == device::Protocol::LL ? ", LL, seed " : ", seed ") + std::to_string(seed);
  }
};

// One rank's buffers as bytes, in place where the case asks for it; filled with any bits at all.
class ByteBuffers {
 public:
  ByteBuffers(const DeviceCase& test, int rank) {
    const CollectiveCase& call = test.call;
    const BufferShape shape = buffer_shape(call.collective, call.ranks, call.root, rank);
    const size_t element = size_of(test.type);
    const size_t input = static_cast<size_t>(shape.input_blocks) * call.count * element;
    output_bytes_ = static_cast<size_t>(shape.output_blocks) * call.count * element;
    const size_t own = static_cast<size_t>(rank) * call.count * element;
    const bool gathers = call.collective == Collective::AllGather || call.collective == Collective::Gather;
    const bool scatters = call.collective == Collective::ReduceScatter || call.collective == Collective::Scatter;
    const bool shared = call.in_place && input > 0 && output_bytes_ > 0;
    // Not always at the start of a vector.
    const size_t skew = test.seed % 3 * element;
    memory_.resize(2 * skew + 16 + (shared ? std::max(input, output_bytes_) : input + output_bytes_));
    input_ = skew + (shared && gathers ? own : 0);
    output_ = shared ? skew + (scatters ? own : 0) : 2 * skew + input;
    has_input_ = input > 0;
    std::mt19937_64 random(test.seed * 131 + static_cast<uint64_t>(rank));
    for (uint8_t& byte : memory_) byte = static_cast<uint8_t>(random());
  }
  const void* input() const { return has_input_ ? memory_.data() + input_ : nullptr; }
  void* output() { return output_bytes_ > 0 ? memory_.data() + output_ : nullptr; }
  size_t output_bytes() const { return output_bytes_; }
  // All of it: what lies around the output must not change either.
  const std::vector<uint8_t>& memory() const { return memory_; }

 private:
  std::vector<uint8_t> memory_;
  size_t input_ = 0, output_ = 0, output_bytes_ = 0;
  bool has_input_ = false;
};

inline uint64_t scalar_of(const DeviceCase& test) {
  std::mt19937_64 random(test.seed + 7);
  uint64_t bits = random();
  if (test.factor == Factor::Mean) reciprocal(test.type, test.call.ranks, &bits);
  return bits;
}

// What the host executor makes of it: the memory of each rank. `share_slots`: see Program; not for plans from outside.
inline std::vector<std::vector<uint8_t>> run_on_host(const DeviceCase& test, const Plan& plan, ShmWorld& world,
                                                     size_t piece_bytes, bool share_slots = true) {
  std::vector<ByteBuffers> buffers;
  std::vector<std::unique_ptr<Program>> programs;
  std::vector<std::unique_ptr<Execution>> executions;
  const uint64_t scalar = scalar_of(test);
  for (int rank = 0; rank < test.call.ranks; ++rank) buffers.emplace_back(test, rank);
  for (int rank = 0; rank < test.call.ranks; ++rank) {
    Result<std::unique_ptr<Program>> program = Program::build(plan, rank, world[rank], share_slots);
    EXPECT_TRUE(program.ok()) << program.status().message();
    programs.push_back(std::move(*program));
    executions.push_back(std::make_unique<Execution>(*programs.back()));
    Binding binding;
    binding.input = buffers[static_cast<size_t>(rank)].input();
    binding.output = buffers[static_cast<size_t>(rank)].output();
    binding.count = test.call.count;
    binding.type = test.type;
    binding.op = test.call.op;
    binding.scalar = test.scales() ? &scalar : nullptr;
    binding.piece_bytes = piece_bytes;
    binding.tag.hash = 5;
    executions.back()->start(binding);
  }
  for (size_t done = 0, turns = 0; done < executions.size() && turns < 1'000'000; ++turns) {
    done = 0;
    for (const auto& execution : executions) done += execution->advance() == Advance::Done ? 1 : 0;
  }
  std::vector<std::vector<uint8_t>> memory;
  for (ByteBuffers& each : buffers) {
    if (test.divides())
      divide_in_place(test.type, each.output(), each.output_bytes() / size_of(test.type), test.call.ranks);
    memory.push_back(each.memory());
  }
  return memory;
}

struct DeviceGeometry {
  uint32_t slots = 3;
  uint32_t slot_bytes = 256;
  uint32_t lines = 17;     // of an LL slot
  uint64_t messages = 0;   // that every connection has carried before
  bool leftovers = false;  // LL lines bear flags of messages that are to come, as from 2^32 messages ago
  bool old_words = false;  // posted words seem to be of messages that are to come, as from 40,000 messages ago
};

// Device memory of all ranks of a plan, for one request after the other.
class DeviceWorld {
 public:
  DeviceWorld(const Plan& plan, const DeviceGeometry& geometry) : plan_(plan), geometry_(geometry) {
    ranks_.resize(static_cast<size_t>(plan.ranks));
    for (const RankPlan& part : plan.rank_plans) add(part);
  }

  // The requests of all ranks, ready to launch. They stay valid until the next call.
  std::vector<device::Request>& requests(const DeviceCase& test) {
    buffers_.clear();
    requests_.clear();
    for (int rank = 0; rank < plan_.ranks; ++rank) buffers_.emplace_back(test, rank);
    for (int rank = 0; rank < plan_.ranks; ++rank) requests_.push_back(request(test, rank));
    return requests_;
  }
  std::vector<KernelLaunch> launches(emu::Entry entry, uint32_t threads) const {
    std::vector<KernelLaunch> launches;
    for (const device::Request& request : requests_) {
      const auto blocks = static_cast<uint32_t>(ranks_[launches.size()].blocks);
      launches.push_back({entry, &request, blocks, threads});
    }
    return launches;
  }
  // Of what ends an integer Avg, once the requests are done: as CudaExecution launches it. `entry` takes a Division.
  std::vector<KernelLaunch> divisions(const DeviceCase& test, emu::Entry entry) {
    divisions_.clear();
    for (ByteBuffers& each : buffers_) {
      if (each.output_bytes() == 0) continue;
      divisions_.push_back({each.output(), each.output_bytes() / size_of(test.type), test.call.ranks});
    }
    std::vector<KernelLaunch> launches;
    for (const device::Division& division : divisions_) launches.push_back({entry, &division, 2, 2});
    return launches;
  }
  std::vector<std::vector<uint8_t>> memory() const {
    std::vector<std::vector<uint8_t>> memory;
    for (const ByteBuffers& each : buffers_) memory.push_back(each.memory());
    return memory;
  }
  const std::vector<uint8_t>& memory(int rank) const { return buffers_[static_cast<size_t>(rank)].memory(); }
  uint64_t fault(int rank) const { return ranks_[static_cast<size_t>(rank)].fault; }
  void abort() {
    for (Rank& rank : ranks_) __atomic_store_n(&rank.abort, 1u, __ATOMIC_RELAXED);
  }

 private:
  struct alignas(16) Vector {
    uint8_t bytes[16] = {};
  };
  struct Connection {
    std::vector<Vector> slots, lines;
    std::vector<device::U64> posted;
    device::U64 taken = 0;
    device::Link ends[2] = {};  // sender's, receiver's
  };
  struct Rank {
    FlatProgram flat;
    std::vector<Vector> code;
    device::Program program = {};
    std::vector<device::Link*> links;
    std::vector<device::U64> finished;
    std::unique_ptr<device::Progress> progress = std::make_unique<device::Progress>();
    std::vector<Vector> scratch;
    std::vector<device::U32> scratch_lengths;
    int scratch_chunks = 0;
    size_t blocks = 0;
    device::U32 abort = 0;
    device::U64 fault = 0;
  };

  Connection& connection(int from, int to, int rail, int channel) {
    std::unique_ptr<Connection>& known = connections_[{from, to, rail, channel}];
    if (known != nullptr) return *known;
    known = std::make_unique<Connection>();
    known->slots.resize(size_t{geometry_.slots} * geometry_.slot_bytes / sizeof(Vector));
    known->lines.resize(size_t{geometry_.slots} * geometry_.lines);
    known->posted.resize(geometry_.slots);
    auto* const words = reinterpret_cast<device::U64*>(known->lines.data());
    for (size_t i = 0; geometry_.leftovers && i < 2 * known->lines.size(); ++i) {
      words[i] = (geometry_.messages + 17 + i / 2 % 3) << 32 | 0x5555;
    }
    for (size_t i = 0; geometry_.old_words && i < known->posted.size(); ++i) {
      known->posted[i] = device::posted_word(geometry_.messages - 40'000, 5, 4);
    }
    known->taken = geometry_.messages;
    for (device::Link& end : known->ends) {
      end = {
          known->slots[0].bytes, known->posted.data(), reinterpret_cast<device::U64*>(known->lines.data()),
          &known->taken,         geometry_.messages,   static_cast<device::U32>(geometry_.messages % geometry_.slots),
          geometry_.slot_bytes,  geometry_.slots,      geometry_.lines};
    }
    return *known;
  }

  void add(const RankPlan& part) {
    Rank& rank = ranks_[static_cast<size_t>(part.rank)];
    rank.flat = flatten(plan_, part);
    rank.code.resize(rank.flat.bytes() / sizeof(Vector) + 1);
    rank.program = rank.flat.place(rank.code.data(), rank.code.data());
    for (const theseus::Connection& c : part.connections) {
      Connection& connection = c.outgoing ? this->connection(part.rank, c.peer, c.rail, c.channel)
                                          : this->connection(c.peer, part.rank, c.rail, c.channel);
      rank.links.push_back(&connection.ends[c.outgoing ? 0 : 1]);
    }
    rank.blocks = part.thread_blocks.size();
    rank.finished.resize(std::max<size_t>(1, rank.blocks) * device::kFinishedStride);
    rank.progress->finished = rank.finished.data();
    rank.scratch_chunks = part.scratch_chunks;
  }

  device::Request request(const DeviceCase& test, int index) {
    Rank& rank = ranks_[static_cast<size_t>(index)];
    const size_t element = size_of(test.type);
    const auto pieces = static_cast<size_t>(plan_.chunks_per_block);
    const size_t longest = test.call.count / pieces + (test.call.count % pieces != 0 ? 1 : 0);
    device::Request request = {};
    request.input = buffers_[static_cast<size_t>(index)].input();
    request.output = buffers_[static_cast<size_t>(index)].output();
    request.links = rank.links.data();
    request.program = &rank.program;
    request.progress = rank.progress.get();
    request.abort = &rank.abort;
    request.fault = &rank.fault;
    request.count = test.call.count;
    request.chunk = test.call.count / pieces;
    request.longer = static_cast<device::U32>(test.call.count % pieces);
    request.piece = static_cast<device::U32>(piece_bytes(test) / element);
    request.micro_batches = longest == 0 ? 1 : static_cast<device::U32>((longest + request.piece - 1) / request.piece);
    request.scratch_rounds = plan_.loop == LoopOrder::SubPipelines ? request.micro_batches : 1;
    const size_t held = request.scratch_rounds > 1 ? longest : std::min<size_t>(longest, request.piece);
    request.scratch_stride = (held * element + 15) / 16 * 16;
    rank.scratch.resize(static_cast<size_t>(rank.scratch_chunks) * request.scratch_stride / sizeof(Vector) + 1);
    rank.scratch_lengths.assign(static_cast<size_t>(rank.scratch_chunks) * request.scratch_rounds + 1, 0xcdcdcdcd);
    request.scratch = rank.scratch[0].bytes;
    request.scratch_lengths = rank.scratch_lengths.data();
    scalar_ = scalar_of(test);
    const bool pointed = test.seed % 2 == 1;
    request.scalar = pointed ? 0 : scalar_;
    request.scalar_at = pointed ? &scalar_ : nullptr;
    request.tag = 5;
    request.scaling = !test.scales() ? device::Scaling::None
                      : pointed      ? device::Scaling::Pointed
                                     : device::Scaling::Immediate;
    request.type = static_cast<device::Type>(test.type);
    request.reduction = static_cast<device::Reduction>(test.call.op);
    request.protocol = test.protocol;
    return request;
  }

 public:
  size_t piece_bytes(const DeviceCase& test) const {
    return test.protocol == device::Protocol::LL ? device::longest_ll_message(geometry_.lines) : geometry_.slot_bytes;
  }

 private:
  const Plan& plan_;
  DeviceGeometry geometry_;
  std::map<std::tuple<int, int, int, int>, std::unique_ptr<Connection>> connections_;
  std::vector<Rank> ranks_;
  std::vector<ByteBuffers> buffers_;
  std::vector<device::Request> requests_;
  std::vector<device::Division> divisions_;
  uint64_t scalar_ = 0;
};

// Runs a case by `kernel` on all ranks of the plan, and again on the host: "" where both end with the same memory.
// `divide`: ends an integer Avg; null where the case is none.
inline std::string difference(const DeviceCase& test, const Plan& plan, emu::Entry kernel, DeviceWorld& world,
                              ShmWorld& host, emu::Entry divide = nullptr) {
  world.requests(test);
  const auto launches = world.launches(kernel, 1 + static_cast<uint32_t>(test.seed % 3));
  if (std::string wrong = FiberRun(test.seed).run(launches); !wrong.empty()) return test.name() + ": " + wrong;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    if (world.fault(rank) != 0) return test.name() + ": a fault on rank " + std::to_string(rank);
  }
  if (test.divides()) (void)FiberRun(test.seed).run(world.divisions(test, divide));
  const bool same = world.memory() == run_on_host(test, plan, host, world.piece_bytes(test));
  return same ? "" : test.name() + ": other bits than on the host";
}

}  // namespace theseus::testing
