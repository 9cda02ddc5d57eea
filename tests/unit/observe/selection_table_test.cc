#include "observe/selection_table.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

namespace theseus {
namespace {

TEST(SelectionTable, KeepsTheNewestOfEachCollectiveAndSizeClass) {
  SelectionTable table;
  EXPECT_TRUE(table.rows().empty());
  table.note(Collective::AllReduce, 1024, {1, "ring"}, 5);
  table.note(Collective::AllReduce, 2047, {1, "ring"}, 9);
  table.note(Collective::AllReduce, 2048, {1, "ring"}, 10);
  table.note(Collective::AllGather, 1, {3, "direct", ScheduleOrigin::BuiltIn, true}, 11);
  table.note(Collective::AllReduce, 1500, {2, "mine", ScheduleOrigin::Context}, 20);
  const std::vector<SelectionRow> rows = table.rows();
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].size_class, 10u);
  EXPECT_EQ(rows[0].schedule, "mine");
  EXPECT_EQ(rows[0].origin, ScheduleOrigin::Context);
  EXPECT_EQ(rows[0].since, 20u);
  EXPECT_EQ(rows[1].size_class, 11u);
  EXPECT_EQ(rows[1].schedule, "ring");
  EXPECT_EQ(rows[1].since, 10u);
  EXPECT_EQ(rows[2].collective, Collective::AllGather);
  EXPECT_EQ(rows[2].size_class, 0u);
  EXPECT_TRUE(rows[2].may_share);
}

TEST(SelectionTable, TheSameScheduleOfAnotherRootIsNoNews) {
  SelectionTable table;
  table.note(Collective::Broadcast, 64, {1, "tree"}, 3);
  table.note(Collective::Broadcast, 64, {2, "tree"}, 8);
  ASSERT_EQ(table.rows().size(), 1u);
  EXPECT_EQ(table.rows()[0].since, 3u);
}

TEST(SelectionTable, TheLargestSizesHaveAPlace) {
  SelectionTable table;
  table.note(Collective::Barrier, UINT64_MAX, {1, "ring"}, 1);
  table.note(Collective::Barrier, 0, {1, "ring"}, 1);
  EXPECT_EQ(table.rows().front().size_class, 0u);
  EXPECT_EQ(table.rows().back().size_class, 63u);
}

// A reader sees whole rows, whatever is noted meanwhile.
TEST(SelectionTable, IsReadWhileItIsWritten) {
  SelectionTable table;
  std::atomic<bool> over{false};
  std::thread writer([&] {
    for (uint64_t id = 1; id <= 20'000; ++id) {
      const bool odd = id % 2 == 1;
      table.note(Collective::AllReduce, uint64_t{1} << id % 3,
                 {id % 2, odd ? "a schedule with a long name, kept on the heap" : "b",
                  odd ? ScheduleOrigin::Context : ScheduleOrigin::BuiltIn},
                 id);
    }
    over = true;
  });
  while (!over) {
    for (const SelectionRow& row : table.rows()) {
      EXPECT_EQ(row.origin == ScheduleOrigin::Context, row.schedule.size() > 1);
      EXPECT_EQ(row.since % 2 == 1, row.origin == ScheduleOrigin::Context);
    }
  }
  writer.join();
}

}  // namespace
}  // namespace theseus
