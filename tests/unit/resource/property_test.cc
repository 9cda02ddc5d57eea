// The resource tree against a plain cache: random requests, schedules that replace one another, leases, budgets,
// buffers made again, parts that cannot be made.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "fake_builder.h"
#include "resource/family.h"

namespace theseus {
namespace {

using testing::FakeBuilder;
using testing::FakePart;
using testing::size_of_part;
using testing::text_of;

constexpr Layer kBelowGlobal[] = {Layer::Schedule, Layer::Buffer, Layer::Range};

// What the tree promises, in the plainest way: a list of entries, searched from end to end.
class PlainCache {
 public:
  struct Entry {
    std::vector<uint64_t> path;  // keys from L1 on
    uint64_t tag = 0;
    uint64_t generation = 0;
    uint64_t last_use = 0;
    size_t need = 0;
    int serial = 0;  // another one for what takes the place of a pinned one
  };
  using Held = std::vector<int>;  // serials; the global part's first

  std::array<Visit, kLayers> walk(const ResourceRequest& request) {
    std::array<Visit, kLayers> visits = {global_ == 0 ? Visit::Built : Visit::Reused};
    if (global_ == 0) global_ = ++serials_;
    for (const Layer layer : kBelowGlobal) {
      visits[static_cast<size_t>(layer)] = visit(layer, request);
    }
    const size_t need = 10 * request.range.length;
    find(Layer::Range, request)->need = need;
    if (arena_ < need) {
      if (visits[0] == Visit::Reused) visits[0] = pinned(global_) ? Visit::Copied : Visit::Migrated;
      resize(need);
    }
    ++clock_;
    for (const Layer layer : kBelowGlobal) find(layer, request)->last_use = clock_;
    return visits;
  }
  // What a lease of the request's path would hold, but for the global part.
  Held path_of(const ResourceRequest& request) {
    Held held;
    for (const Layer layer : kBelowGlobal) held.push_back(find(layer, request)->serial);
    return held;
  }
  int global() const { return global_; }
  void pin(const Held& held) {
    for (const int serial : held) ++pins_[serial];
  }
  void unpin(const Held& held) {
    for (const int serial : held) {
      if (--pins_[serial] == 0) pins_.erase(serial);
      std::erase_if(retired_, [&](const auto& gone) { return !pinned(gone.first); });
    }
  }
  void touch(const ResourceRequest& request) {
    ++clock_;
    for (const Layer layer : kBelowGlobal) find(layer, request)->last_use = clock_;
  }

  size_t bytes() const {
    size_t bytes = global_ == 0 ? 0 : kVertexBytes + arena_;
    for (const Entry& entry : entries_) bytes += bytes_of(entry);
    for (const auto& [serial, size] : retired_) bytes += size;
    return bytes;
  }
  // Evicts one by one: the least recently used that has nothing below it.
  void fit(size_t budget) {
    const auto slack = [&]() -> size_t {
      if (global_ == 0 || pinned(global_)) return 0;
      return arena_ - std::min(arena_, largest_need());
    };
    while (bytes() > budget + slack()) {
      auto worst = entries_.end();
      for (auto at = entries_.begin(); at != entries_.end(); ++at) {
        const bool has_children = std::any_of(entries_.begin(), entries_.end(), [&](const Entry& other) {
          return other.path.size() > at->path.size() &&
                 std::equal(at->path.begin(), at->path.end(), other.path.begin());
        });
        if (has_children || pinned(at->serial)) continue;
        if (worst == entries_.end() || at->last_use < worst->last_use) worst = at;
      }
      if (worst == entries_.end()) break;
      entries_.erase(worst);
    }
    if (bytes() > budget && slack() > 0) resize(largest_need());
  }
  void unload(uint64_t schedule) {
    for (;;) {
      const auto doomed =
          std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.tag == schedule; });
      if (doomed == entries_.end()) return;
      drop(std::vector(doomed->path));
    }
  }

