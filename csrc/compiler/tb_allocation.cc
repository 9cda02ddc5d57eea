#include "compiler/tb_allocation.h"

#include <algorithm>
#include <numeric>

namespace theseus {
namespace {

// First fit in `order`; returns the number of TBs.
int32_t first_fit(const std::vector<ConnectionGroup>& groups, const std::vector<size_t>& order, int sub_pipelines,
                  std::vector<int32_t>& tb_of) {
  const size_t words = (static_cast<size_t>(sub_pipelines) + 63) / 64;
  std::vector<std::vector<uint64_t>> taken;  // by TB, a bit for each sub-pipeline
  const auto bit = [](int32_t s) { return uint64_t{1} << (s % 64); };
  const auto word = [](int32_t s) { return static_cast<size_t>(s) / 64; };
  for (const size_t g : order) {
    const auto& active = groups[g].active;
    const auto fits = [&](const std::vector<uint64_t>& tb) {
      return std::none_of(active.begin(), active.end(), [&](int32_t s) { return (tb[word(s)] & bit(s)) != 0; });
    };
    auto tb = std::find_if(taken.begin(), taken.end(), fits);
    if (tb == taken.end()) tb = taken.emplace(taken.end(), words, 0);
    for (const int32_t s : active) (*tb)[word(s)] |= bit(s);
    tb_of[g] = static_cast<int32_t>(tb - taken.begin());
  }
  return static_cast<int32_t>(taken.size());
}

// By first group.
void renumber(std::vector<int32_t>& tb_of) {
  std::vector<int32_t> number(tb_of.size(), -1);
  int32_t next = 0;
  for (int32_t& tb : tb_of) {
    int32_t& n = number[static_cast<size_t>(tb)];
    if (n < 0) n = next++;
    tb = n;
  }
}

// Takes groups, in `order`, out of TBs that they share, until there are `most` TBs.
void give_own(const std::vector<size_t>& order, int32_t most, std::vector<int32_t>& tb_of) {
  int32_t count = count_thread_blocks(tb_of);
  std::vector<int32_t> sharers(tb_of.size(), 0);  // by TB
  for (const int32_t tb : tb_of) ++sharers[static_cast<size_t>(tb)];
  for (const size_t g : order) {
    int32_t& shared = sharers[static_cast<size_t>(tb_of[g])];
    if (count >= most) break;
    if (shared < 2) continue;
    --shared;
    sharers[static_cast<size_t>(count)] = 1;
    tb_of[g] = count++;
  }
  renumber(tb_of);
}

}  // namespace

const char* name_of(TbAllocation allocation) {
  static constexpr const char* names[kTbAllocations] = {"PerConnection", "PerConnectionAndStage", "StateBased",
                                                        "StateBasedEven", "StateBasedApart"};
  return static_cast<int>(allocation) < kTbAllocations ? names[static_cast<int>(allocation)] : "unknown allocation";
}

std::vector<int32_t> share_thread_blocks(const std::vector<ConnectionGroup>& groups, int sub_pipelines) {
  const auto busiest_first = [&](size_t a, size_t b) { return groups[a].active.size() > groups[b].active.size(); };
  // By the first sub-pipeline, first fit needs no more TBs for intervals than are active at once.
  const auto earliest_first = [&](size_t a, size_t b) {
    const auto start = [&](size_t g) { return groups[g].active.empty() ? -1 : groups[g].active[0]; };
    return start(a) < start(b);
  };
  std::vector<size_t> order(groups.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), earliest_first);
  std::vector<int32_t> best(groups.size());
  const int32_t by_start = first_fit(groups, order, sub_pipelines, best);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), busiest_first);
  std::vector<int32_t> other(groups.size());
  if (first_fit(groups, order, sub_pipelines, other) < by_start) best.swap(other);
  renumber(best);
  return best;
}

std::vector<int32_t> spread_thread_blocks(const std::vector<ConnectionGroup>& groups, int sub_pipelines, int32_t most) {
  std::vector<int32_t> tb_of = share_thread_blocks(groups, sub_pipelines);
  std::vector<size_t> order(groups.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (groups[a].between_hosts != groups[b].between_hosts) return groups[a].between_hosts;
    return groups[a].active.size() > groups[b].active.size();
  });
  give_own(order, most, tb_of);
  return tb_of;
}

std::vector<int32_t> part_thread_blocks(const std::vector<ConnectionGroup>& groups, int sub_pipelines) {
  std::vector<int32_t> tb_of(groups.size(), -1);
  std::vector<ConnectionGroup> inside;
  std::vector<size_t> place;
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].between_hosts) continue;
    inside.push_back(groups[g]);
    place.push_back(g);
  }
  const std::vector<int32_t> shared = share_thread_blocks(inside, sub_pipelines);
  for (size_t i = 0; i < shared.size(); ++i) tb_of[place[i]] = shared[i];
  int32_t next = count_thread_blocks(shared);
  for (int32_t& tb : tb_of) {
    if (tb < 0) tb = next++;
  }
  renumber(tb_of);
  return tb_of;
}

int32_t count_thread_blocks(const std::vector<int32_t>& tb_of) {
  return tb_of.empty() ? 0 : *std::max_element(tb_of.begin(), tb_of.end()) + 1;
}

}  // namespace theseus
