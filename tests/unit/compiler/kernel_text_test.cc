// Kernel text: the same for the same plan, for ever (tests/golden/kernels), and safe whatever the plan is called. That
// it computes the right thing is tested where it is run (tests/unit/executor/device_kernel_test.cc).
//
// THESEUS_UPDATE_GOLDEN=1 writes the files anew; look at the difference before you commit it.
#include "compiler/kernel_text.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "compiler/compile.h"
#include "compiler/registry.h"

namespace theseus {
namespace {

const std::filesystem::path kGolden =
    std::filesystem::path(__FILE__).parent_path().parent_path().parent_path() / "golden" / "kernels";

Plan plan_of(const char* algorithm, Collective collective, int ranks, const CompileOptions& options) {
  const Topology topology = single_host(ranks);
  Result<Algorithm> built = build(algorithm, collective, topology);
  EXPECT_TRUE(built.ok()) << built.status().message();
  Result<Plan> plan = compile(*built, topology, options);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return std::move(*plan);
}

void expect_golden(const std::string& name, const std::string& text) {
  const std::filesystem::path path = kGolden / name;
  if (std::getenv("THESEUS_UPDATE_GOLDEN") != nullptr) std::ofstream(path) << text;
  std::ifstream file(path);
  ASSERT_TRUE(file.good()) << path << " is missing; THESEUS_UPDATE_GOLDEN=1 writes it";
  const std::string golden{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(text, golden) << "THESEUS_UPDATE_GOLDEN=1 accepts it";
}

TEST(KernelText, OfARingIsAStraightProgram) {
  const Plan plan = plan_of("ring", Collective::AllReduce, 3, {});
  expect_golden("ring_all_reduce_3.cu", plan_text(plan, plan.rank_plans[1], {}).text);
}

TEST(KernelText, OfSubPipelinesHasALoopForEach) {
  CompileOptions options;
  options.loop = LoopOrder::SubPipelines;
  const Plan plan = plan_of("one_shot", Collective::AllReduce, 3, options);
  const PlanKernel kernel{DataType::Bfloat16, RedOp::Max, device::Protocol::LL, true};
  expect_golden("one_shot_all_reduce_3_ll.cu", plan_text(plan, plan.rank_plans[0], kernel).text);
}

// What an image on disk is found by must not miss anything that the kernel depends on.
TEST(KernelText, DiffersWhereKernelsDo) {
  const Plan plan = plan_of("ring", Collective::AllReduce, 3, {});
  const Plan other = plan_of("ring", Collective::ReduceScatter, 3, {});
  std::set<std::string> texts;
  size_t count = 0;
  const auto add = [&](const KernelText& text) { texts.insert(text.text), ++count; };
  for (const DataType type : {DataType::Float32, DataType::Float8e4m3}) {
    for (const RedOp op : {RedOp::Sum, RedOp::Min}) {
      for (const auto protocol : {device::Protocol::Simple, device::Protocol::LL}) {
        add(interpreter_text(type, op, protocol));
        for (const bool scales : {false, true}) add(plan_text(plan, plan.rank_plans[0], {type, op, protocol, scales}));
      }
    }
  }
  add(plan_text(plan, plan.rank_plans[1], {}));
  add(plan_text(other, other.rank_plans[0], {}));
  for (int type = 0; type <= static_cast<int>(DataType::Uint64); ++type) {
    add(division_text(static_cast<DataType>(type)));
  }
  EXPECT_EQ(texts.size(), count);
  EXPECT_EQ(plan_text(plan, plan.rank_plans[0], {}).text, plan_text(plan, plan.rank_plans[0], {}).text);
}

// A plan's name comes from outside, and must stay inside the comment that it is put in.
TEST(KernelText, KeepsNamesInsideTheComment) {
  Plan plan = plan_of("ring", Collective::AllReduce, 2, {});
  const std::string before = plan_text(plan, plan.rank_plans[0], {}).text;
  plan.name = "x\nint y;\\\n?\?/";
  const std::string after = plan_text(plan, plan.rank_plans[0], {}).text;
  EXPECT_EQ(after.substr(after.find('\n')), before.substr(before.find('\n')));
  EXPECT_EQ(after.substr(0, after.find('\n')).find_first_of("\\?;"), std::string::npos);
}

// The compiler of device code finds every header by the name that it is included by.
TEST(KernelText, BringsItsHeaders) {
  const KernelText text = interpreter_text(DataType::Float32, RedOp::Sum, device::Protocol::Simple);
  std::set<std::string> names;
  for (const auto& [name, header] : text.headers) names.insert(name);
  EXPECT_EQ(names.size(), text.headers.size());
  for (const auto& [name, header] : text.headers) {
    for (size_t at = 0; (at = header.find("#include \"", at)) != std::string::npos; ++at) {
      const size_t begin = at + 10;
      const std::string included = header.substr(begin, header.find('"', begin) - begin);
      EXPECT_TRUE(names.contains(included) || included == "drivers/cuda/emu_device.h") << name << ": " << included;
    }
  }
}

}  // namespace
}  // namespace theseus
