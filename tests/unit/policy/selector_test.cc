// Selection: usable, highest score, replacement, lowest id; against a plain reference on random contexts.
#include "policy/selector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>

#include "unit/policy/expression_fixture.h"

namespace theseus {
namespace {

// A context made by hand, with the hooks that a communicator would have.
class Context {
 public:
  uint32_t attribute(const std::string& name, std::vector<double> values, Hook hook = Hook::Exogenous,
                     int32_t source = -1, double first = 0) {
    Attribute attribute;
    attribute.id = static_cast<uint32_t>(snapshot.attributes.size());
    attribute.definition.name = name;
    attribute.definition.hook = hook;
    attribute.definition.length = static_cast<uint32_t>(values.size());
    attribute.definition.first = first;
    attribute.source = source;
    attribute.values = std::move(values);
    snapshot.attributes.push_back(attribute);
    return attribute.id;
  }
  uint32_t schedule(const std::string& usable, const std::string& score, int32_t replaces = -1,
                    Collective collective = Collective::AllReduce, int32_t root = -1) {
    Schedule schedule;
    schedule.id = static_cast<uint32_t>(snapshot.replaces.size());
    schedule.definition.name = "s" + std::to_string(schedule.id);
    schedule.definition.collective = collective;
    schedule.definition.root = root;
    schedule.definition.usable = usable;
    schedule.definition.score = score;
    snapshot.schedules.push_back(schedule);
    snapshot.replaces.push_back(replaces);
    return schedule.id;
  }
  void remove(uint32_t id) {
    std::erase_if(snapshot.schedules, [id](const Schedule& each) { return each.id == id; });
  }
  void set(uint32_t attribute, std::vector<double> values) {
    snapshot.attributes[attribute].values = std::move(values);
  }

  // An agreement, at request `request`.
  bool install(uint64_t request = 1, uint64_t time_us = 0) {
    hooks.install(snapshot, request, time_us);
    if (selector != nullptr) return selector->update(snapshot);
    selector = std::make_unique<Selector>(snapshot, hooks);
    return true;
  }
  SelectedSchedule select(uint64_t request_id = 1) {
    const SelectedSchedule selected = selector->select(request, request_id);
    // Explanations come from policies as written, so they check what is folded.
    const auto verdicts = selector->explain(request, request_id);
    for (const ScheduleVerdict& each : verdicts) {
      EXPECT_EQ(each.reason.starts_with("selected"), static_cast<int32_t>(each.schedule) == selected.schedule)
          << each.name << ": " << each.reason;
    }
    return selected;
  }

