// Plans that communicators on emulated GPUs load, and their results against those of the host executor.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "drivers/cuda/emu.h"
#include "gpu_ranks.h"
#include "runtime/outside_plan.h"
#include "unit/executor/device_world.h"

namespace theseus::testing {

// Bytes of the longest chunk that travels by the LL protocol.
inline constexpr size_t kLongestShortMessage = 4096;

// Ranks one after the other on all devices there are, so that few of them share one.
inline std::vector<int> spread_over_devices(int ranks) {
  std::vector<int> devices;
  for (int rank = 0; rank < ranks; ++rank) devices.push_back(rank % driver().device_count());
  return devices;
}

// A plan, whole, that all ranks of a communicator have loaded.
class GpuPlan {
 public:
  GpuPlan(GpuRanks& ranks, const Plan& plan)
      : ranks_(ranks), plan_(plan), host_(geometry_of(plan.ranks, kMaxSlots, 4096)) {
    const std::string file = serialize(plan);
    on_threads(ranks.size(), [&](int rank) {
      Result<LoadedPlan> loaded = ranks_[rank].load_plan(file);
      EXPECT_TRUE(loaded.ok()) << plan_.name << ": " << loaded.status().message();
      if (loaded.ok() && rank == 0) loaded_ = *loaded;
    });
  }

  const LoadedPlan& loaded() const { return loaded_; }

  // Runs a case on the GPUs, and `on_host` on the host: "" where memory is the same afterwards.
  std::string difference(const DeviceCase& test, const Plan& on_host) {
    std::vector<ByteBuffers> buffers;
    std::vector<std::unique_ptr<GpuMemory>> memory;
    std::vector<CollectiveCall> calls;
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      ByteBuffers& own = buffers.emplace_back(test, rank);
      memory.push_back(std::make_unique<GpuMemory>(ranks_.device(rank), own.memory().data(), own.memory().size()));
      calls.push_back(call(test, rank, own, *memory.back()));
    }
    if (Status status = ranks_.run(calls); !status.ok()) return test.name() + ": " + status.message();
    std::vector<std::vector<uint8_t>> outcome;
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      outcome.emplace_back(buffers[static_cast<size_t>(rank)].memory().size());
      memory[static_cast<size_t>(rank)]->read(outcome.back().data());
      if (test.factor == Factor::Any) EXPECT_OK(ranks_[rank].destroy_op(calls[static_cast<size_t>(rank)].op));
    }
    Plan placed = on_host;
    for (RankPlan& part : placed.rank_plans) EXPECT_OK(place_connections(part, single_host(placed.ranks)));
    const bool same = outcome == run_on_host(test, placed, host_, 4096, /*share_slots=*/false);
    return same ? "" : test.name() + ": other bits than on the host";
  }
  std::string difference(const DeviceCase& test) { return difference(test, plan_); }

 private:
  CollectiveCall call(const DeviceCase& test, int rank, ByteBuffers& buffers, GpuMemory& memory) {
    const auto there = [&](const void* at) -> void* {
      return at == nullptr ? nullptr
                           : memory.at(static_cast<size_t>(static_cast<const uint8_t*>(at) - buffers.memory().data()));
    };
    CollectiveCall call;
    call.collective = test.call.collective;
    call.send = there(buffers.input());
    call.recv = there(buffers.output());
    call.count = test.call.count;
    call.type = test.type;
    call.op = static_cast<int>(test.factor == Factor::Mean ? RedOp::Avg : test.call.op);
    call.root = test.call.root;
    call.plan = loaded_.id;
    if (test.factor != Factor::Any) return call;
    const uint64_t scalar = scalar_of(test);
    Result<int> op = ranks_[rank].create_premulsum(test.type, &scalar);
    EXPECT_TRUE(op.ok()) << op.status().message();
    if (op.ok()) call.op = *op;
    return call;
  }

  GpuRanks& ranks_;
  const Plan& plan_;
  ShmWorld host_;
  LoadedPlan loaded_;
};

}  // namespace theseus::testing
