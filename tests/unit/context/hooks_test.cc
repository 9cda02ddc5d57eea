#include "context/hooks.h"

#include <gtest/gtest.h>

#include "unit/context/random.h"

namespace theseus {
namespace {

// An exogenous attribute x (id 0) and one that a hook advances, y (id 1).
class OneHook {
 public:
  explicit OneHook(const AttributeDefinition& y, uint32_t length = 1) {
    add(exogenous("x", length));
    add(y);
  }
  void set(uint32_t index, double value) { add(ExogenousUpdate{"x", {{index, value}}}); }
  // Whether a value moved.
  bool agree(uint64_t request, double seconds) {
    return hooks_.install(*log_.snapshot(log_.position(), {}), request, static_cast<uint64_t>(seconds * 1e6));
  }
  double value(uint64_t request = 0, size_t index = 0) { return hooks_.values(1, request)[index]; }
  Hooks& hooks() { return hooks_; }

 private:
  void add(const Record& record) { ASSERT_TRUE(log_.apply(record).ok()); }
  ContextLog log_{1};
  Hooks hooks_;
};

TEST(Hooks, ExogenousValuesAreTheSnapshots) {
  OneHook one(hooked("y", Hook::Requests), 2);
  one.set(1, 5);
  one.agree(1, 0);
  one.set(1, 6);
  EXPECT_EQ(one.hooks().values(0, 1), (std::vector<double>{0, 5}));
  one.agree(2, 0);
  EXPECT_EQ(one.hooks().values(0, 2), (std::vector<double>{0, 6}));
  EXPECT_TRUE(one.hooks().values(9, 2).empty());
}

// Counters start at the install of their definition, not when something reads them first.
TEST(Hooks, CountersStartWhenTheyAreInstalled) {
  OneHook requests(hooked("y", Hook::Requests, {}, 0, 0, 10));
  requests.agree(101, 3);
  EXPECT_EQ(requests.value(101), 10);
  EXPECT_EQ(requests.value(150), 59);
  requests.agree(201, 4);
  EXPECT_EQ(requests.value(201), 110);

  OneHook agreements(hooked("y", Hook::Agreements));
  agreements.agree(101, 3);
  EXPECT_EQ(agreements.value(), 0);
  agreements.agree(201, 3);
  agreements.agree(301, 3);
  EXPECT_EQ(agreements.value(), 2);

  OneHook seconds(hooked("y", Hook::Seconds));
  seconds.agree(101, 3);
  EXPECT_EQ(seconds.value(), 0);
  seconds.agree(201, 4.5);
  EXPECT_EQ(seconds.value(), 1.5);
}

TEST(Hooks, SmoothMovesByItsWeightAtEachAgreement) {
  OneHook one(hooked("y", Hook::Smooth, "x", 0.25, 0, 1), 2);
  one.set(1, 1);
  one.agree(1, 0);
  EXPECT_EQ(one.value(1, 0), 0.75);
  EXPECT_EQ(one.value(1, 1), 1);
  one.agree(2, 0);
  EXPECT_EQ(one.value(2, 0), 0.5625);
}

TEST(Hooks, HysteresisHoldsBetweenItsThresholds) {
  OneHook one(hooked("y", Hook::Hysteresis, "x", 0.4, 0.6));
  const std::vector<std::pair<double, double>> steps = {{0.5, 0}, {0.4, 0},  {0.39, 1}, {0.5, 1},
                                                        {0.6, 1}, {0.61, 0}, {0.5, 0}};
  uint64_t request = 0;
  for (const auto& [input, output] : steps) {
    one.set(0, input);
    one.agree(++request, 0);
    EXPECT_EQ(one.value(), output) << "after " << input;
  }
}

// However its source jumps, it changes at most once in the time given, and it arrives at the newest value.
TEST(Hooks, DwellChangesAtMostOnceInItsTime) {
  OneHook one(hooked("y", Hook::Dwell, "x", 1, 0, 7));
  one.agree(1, 10);
  EXPECT_EQ(one.value(), 0);
  double last = one.value();
  double changed_at = 10;
  for (int i = 1; i <= 100; ++i) {
    const double now = 10 + i / 16.0;
    one.set(0, i % 3);
    one.agree(static_cast<uint64_t>(i + 1), now);
    if (one.value() == last) continue;
    EXPECT_GE(now - changed_at, 1);
    EXPECT_EQ(one.value(), i % 3);
    changed_at = now;
    last = one.value();
  }
  EXPECT_GT(changed_at, 14);
}

// Selections that were remembered are void exactly where a value is another one.
TEST(Hooks, SayWhetherAValueMoved) {
  OneHook one(hooked("y", Hook::Smooth, "x", 0.5));
  EXPECT_TRUE(one.agree(1, 0));
  EXPECT_FALSE(one.agree(2, 0));
  one.set(0, 1);
  EXPECT_TRUE(one.agree(3, 0));
  EXPECT_TRUE(one.agree(4, 0));
  one.set(0, 0.75);
  EXPECT_TRUE(one.agree(5, 0));
  EXPECT_FALSE(one.agree(6, 0));
}

// The digest is the state's: equal however often values were read, another after another step.
TEST(Hooks, DigestFollowsState) {
  OneHook a(hooked("y", Hook::Requests));
  OneHook b(hooked("y", Hook::Requests));
  a.agree(1, 1);
  b.agree(1, 1);
  a.value(17);
  EXPECT_EQ(a.hooks().digest(), b.hooks().digest());
  a.agree(2, 1);
  EXPECT_NE(a.hooks().digest(), b.hooks().digest());
  b.agree(2, 1);
  EXPECT_EQ(a.hooks().digest(), b.hooks().digest());
}

}  // namespace
}  // namespace theseus