  Entry* find(Layer layer, const ResourceRequest& request) {
    const std::vector<uint64_t> path = path_to(layer, request);
    const auto found =
        std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.path == path; });
    return found == entries_.end() ? nullptr : &*found;
  }

 private:
  static std::vector<uint64_t> path_to(Layer layer, const ResourceRequest& request) {
    std::vector<uint64_t> path = {request.family};
    if (layer >= Layer::Buffer) path.push_back(request.buffer.id);
    if (layer >= Layer::Range) path.push_back(request.range.offset << 32 | request.range.length);
    return path;
  }
  static size_t bytes_of(const Entry& entry) {
    return kVertexBytes + size_of_part(static_cast<Layer>(entry.path.size()), entry.tag);
  }
  bool pinned(int serial) const { return pins_.contains(serial); }

  Visit visit(Layer layer, const ResourceRequest& request) {
    Entry* entry = find(layer, request);
    if (entry != nullptr && layer == Layer::Buffer && entry->generation != request.buffer.generation) {
      drop(std::vector(entry->path));
      entry = nullptr;
    }
    if (entry == nullptr) {
      entries_.push_back({path_to(layer, request), request.schedule, request.buffer.generation, 0, 0, ++serials_});
      return Visit::Built;
    }
    if (entry->tag == request.schedule) return Visit::Reused;
    const bool copied = pinned(entry->serial);
    if (copied) {
      retired_[entry->serial] = bytes_of(*entry);
      entry->serial = ++serials_;
    }
    entry->tag = request.schedule;
    return copied ? Visit::Copied : Visit::Migrated;
  }
  // With all below.
  void drop(const std::vector<uint64_t>& path) {
    std::erase_if(entries_, [&](const Entry& entry) {
      const bool below = entry.path.size() >= path.size() && std::equal(path.begin(), path.end(), entry.path.begin());
      if (below && pinned(entry.serial)) retired_[entry.serial] = bytes_of(entry);
      return below;
    });
  }
  void resize(size_t bytes) {
    if (pinned(global_)) {
      retired_[global_] = kVertexBytes + arena_;
      global_ = ++serials_;
    }
    arena_ = bytes;
  }
  // Of all leaves, those too that leases hold.
  size_t largest_need() const {
    size_t largest = 0;
    for (const Entry& entry : entries_) largest = std::max(largest, entry.need);
    return largest;
  }

  std::vector<Entry> entries_;
  std::map<int, int> pins_;        // by serial
  std::map<int, size_t> retired_;  // by serial: bytes
  int global_ = 0;
  size_t arena_ = 0;
  uint64_t clock_ = 0;
  int serials_ = 0;
};

struct Held {
  ResourceTree::Lease lease;
  ResourceRequest request;
  PlainCache::Held pins;
};

class TreeProperty : public ::testing::TestWithParam<uint64_t> {
 protected:
  uint64_t draw(uint64_t bound) { return random_() % bound; }

  ResourceRequest draw_request() {
    ResourceRequest request;
    request.family = draw(3);
    request.schedule = selected_[request.family];
    request.buffer.id = draw(3);
    request.buffer.generation = generations_[request.buffer.id];
    request.range.length = 1 + draw(4);
    return request;
  }

  void expect_whole(const ResourceTree::Lease& lease, const ResourceRequest& request) {
    for (const Layer layer : kBelowGlobal) ASSERT_EQ(lease.part<FakePart>(layer).text, text_of(layer, request));
    ASSERT_GE(lease.part<FakePart>(Layer::Global).size, 10 * request.range.length);
  }

  void take(ResourceTree::Lease lease, const ResourceRequest& request, PlainCache::Held pins) {
    if (draw(3) > 0) return;
    plain_.pin(pins);
    held_.push_back({std::move(lease), request, std::move(pins)});
  }

  void walk() {
    const ResourceRequest request = draw_request();
    const std::array<Visit, kLayers> expected = plain_.walk(request);
    Result<ResourceTree::Lease> lease = tree_.walk(request);
    ASSERT_TRUE(lease.ok());
    EXPECT_EQ(tree_.last_visits(), expected);
    expect_whole(*lease, request);
    PlainCache::Held pins = plain_.path_of(request);
    plain_.pin(pins);  // the lease keeps all but the global part while the tree makes room
    plain_.fit(tree_.budget());
    plain_.unpin(pins);
    EXPECT_TRUE(tree_.bytes() <= tree_.budget() || tree_.evictable() == 0);
    pins.push_back(plain_.global());
    trail_ = lease->trail();
    trail_request_ = request;
    trail_pins_ = pins;
    take(std::move(*lease), request, std::move(pins));
  }

