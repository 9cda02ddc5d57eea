// The heap against sorting: whatever is set, moved and removed, what comes out is what is left, in order.
#include "flowsim/event_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <utility>

namespace theseus::flowsim {
namespace {

TEST(EventQueue, PopsByTimeThenById) {
  std::mt19937 random(7);
  EventQueue queue(50);
  std::map<int32_t, double> times;
  for (int i = 0; i < 20000; ++i) {
    const int32_t id = static_cast<int32_t>(random() % 50);
    switch (random() % 4) {
      case 0:
      case 1:
        times[id] = static_cast<double>(random() % 20);
        queue.set(id, times[id]);
        break;
      case 2:
        times.erase(id);
        queue.remove(id);
        break;
      default:
        ASSERT_EQ(queue.empty(), times.empty());
        if (times.empty()) break;
        std::pair<double, int32_t> first{1e9, 0};
        for (const auto& [each, time] : times) first = std::min(first, {time, each});
        ASSERT_EQ(queue.time(), first.first);
        ASSERT_EQ(queue.pop(), first.second);
        times.erase(first.second);
    }
  }
}

}  // namespace
}  // namespace theseus::flowsim
