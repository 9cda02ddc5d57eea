#include "observe/tte_samples.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace theseus {
namespace {

// Requests that are `each` ns apart and take `took(id)` ns to execute, as Communicator::Impl runs them.
template <class Took>
std::vector<uint32_t> play(TteSamples& samples, uint64_t requests, uint64_t each, Took took) {
  std::vector<uint32_t> taken;
  uint64_t now = 1;
  for (uint64_t id = 1; id <= requests; ++id, now += each) {
    if (id < samples.next()) continue;
    EXPECT_EQ(id, samples.next()) << "a request was passed over";
    samples.begin(id, now);
    samples.end(static_cast<uint32_t>(id), now + took(id));
    taken.push_back(took(id));
  }
  return taken;
}

TEST(TteSamples, QuantilesAreThoseOfTheNewestSamples) {
  TteSamples samples;
  EXPECT_EQ(samples.quantiles().samples, 0u);
  EXPECT_EQ(samples.quantiles().p99_ns, 0u);
  std::vector<uint32_t> taken =
      play(samples, 20000, 10'000'000, [](uint64_t id) { return static_cast<uint32_t>((id * 7919) % 100'000); });
  ASSERT_GT(taken.size(), TteSamples::kKept);
  EXPECT_EQ(samples.quantiles().samples, taken.size());
  taken.erase(taken.begin(), taken.end() - TteSamples::kKept);
  std::sort(taken.begin(), taken.end());
  EXPECT_EQ(samples.quantiles().p50_ns, taken[(taken.size() - 1) / 2]);
  EXPECT_EQ(samples.quantiles().p99_ns, taken[(taken.size() - 1) * 99 / 100]);
}

// However many requests a second there are, few of them are timed; where they are rare, most are.
TEST(TteSamples, FollowTheRateOfRequests) {
  const auto quick = [](uint64_t) { return 100u; };
  TteSamples busy;
  const size_t of_million = play(busy, 1'000'000, 2'000, quick).size();  // two seconds
  EXPECT_LT(of_million, 1000u);
  EXPECT_GT(of_million, 50u);
  TteSamples idle;
  EXPECT_EQ(play(idle, 1000, 100'000'000, quick).size(), 1000u);
}

// An event at every hundredth request is met about as often as it occurs, though it comes at a fixed distance.
TEST(TteSamples, ARareEventIsSeenInProportion) {
  TteSamples samples;
  const auto slow_at_times = [](uint64_t id) { return id % 100 == 0 ? 5000u : 100u; };
  const std::vector<uint32_t> taken = play(samples, 20'000'000, 20'000, slow_at_times);
  ASSERT_GT(taken.size(), 10'000u);
  const double share =
      static_cast<double>(std::count(taken.begin(), taken.end(), 5000u)) / static_cast<double>(taken.size());
  EXPECT_NEAR(share, 0.01, 0.006);  // more than five standard deviations
}

TEST(TteSamples, ARequestThatWentAnotherWayIsNotCounted) {
  TteSamples samples;
  samples.begin(1, 100);
  samples.end(2, 1'000'000);
  samples.end(1, 2'000'000);
  EXPECT_EQ(samples.quantiles().samples, 0u);
  const uint64_t next = samples.next();
  EXPECT_GT(next, 1u);
  samples.begin(next, 3'000'000);
  samples.end(static_cast<uint32_t>(next), 3'000'500);
  EXPECT_EQ(samples.quantiles().samples, 1u);
  EXPECT_EQ(samples.quantiles().p50_ns, 500u);
}

}  // namespace
}  // namespace theseus
