// A change of class, step by step.
#include "scene.h"

namespace theseus::rdma {
namespace {

TEST(Change, AStreamOfSendsCrossesAChange) {
  Scene scene;
  for (int i = 0; i < 4; ++i) scene.b.post_receive();
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(scene.a.post_send(IBV_WR_SEND, 700, i % 2 == 1, false));
  scene.request(scene.a, 128);
  ASSERT_TRUE(scene.a.post_send(IBV_WR_SEND, 300, true, true));
  scene.advance(scene.a);
  EXPECT_EQ(scene.a.device.find(scene.a.qp->qp_num)->held(), 1u);
  EXPECT_EQ(scene.verbs.sent_class(scene.a.qp), 32);
  scene.settle();
  EXPECT_EQ(scene.verdict(), "");
  ASSERT_EQ(scene.a.marked.size(), 1u);
  EXPECT_EQ(scene.a.marked[0].error, 0);
  EXPECT_EQ(scene.a.marked[0].traffic_class, 128);
  EXPECT_EQ(scene.verbs.sent_class(scene.a.qp), 128);
  EXPECT_EQ(scene.b.expected_message, 6u);
}

}  // namespace
}  // namespace theseus::rdma