  Snapshot snapshot;
  Hooks hooks;
  std::unique_ptr<Selector> selector;
  PolicyRequest request = example_request();
};

TEST(Selector, WithoutSchedulesThereIsNothingToAsk) {
  Context context;
  context.schedule("", "", -1, Collective::Broadcast);
  context.schedule("false", "");
  context.install();
  EXPECT_TRUE(context.selector->empty(Collective::AllReduce));
  EXPECT_FALSE(context.selector->empty(Collective::Broadcast));
  EXPECT_EQ(context.select().schedule, -1);
  EXPECT_TRUE(context.select().remembered);
}

TEST(Selector, TakesTheHighestScoreOfTheUsable) {
  Context context;
  context.schedule("bytes >= 64K", "2");
  context.schedule("bytes < 64K", "9");
  context.schedule("", "1");
  context.schedule("bytes > 2M", "10 * hosts");
  context.install();
  EXPECT_EQ(context.select().schedule, 0);
  context.request.bytes = 1000;
  EXPECT_EQ(context.select().schedule, 1);
  context.request.bytes = 3 << 20;
  EXPECT_EQ(context.select().schedule, 3);
}

// The paper's Policy 2: the adapted schedule has the same score, replaces the normal one, and is usable only while some
// health is below theta.
TEST(Selector, ThePapersSecondPolicy) {
  Context context;
  const uint32_t health = context.attribute("health", {1, 1, 1, 1});
  const uint32_t normal = context.schedule("bytes >= 1M", "7");
  const uint32_t rerouted = context.schedule("bytes >= 1M and min(health) < 0.5", "7", static_cast<int32_t>(normal));
  context.install();
  EXPECT_EQ(context.select().schedule, static_cast<int32_t>(normal));
  context.set(health, {1, 1, 0.1, 1});
  EXPECT_TRUE(context.install(100));
  EXPECT_EQ(context.select().schedule, static_cast<int32_t>(rerouted));
  EXPECT_TRUE(context.select().remembered);
  context.request.bytes = 1000;  // a predefined one
  EXPECT_EQ(context.select().schedule, -1);
  context.request.bytes = 1 << 20;
  context.set(health, {1, 1, 0.75, 1});
  EXPECT_TRUE(context.install(200));
  EXPECT_EQ(context.select().schedule, static_cast<int32_t>(normal));
  EXPECT_FALSE(context.install(300));  // nothing moved
}

TEST(Selector, TiesGoToTheReplacementAndThenToTheOlder) {
  Context context;
  context.schedule("", "1");                           // 0
  context.schedule("", "1", 0);                        // 1 replaces 0
  const uint32_t gone = context.schedule("", "1", 1);  // 2 replaces 1, is removed
  context.schedule("bytes > 10", "1", 2);              // 3 replaces 2
  const uint32_t other = context.schedule("", "1");    // 4 stands alone
  context.remove(gone);
  context.install();
  EXPECT_EQ(context.select().schedule, 3);  // beats 1 and 0 through what is gone; older than 4
  context.request.bytes = 5;                // without 3
  EXPECT_EQ(context.select().schedule, 1);
  context.remove(1);
  context.remove(3);
  context.install();
  EXPECT_EQ(context.select().schedule, 0);
  context.remove(0);
  context.install();
  EXPECT_EQ(context.select().schedule, static_cast<int32_t>(other));
}

// A schedule that is not in the tie still passes its links on.
TEST(Selector, LinksLeadThroughSchedulesThatAreNotUsable) {
  Context context;
  context.schedule("", "1");
  context.schedule("bytes > 1G", "1", 0);
  context.schedule("false", "1", 1);
  context.schedule("", "1", 2);
  context.install();
  EXPECT_EQ(context.select().schedule, 3);
}

TEST(Selector, RootsThatAScheduleIsMadeFor) {
  Context context;
  context.request.collective = Collective::Broadcast;
  context.schedule("", "1", -1, Collective::Broadcast, 0);
  context.schedule("", "1", -1, Collective::Broadcast, 2);
  context.install();
  EXPECT_EQ(context.select().schedule, 1);
  context.request.root = 3;
  EXPECT_EQ(context.select().schedule, -1);
}

TEST(Selector, FaultsMakeAScheduleUnusableAndAreCounted) {
  Context context;
  context.schedule("1 / 0", "9");               // whatever the request: counted once
  context.schedule("1 +", "9");                 // does not parse
  context.schedule("nothing > 1", "9");         // no such attribute
  context.schedule("", "1 / (hosts - 4)", -1);  // fails for this request
  context.schedule("1 / (root - 2) > 0", "9");  // too
  context.schedule("", "1");
  context.install();
  EXPECT_EQ(context.selector->errors(), 3u);
  EXPECT_EQ(context.select().schedule, 5);
  EXPECT_EQ(context.selector->errors(), 5u);
  context.request.hosts = 5;
  context.request.root = 0;
  EXPECT_EQ(context.select().schedule, 3);
  context.request.hosts = 3;
  EXPECT_EQ(context.select().schedule, 5);
  EXPECT_EQ(context.selector->errors(), 5u);
  const auto verdicts = context.selector->explain(context.request, 1);
  ASSERT_EQ(verdicts.size(), 6u);
  EXPECT_EQ(verdicts[0].reason, "usable: policy, column 3: division by zero");
  EXPECT_NE(verdicts[1].reason.find("column 4"), std::string::npos);
  EXPECT_NE(verdicts[2].reason.find("no attribute 'nothing'"), std::string::npos);
  EXPECT_EQ(verdicts[4].reason, "usable is 0");
}

// A policy may come before the attribute that it reads.
TEST(Selector, BindsWhenTheAttributeComes) {
  Context context;
  context.schedule("late > 1", "late * 2");
  context.install();
  EXPECT_EQ(context.select().schedule, -1);
  context.attribute("late", {2});
  EXPECT_TRUE(context.install());
  EXPECT_EQ(context.select().schedule, 0);
}

TEST(Selector, RemembersUnlessWhatMovesWithRequestsWasRead) {
  Context context;
  const uint32_t switched = context.attribute("on", {0});
  context.attribute("requests", {0}, Hook::Requests);
  context.schedule("", "1");
  context.schedule("on and requests >= 10", "2");
  context.schedule("bytes < 1K and requests >= 10", "3");
  context.install(100);
  EXPECT_TRUE(context.select(150).remembered);  // `on` is 0, and the size rules the last one out
  context.request.bytes = 10;
  EXPECT_FALSE(context.select(105).remembered);
  EXPECT_EQ(context.select(105).schedule, 0);
  EXPECT_EQ(context.select(110).schedule, 2);
  context.request.bytes = 1 << 20;
  context.set(switched, {1});
  EXPECT_TRUE(context.install(200));
  EXPECT_EQ(context.select(109).schedule, 0);
  EXPECT_EQ(context.select(300).schedule, 1);
  EXPECT_FALSE(context.select(300).remembered);
  EXPECT_TRUE(context.selector->select({.collective = Collective::Broadcast}, 300).remembered);
}

// Hooks move at every agreement, also where the snapshot stays.
TEST(Selector, FollowsHooksThatMoveAtAgreements) {
  Context context;
  const uint32_t load = context.attribute("load", {0});
  context.attribute("agreements", {0}, Hook::Agreements);
  context.attribute("smooth", {0}, Hook::Smooth, static_cast<int32_t>(load), 0.5);
  context.schedule("", "1");
  context.schedule("agreements >= 2", "2");
  context.schedule("smooth > 6", "3");
  context.install();
  EXPECT_EQ(context.select().schedule, 0);
  EXPECT_TRUE(context.install());
  EXPECT_TRUE(context.install());
  EXPECT_EQ(context.select().schedule, 1);
  context.set(load, {8});
  context.install();
  EXPECT_EQ(context.select().schedule, 1);  // 4
  context.install();
  context.install();
  EXPECT_EQ(context.select().schedule, 2);  // 7
  EXPECT_TRUE(context.select().remembered);
}

TEST(Selector, ALogOfAnotherJobStartsAfresh) {
  Context context;
  context.schedule("", "1");
  context.install();
  EXPECT_EQ(context.select().schedule, 0);
  Context other;
  other.snapshot.log_id = 77;
  other.schedule("bytes < 1", "1");
  EXPECT_TRUE(context.selector->update(other.snapshot));
  EXPECT_EQ(context.selector->select(context.request, 1).schedule, -1);
  EXPECT_TRUE(context.selector->update(Snapshot{.log_id = 78, .attributes = {}, .schedules = {}, .replaces = {}}));
  EXPECT_TRUE(context.selector->empty(Collective::AllReduce));
}

// --- Against a plain reference

// Selection as the definition says it, policies evaluated as written.
SelectedSchedule reference(const Snapshot& snapshot, Hooks& hooks, const PolicyRequest& request, uint64_t request_id) {
  class Values : public AttributeValues {
   public:
    Values(Hooks& hooks, uint64_t request_id) : hooks_(hooks), request_id_(request_id) {}
    std::span<const double> values(uint32_t id) override { return hooks_.values(id, request_id_); }

   private:
    Hooks& hooks_;
    uint64_t request_id_;
  } values(hooks, request_id);
  const auto number = [&](const std::string& text, double otherwise) -> std::optional<double> {
    if (text.empty()) return otherwise;
    auto expression = Expression::parse(text);
    if (!expression.ok() || !expression->bind(snapshot.attributes).ok()) return std::nullopt;
    const auto result = expression->evaluate(request, values);
    return result.ok() ? std::optional<double>(*result) : std::nullopt;
  };
  std::set<int32_t> top;
  double highest = 0;
  for (const Schedule& each : snapshot.schedules) {
    if (each.definition.collective != request.collective) continue;
    const auto usable = number(each.definition.usable, 1), score = number(each.definition.score, 0);
    if (!usable || *usable == 0 || !score) continue;
    if (top.empty() || *score > highest) top.clear(), highest = *score;
    if (*score == highest) top.insert(static_cast<int32_t>(each.id));
  }
  std::set<int32_t> beaten;
  for (const int32_t one : top) {
    for (int32_t above = snapshot.replaces[static_cast<size_t>(one)]; above >= 0;
         above = snapshot.replaces[static_cast<size_t>(above)]) {
      beaten.insert(above);
    }
  }
  for (const int32_t one : top) {
    if (!beaten.contains(one)) return {one, true};
  }
  return {-1, true};
}

class SelectorProperty : public testing::Test {
 protected:
  std::string condition() {
    const std::string n = std::to_string(random_() % 6);
    const std::vector<std::string> choices = {"bytes >= " + n + "K",
                                              n + " * 1K > bytes",
                                              "1K <= bytes < " + n + "K",
                                              "dtype == float16",
                                              "float32 != dtype",
                                              "op == max",
                                              "op != sum",
                                              "hosts == " + n,
                                              "root < " + n,
                                              n + " != ranks",
                                              "healing == " + n,
                                              "healing != " + n,
                                              "min(health) < 0." + n,
                                              "health[root] > 0.5",
                                              "requests % 7 > " + n,
                                              "collective == allreduce",
                                              "not (bytes < 2K)",
                                              "(hosts > 2 or root > 1)",
                                              "1 / (root - " + n + ") < 1",
                                              "true",
                                              "false",
                                              "count",
                                              "(healing if hosts > 2 else rails)"};
    return choices[random_() % choices.size()];
  }
  std::string usable() {
    std::string text;
    for (size_t i = random_() % 4; i > 0; --i) text += (text.empty() ? "" : " and ") + condition();
    return text;
  }
  std::string score() {
    const std::vector<std::string> choices = {"",
                                              "1",
                                              "1",
                                              "2",
                                              "2",
                                              "hosts",
                                              "healing",
                                              "bytes / 1K",
                                              "1 / root",
                                              "sum(health)",
                                              "requests % 3",
                                              "-1",
                                              "0",
                                              "3 if bytes > 2K else 1"};
    return choices[random_() % choices.size()];
  }
  PolicyRequest request() {
    PolicyRequest request = example_request();
    const uint64_t sizes[] = {0, 1024, 2047, 2048, 4096, 5120, uint64_t{1} << 40};
    request.collective = random_() % 2 ? Collective::AllReduce : Collective::AllGather;
    request.bytes = sizes[random_() % 7];
    request.count = random_() % 2;
    request.type = random_() % 2 ? DataType::Float16 : DataType::Float32;
    request.op = static_cast<RedOp>(random_() % 5);
    request.root = static_cast<int32_t>(random_() % 5);
    request.hosts = static_cast<int32_t>(1 + random_() % 5);
    request.ranks = static_cast<int32_t>(1 + random_() % 5);
    return request;
  }
  std::mt19937_64 random_{11};
};

TEST_F(SelectorProperty, SelectsAsDefined) {
  int selected = 0, none = 0;
  for (int round = 0; round < 150; ++round) {
    Context context;
    context.attribute("healing", {1});
    context.attribute("health", {1, 0.5, 0.25, 1});
    context.attribute("requests", {0}, Hook::Requests);
    uint64_t at = 1;
    for (int epoch = 0; epoch < 6; ++epoch) {
      for (size_t i = random_() % 12; i > 0; --i) {
        const auto ids = static_cast<int32_t>(context.snapshot.replaces.size());
        const int32_t replaces =
            ids > 0 && random_() % 2 ? static_cast<int32_t>(random_() % static_cast<uint64_t>(ids)) : -1;
        context.schedule(usable(), score(), replaces, random_() % 3 ? Collective::AllReduce : Collective::AllGather);
      }
      if (!context.snapshot.replaces.empty() && random_() % 2) {
        context.remove(static_cast<uint32_t>(random_() % context.snapshot.replaces.size()));
      }
      if (random_() % 2) context.set(0, {static_cast<double>(random_() % 4)});
      if (random_() % 2) context.set(1, {1, static_cast<double>(random_() % 9) / 8, 0.25, 0.5});
      context.install(at);
      Selector fresh(context.snapshot, context.hooks);
      for (int i = 0; i < 30; ++i, ++at) {
        context.request = request();
        const SelectedSchedule found = context.select(at);
        EXPECT_EQ(found.schedule, reference(context.snapshot, context.hooks, context.request, at).schedule);
        const SelectedSchedule again = fresh.select(context.request, at);
        EXPECT_EQ(found.schedule, again.schedule);
        EXPECT_EQ(found.remembered, again.remembered);
        if (found.remembered) {
          EXPECT_EQ(reference(context.snapshot, context.hooks, context.request, at + 17).schedule, found.schedule);
        }
        ++(found.schedule >= 0 ? selected : none);
      }
    }
  }
  EXPECT_GT(selected, 5000);
  EXPECT_GT(none, 1000);
}

// Policies of one form, as generators write them: few forms, and many windows and constants, of which some fail.
TEST_F(SelectorProperty, SelectsAsDefinedWhereOnlyConstantsDiffer) {
  int selected = 0;
  uint64_t failed = 0;
  for (int round = 0; round < 20; ++round) {
    Context context;
    context.attribute("requests", {0}, Hook::Requests);
    const auto number = [this](size_t below) { return std::to_string(random_() % below); };
    for (int i = 0; i < 120; ++i) {
      const std::string window = "bytes >= " + number(4) + "K and " + number(6) + "K > bytes and root < " + number(9);
      const std::vector<std::string> scores = {number(7) + " + bytes / (root - " + number(5) + ")",
                                               number(3) + " + bytes // " + std::to_string(1 + random_() % 4) + "K",
                                               "(requests + " + number(3) + ") % 4", number(9)};
      const int32_t replaces = i > 0 && random_() % 2 ? static_cast<int32_t>(random_() % static_cast<uint64_t>(i)) : -1;
      context.schedule(window, scores[random_() % scores.size()], replaces);
    }
    context.install();
    for (uint64_t at = 1; at <= 40; ++at) {
      context.request = request();
      context.request.collective = Collective::AllReduce;
      const uint64_t before = context.selector->errors();
      const SelectedSchedule found = context.select(at);
      EXPECT_EQ(found.schedule, reference(context.snapshot, context.hooks, context.request, at).schedule);
      // All scores here that can fail are computed, wherever the window is open.
      uint64_t expected = 0;
      for (const ScheduleVerdict& each : context.selector->explain(context.request, at)) {
        expected += each.reason.starts_with("score: ") ? 1 : 0;
      }
      EXPECT_EQ(context.selector->errors() - before, expected);
      failed += expected;
      selected += found.schedule >= 0 ? 1 : 0;
    }
  }
  EXPECT_GT(selected, 400);
  EXPECT_GT(failed, 400u);
}

// Long chains cost no more than their length.
TEST_F(SelectorProperty, LongChainsOfReplacements) {
  Context context;
  for (int i = 0; i < 2000; ++i) context.schedule("", "1", i - 1);
  for (uint32_t i = 1; i < 2000; i += 3) context.remove(i);
  context.install();
  EXPECT_EQ(context.selector->select(context.request, 1).schedule, 1998);
  context.remove(1998);
  context.install();
  EXPECT_EQ(context.selector->select(context.request, 1).schedule, 1997);
}

}  // namespace
}  // namespace theseus
