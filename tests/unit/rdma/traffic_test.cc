// Random traffic of both ends, while classes change at random times: each message is delivered once, in order, bits
// equal, and each completion comes once, with its own id. The same with one rule of the engine switched off must be
// seen to fail.
#include "scene.h"

namespace theseus::rdma {
namespace {

constexpr ibv_wr_opcode kOpcodes[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ};

struct Finding {
  std::string verdict;
  uint64_t rebuilt = 0;
  size_t unanswered = 0;
};

Finding run(uint32_t seed, const Config& config, const Rules& rules, bool shared, bool lossy) {
  Scene scene(config, rules, shared);
  std::mt19937 random(seed);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  size_t requests = 0;
  for (int step = 0; step < 4000; ++step) {
    End& end = below(2) == 0 ? scene.a : scene.b;
    const bool quiet = !end.device.pairs().begin()->second->connected();
    switch (quiet ? 9 : below(12)) {
      case 0:
      case 1:
        end.post_send(kOpcodes[below(4)], below(kLargest) * below(2) + below(2), below(3) == 0, below(3) == 0);
        break;
      case 2:
      case 3: end.post_receive(); break;
      case 4: end.poll(); break;
      case 5:
      case 6:
      case 7: scene.verbs.deliver(end.qp); break;
      case 8:
        if (lossy && below(4) == 0) scene.verbs.lose(end.qp);
        if (lossy && below(4) == 0 && !scene.messages.empty()) scene.messages.pop_front();
        break;
      case 9: scene.pass_message(); break;
      case 10:
        if (below(8) == 0) {
          scene.request(end, static_cast<uint8_t>(below(8) << 5));
          ++requests;
        }
        break;
      default: scene.advance(end);
    }
    scene.now += 200'000;
    if (below(32) == 0) scene.verbs.tick();
    if (!scene.a.fault.empty() || !scene.b.fault.empty()) break;
  }
  if (scene.a.fault.empty() && scene.b.fault.empty()) scene.settle(1500);
  Finding found{scene.verdict()};
  for (End* end : {&scene.a, &scene.b}) found.rebuilt += end->device.find(end->qp->qp_num)->rebuilt();
  found.unanswered = requests == 0 || scene.a.marked.size() + scene.b.marked.size() > 0 ? 0 : 1;
  return found;
}

void expect_clean(bool shared, bool lossy, uint32_t seeds) {
  uint64_t rebuilt = 0;
  for (uint32_t seed = 1; seed <= seeds; ++seed) {
    const Finding found = run(seed, {}, {}, shared, lossy);
    ASSERT_EQ(found.verdict, "") << "seed " << seed;
    ASSERT_EQ(found.unanswered, 0u) << "seed " << seed;
    rebuilt += found.rebuilt;
  }
  EXPECT_GT(rebuilt, 2 * seeds) << "the traffic hardly met a change";
}

TEST(Traffic, NothingIsLostOrDoubled) { expect_clean(false, false, 40); }
TEST(Traffic, NothingIsLostOrDoubledOverALossyNetwork) { expect_clean(false, true, 40); }
TEST(Traffic, NothingIsLostOrDoubledWithASharedReceiveQueue) { expect_clean(true, true, 20); }

size_t caught(const Rules& rules, const Config& config = {}) {
  size_t count = 0;
  for (uint32_t seed = 1; seed <= 20; ++seed) count += run(seed, config, rules, false, false).verdict.empty() ? 0 : 1;
  return count;
}

TEST(Mutations, WithoutHoldingPosts) { EXPECT_GT(caught({.hold_posts = false}, {.ask_peer = false}), 0u); }
TEST(Mutations, WithoutDraining) { EXPECT_GT(caught({.drain = false}, {.ask_peer = false}), 0u); }
TEST(Mutations, WithoutSequenceNumbers) { EXPECT_GT(caught({.restore_psn = false}), 0u); }
TEST(Mutations, WithoutEmptyingTheQueues) { EXPECT_GT(caught({.empty_completions = false}), 0u); }
TEST(Mutations, WithoutPostingReceivesAgain) { EXPECT_GT(caught({.repost_receives = false}), 0u); }
TEST(Mutations, WithoutThePeerHolding) { EXPECT_GT(caught({}, {.ask_peer = false}), 0u); }

}  // namespace
}  // namespace theseus::rdma