  void recall() {
    ResourceTree::Lease lease = tree_.recall(trail_);
    if (!lease) return;
    ++recalled_;
    // It would have been found by a walk, too.
    ASSERT_EQ(trail_request_.schedule, plain_.find(Layer::Range, trail_request_)->tag);
    expect_whole(lease, trail_request_);
    plain_.touch(trail_request_);
    take(std::move(lease), trail_request_, trail_pins_);
  }

  // As good as recalling it and letting go at once.
  void touch() {
    if (!tree_.touch(trail_)) return;
    ++touched_;
    ASSERT_EQ(trail_request_.schedule, plain_.find(Layer::Range, trail_request_)->tag);
    plain_.touch(trail_request_);
  }

  void release() {
    if (held_.empty()) return;
    const auto at = held_.begin() + static_cast<std::ptrdiff_t>(draw(held_.size()));
    plain_.unpin(at->pins);
    held_.erase(at);
  }

  void step() {
    switch (draw(16)) {
      case 0: {
        const uint64_t family = draw(3);
        const uint64_t replaced = selected_[family];
        // Another one of the family, or one that was replaced before.
        selected_[family] = family + 3 * draw(4);
        if (draw(2) == 0) {
          plain_.unload(replaced);
          const bool unloaded = tree_.unload(replaced);
          EXPECT_EQ(unloaded, !builder_.made_for(replaced));
        }
        break;
      }
      case 1: ++generations_[draw(3)]; break;
      case 2: {
        tree_.set_budget(draw(3) == 0 ? 100'000 : draw(12'000));
        plain_.fit(tree_.budget());
        EXPECT_TRUE(tree_.bytes() <= tree_.budget() || tree_.evictable() == 0);
        break;
      }
      case 3:
      case 4:
      case 5: release(); break;
      case 6:
      case 7: recall(); break;
      case 8: touch(); break;
      default: walk();
    }
    for (const Held& held : held_) expect_whole(held.lease, held.request);
    ASSERT_EQ(tree_.bytes(), builder_.bytes_alive()) << "a part leaked, went too early, or is not counted";
    ASSERT_EQ(tree_.bytes(), plain_.bytes());
    for (uint64_t schedule = 0; schedule < 12; ++schedule) {
      ASSERT_EQ(tree_.holds(schedule), builder_.made_for(schedule));
    }
  }

  std::mt19937_64 random_{GetParam()};
  FakeBuilder builder_;
  ResourceTree tree_{builder_, 6000};
  PlainCache plain_;
  std::vector<Held> held_;
  uint64_t selected_[3] = {0, 1, 2};
  uint64_t generations_[3] = {};
  ResourceTree::Trail trail_;
  ResourceRequest trail_request_;
  PlainCache::Held trail_pins_;
  int recalled_ = 0;
  int touched_ = 0;
};

// Every request gets parts made for its schedule, buffer and range, and keeps them to its end; what each walk does,
// what is evicted and what is held, to the byte, are the plain cache's.
TEST_P(TreeProperty, DoesWhatAPlainCacheDoes) {
  for (int i = 0; i < 3000 && !HasFatalFailure() && !HasNonfatalFailure(); ++i) step();
  EXPECT_GT(recalled_, 0);
  EXPECT_GT(touched_, 0);
  for (size_t visit = 0; visit < kVisits; ++visit) {
    uint64_t times = 0;
    for (const LayerStatistics& layer : tree_.statistics().layers) times += layer.visits[visit];
    EXPECT_GT(times, 0u) << "too tame to show anything";
  }
  held_.clear();
}

// The same where now and then a part cannot be made: no request sees a stale part, nothing leaks, and the budget holds.
TEST_P(TreeProperty, StaysWholeWhereBuildingFails) {
  int failures = 0;
  for (int i = 0; i < 3000 && !HasFatalFailure(); ++i) {
    if (draw(8) == 0) selected_[draw(3)] += 3;
    if (draw(20) == 0) ++generations_[draw(3)];
    if (draw(4) == 0 && !held_.empty()) held_.pop_back();
    builder_.failing = draw(3) == 0 ? static_cast<int>(1 + draw(5)) : 0;
    const ResourceRequest request = draw_request();
    Result<ResourceTree::Lease> lease = tree_.walk(request);
    builder_.failing = 0;
    failures += lease.ok() ? 0 : 1;
    if (lease.ok()) {
      expect_whole(*lease, request);
      EXPECT_TRUE(tree_.bytes() <= tree_.budget() || tree_.evictable() == 0);
      if (draw(4) == 0) held_.push_back({std::move(*lease), request, {}});
    }
    for (const Held& held : held_) expect_whole(held.lease, held.request);
    ASSERT_EQ(tree_.bytes(), builder_.bytes_alive());
  }
  EXPECT_GT(failures, 0);
  held_.clear();
  tree_.set_budget(0);
  EXPECT_EQ(tree_.bytes(), kVertexBytes) << "nothing is left but the root";
}

