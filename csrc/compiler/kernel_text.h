// The text of kernels: what a compiler of device code is given. Pure and deterministic.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/types.h"
#include "device/kernel_abi.h"
#include "schedule/plan.h"

namespace theseus {

struct KernelText {
  std::string kernel;  // the function's name
  std::string name;    // of the text, for messages
  std::string text;
  std::vector<std::pair<std::string, std::string>> headers;  // by the name that they are included by
  std::vector<std::string> options;
  uint32_t threads = 0;       // of a TB, as the kernel likes it best
  uint32_t shared_bytes = 0;  // dynamic shared memory of a TB
};

// The kernel that interprets a device::Program. `op` is Sum, Prod, Max or Min; requests may scale their input.
KernelText interpreter_text(DataType type, RedOp op, device::Protocol protocol);
// The kernel that takes a device::Division.
KernelText division_text(DataType type);
// The kernel that takes a device::TransferRequest.
KernelText transfer_text();

// What a kernel for one plan is made for.
struct PlanKernel {
  DataType type = DataType::Float32;
  RedOp op = RedOp::Sum;  // Sum, Prod, Max, Min
  device::Protocol protocol = device::Protocol::Simple;
  bool scales = false;  // whether requests may scale their input
};
// The kernel of one rank's part of a plan: a straight program for each TB, looping over the micro-batches inside
// (ResCCL, section 3.4). Takes the same Request as the interpreting kernel, and does the same to the bit, but reads no
// Program. `part` is of `plan`, checked (schedule/check.h), and fits_kernels().
KernelText plan_text(const Plan& plan, const RankPlan& part, const PlanKernel& kernel);

// The text grows with the plan, and so does the time that it takes to compile; above so many instructions the
// interpreting kernel is the better one.
inline constexpr size_t kMostGeneratedInstructions = 256;
size_t instructions_of(const RankPlan& part);

}  // namespace theseus
