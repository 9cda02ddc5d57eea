// The resource tree's builder for GPUs.
//
//   L0 Global     memory for Scratch and its lengths
//   L1 Schedule   the program that kernels read, uploaded; its own kernel, once that is made
//   L2 Buffer     the links of its connections
//   L3 Range      pieces, offsets, protocol; the interpreting kernel for its type and operation
//
// As on the host, connections do not depend on the user's buffer. All that a launch needs is made by the walk, so that
// the launch itself neither allocates nor waits.
#pragma once

#include <memory>
#include <string>

#include "executor/cuda_device.h"
#include "executor/cuda_kernels.h"
#include "executor/host_builder.h"
#include "resource/builder.h"
#include "resource/tree.h"

namespace theseus {

struct CudaGlobal final : Part {
  size_t bytes() const override { return sizeof *this + arena.bytes(); }
  DeviceMemory arena;
};

struct CudaSchedule final : Part {
  size_t bytes() const override { return sizeof *this + program.bytes(); }
  std::string name;  // of the plan
  std::shared_ptr<const Plan> plan;
  const RankPlan* part = nullptr;  // in `plan`
  DeviceMemory program;            // begins with a device::Program
  uint32_t blocks = 0;             // TBs
};

struct CudaLinks final : Part {
  size_t bytes() const override { return sizeof *this + pointers.bytes(); }
  DeviceMemory pointers;          // Link*, by index of RankPlan::connections
  std::vector<ProxyUse> proxied;  // those to other hosts
};

struct CudaRange final : Part {
  size_t bytes() const override { return sizeof *this; }
  device::Request request{};  // all that follows from count, type and operation
  size_t scratch_bytes = 0;
  size_t length_bytes = 0;  // of scratch_lengths, which lie behind the scratch memory
  const CudaKernel* interpreter = nullptr;
  std::shared_ptr<const CudaKernels::Generated> generated;  // null: none is wanted
};

// What a lease of a tree with a CudaBuilder holds. Valid as long as the lease.
struct CudaResources {
  const CudaGlobal* global;
  const CudaSchedule* schedule;
  const CudaLinks* links;
  const CudaRange* range;
};
CudaResources cuda_resources(const ResourceTree::Lease& lease);

class CudaBuilder final : public Builder {
 public:
  // All outlive it.
  CudaBuilder(int rank, CudaDevice& device, CudaKernels& kernels, ScheduleSource& schedules);

  Result<std::shared_ptr<Part>> build(Layer layer, const ResourceRequest& request, const Parts& above,
                                      Delta& delta) override;
  // Parts never change, so a migrated one is made anew: uploading the difference alone would not be shorter.
  Result<std::shared_ptr<Part>> migrate(Layer layer, const ResourceRequest& request, const Parts& above,
                                        const std::shared_ptr<Part>& old, bool in_use, Delta& delta) override;
  size_t arena_need(const Parts& parts) const override;
  size_t arena_size(const Part& global) const override;
  Result<std::shared_ptr<Part>> resize_arena(const std::shared_ptr<Part>& global, bool in_use, size_t bytes) override;

  // Whether this rank's part of a plan from outside can run here; opens its connections.
  Status try_out(const Plan& plan);

 private:
  Result<std::shared_ptr<Part>> schedule_part(const ResourceRequest& request, Delta& delta);
  Result<std::shared_ptr<Part>> links_part(const CudaSchedule& schedule, Delta& delta);
  Result<std::shared_ptr<Part>> range_part(const ResourceRequest& request, const CudaSchedule& schedule);
  std::shared_ptr<const CudaKernels::Generated> generate(const CudaSchedule& schedule, const PlanKernel& kernel);
  Status check_resident(const CudaSchedule& schedule, const CudaKernel& kernel) const;

  int rank_;
  CudaDevice& device_;
  CudaKernels& kernels_;
  ScheduleSource& schedules_;
};

}  // namespace theseus