INSTANTIATE_TEST_SUITE_P(Seeds, TreeProperty, ::testing::Range<uint64_t>(1, 21));

// A schedule that no request selects costs nothing, and neither does a tree without requests.
TEST(Tree, CostsNothingForWhatIsNotSelected) {
  FakeBuilder builder;
  ResourceTree tree(builder, 1 << 20);
  EXPECT_EQ(tree.bytes(), 0u);
  EXPECT_TRUE(tree.unload(1));
  ASSERT_TRUE(tree.walk({1, 1, {}, {0, 1, 0}}).ok());
  EXPECT_FALSE(tree.holds(2));
  const size_t one = tree.bytes();
  // 500 that replace one another take no more than the largest of them.
  for (uint64_t schedule = 2; schedule <= 500; ++schedule) {
    ASSERT_TRUE(tree.walk({1, schedule, {}, {0, 1, 0}}).ok());
    EXPECT_FALSE(tree.holds(schedule - 1));
  }
  EXPECT_LE(tree.bytes(), one + 3 * 500);
  EXPECT_EQ(builder.alive.size(), kLayers);
}

// Ranges that share all numbers but one are still different ranges, and so are forms.
TEST(Tree, KeepsRangesApart) {
  FakeBuilder builder;
  ResourceTree tree(builder, 1 << 20);
  const RangeKey ranges[] = {{0, 1, 0}, {1, 1, 0}, {0, 2, 0}, {0, 1, 1}};
  for (const RangeKey& range : ranges) ASSERT_TRUE(tree.walk({1, 1, {}, range}).ok());
  EXPECT_EQ(tree.statistics().layers[3].vertices, std::size(ranges));
}

// Chains of replacements have one family, and every root of a schedule is a tag of its own.
TEST(Family, IsTheRootOfTheChain) {
  const std::vector<int32_t> replaces = {-1, -1, 0, 2, 1};
  EXPECT_EQ(family_of(replaces, 0), 0u);
  EXPECT_EQ(family_of(replaces, 3), 0u);
  EXPECT_EQ(family_of(replaces, 4), 1u);
  EXPECT_EQ(family_of(replaces, 7), 7u) << "unknown ones stand alone";
  FakeBuilder builder;
  ResourceTree tree(builder, 1 << 20);
  const uint64_t numbers[] = {resource_number(3, 0), resource_number(3, 1), resource_number(4, 0),
                              predefined_number(3)};
  for (const uint64_t number : numbers) ASSERT_TRUE(tree.walk({number, number, {}, {0, 1, 0}}).ok());
  EXPECT_EQ(tree.schedules(), std::vector<uint64_t>(std::begin(numbers), std::end(numbers)));
  for (const uint64_t number : tree.schedules()) {
    if (is_predefined(number) || schedule_of(number) != 3) continue;
    EXPECT_TRUE(tree.unload(number));
  }
  EXPECT_EQ(tree.schedules(), (std::vector<uint64_t>{numbers[2], numbers[3]}));
}

// A lease that is moved is given back once.
TEST(Tree, LeasesMove) {
  FakeBuilder builder;
  ResourceTree tree(builder, 1 << 20);
  ResourceTree::Lease first = std::move(*tree.walk({1, 1, {}, {0, 1, 0}}));
  ResourceTree::Lease second = std::move(first);
  EXPECT_FALSE(first);
  EXPECT_EQ(tree.evictable(), 0u);
  second = std::move(*tree.walk({1, 1, {}, {1, 1, 0}}));
  EXPECT_EQ(tree.evictable(), 1u);
  second.release();
  second.release();
  EXPECT_EQ(tree.evictable(), 4u);
}

}  // namespace
}  // namespace theseus
