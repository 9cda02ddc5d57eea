#include <gtest/gtest.h>

#include "unit/context/simulation_run.h"

namespace theseus {
namespace {

constexpr uint64_t kSeeds = 600;
constexpr uint64_t kMostSeeds = 300;  // until a rule that is left out shows

// All rules in force: ranks never differ, nobody hangs, the newest common context is reached, nothing grows or stays.
TEST(Simulation, FindsNoViolationWithAllRules) {
  SimulationResult all;
  uint64_t killed = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const SimulationResult one = simulate(seed);
    ASSERT_EQ(one.violation, "") << "seed " << seed;
    all.requests += one.requests;
    all.agreements += one.agreements;
    all.switches += one.switches;
    all.records += one.records;
    all.messages += one.messages;
    killed += one.killed ? 1 : 0;
  }
  // What the runs are worth: enough of everything happened in them.
  EXPECT_GT(all.requests, 100 * kSeeds);
  EXPECT_GT(all.agreements, 10 * kSeeds);
  EXPECT_GT(all.switches, 10 * kSeeds);
  EXPECT_GT(all.records, 10 * kSeeds);
  EXPECT_GT(killed, kSeeds / 20);
  RecordProperty("requests", static_cast<int>(all.requests));
  RecordProperty("agreements", static_cast<int>(all.agreements));
}

// The same seed is the same run, to the last message.
TEST(Simulation, IsAFunctionOfItsSeed) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const SimulationResult a = simulate(seed), b = simulate(seed);
    EXPECT_EQ(a.requests, b.requests);
    EXPECT_EQ(a.messages, b.messages);
    EXPECT_EQ(a.switches, b.switches);
    EXPECT_EQ(a.records, b.records);
  }
}

struct Omission {
  const char* name;
  void (*omit)(SimulationRules& rules);
};

class WithoutRule : public testing::TestWithParam<Omission> {};

// Every rule is needed: without it some seed shows a violation. (A check that finds none here would find none above.)
TEST_P(WithoutRule, SomeSeedFindsAViolation) {
  SimulationRules rules;
  GetParam().omit(rules);
  uint64_t seed = 0;
  while (seed < kMostSeeds && simulate(seed, rules).violation.empty()) ++seed;
  EXPECT_LT(seed, kMostSeeds) << "no seed needs this rule";
}

INSTANTIATE_TEST_SUITE_P(
    All, WithoutRule,
    testing::Values(
        Omission{"Confirm", [](SimulationRules& r) { r.agreement.confirm = false; }},
        Omission{"InstallAtBoundary", [](SimulationRules& r) { r.agreement.install_at_boundary = false; }},
        Omission{"ContributeForPeers", [](SimulationRules& r) { r.agreement.contribute_for_peers = false; }},
        Omission{"WaitForAll", [](SimulationRules& r) { r.agreement.wait_for_all = false; }},
        Omission{"OneK", [](SimulationRules& r) { r.agreement.one_k = false; }},
        Omission{"OneTime", [](SimulationRules& r) { r.agreement.one_time = false; }},
        Omission{"NeverBackwards", [](SimulationRules& r) { r.agreement.never_backwards = false; }},
        Omission{"AppendOnly", [](SimulationRules& r) { r.append_only = false; }},
        Omission{"IdsWhenApplied", [](SimulationRules& r) { r.ids_when_applied = false; }},
        Omission{"KeepValues", [](SimulationRules& r) { r.keep_values = false; }},
        Omission{"CopyValues", [](SimulationRules& r) { r.copy_values = false; }},
        Omission{"GuardUnloading", [](SimulationRules& r) { r.guard_unloading = false; }},
        Omission{"PinOffers", [](SimulationRules& r) { r.pin_offers = false; }},
        Omission{"FoldElements", [](SimulationRules& r) { r.fold_elements = false; }},
        Omission{"FreshCommunicators", [](SimulationRules& r) { r.fresh_communicators = false; }},
        Omission{"EqualInputs", [](SimulationRules& r) { r.equal_inputs = false; }},
        Omission{"CountersStartInstalled", [](SimulationRules& r) { r.counters_start_installed = false; }},
        Omission{"CountersPerCommunicator", [](SimulationRules& r) { r.counters_per_communicator = false; }}),
    [](const testing::TestParamInfo<Omission>& info) { return info.param.name; });

}  // namespace
}  // namespace theseus
