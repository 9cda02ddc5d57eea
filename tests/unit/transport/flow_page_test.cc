// The page of flow counters, as another process reads it.
#include "transport/flow_page.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "base/fd.h"
#include "net/interfaces.h"

namespace theseus {
namespace {

FlowPageReader::Contents read_own_page() {
  Result<FlowPageReader> reader = FlowPageReader::open(flow_page_fd());
  EXPECT_TRUE(reader.ok()) << reader.status().message();
  return reader->read();
}

// A reader sees whose page it is, and what was counted, by the peer's host and rail.
TEST(FlowPage, ShowsWhatWasCounted) {
  describe_rails(3, 25'000'000);
  FlowCounters& flow = flow_counters("virtual:page-test", 2, "node7");
  flow.bytes = 300;
  flow.acknowledged = 200;
  flow.backlogged_ns = 7;
  flow.backlogged_bytes = 150;
  const FlowPageReader::Contents contents = read_own_page();
  EXPECT_EQ(contents.pid, static_cast<uint32_t>(getpid()));
  EXPECT_EQ(contents.identity, shorten_identity(host_identity()));
  EXPECT_EQ(contents.rates, (std::vector<uint64_t>{25'000'000, 25'000'000, 25'000'000}));
  const auto found = std::find_if(contents.flows.begin(), contents.flows.end(),
                                  [](const FlowSnapshot& one) { return one.identity == "virtual:page-test"; });
  ASSERT_NE(found, contents.flows.end());
  EXPECT_EQ(found->host, "node7");
  EXPECT_EQ(found->rail, 2);
  EXPECT_EQ(found->bytes, 300u);
  EXPECT_EQ(found->acknowledged, 200u);
  EXPECT_EQ(found->backlogged_ns, 7u);
  EXPECT_EQ(found->backlogged_bytes, 150u);
}

// Long identities are shortened, and stay different.
TEST(FlowPage, KeepsLongIdentitiesApart) {
  const std::string start(200, 'h');
  FlowCounters& first = flow_counters(start + "1", 0);
  FlowCounters& second = flow_counters(start + "2", 0);
  EXPECT_NE(&first, &second);
  EXPECT_EQ(&first, &flow_counters(start + "1", 0));
  EXPECT_LT(shorten_identity(start + "1").size(), FlowCounters::kNameBytes);
  EXPECT_NE(shorten_identity(start + "1"), shorten_identity(start + "2"));
}

// What is no page is refused: too small, not sealed against shrinking, of another version.
TEST(FlowPage, RefusesWhatIsNone) {
  EXPECT_FALSE(FlowPageReader::open(-1).ok());
  const Fd small(memfd_create("flow-page-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(small.get(), 4096), 0);
  ASSERT_EQ(fcntl(small.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_EQ(FlowPageReader::open(small.get()).status().code(), Code::InvalidArgument);
  const Fd large(memfd_create("flow-page-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(large.get(), sizeof(FlowPage)), 0);
  EXPECT_FALSE(FlowPageReader::open(large.get()).ok()) << "it could shrink under the reader";
  ASSERT_EQ(fcntl(large.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_NE(FlowPageReader::open(large.get()).status().message().find("version"), std::string::npos);
}

// Counts and strings that a hostile writer left are bounded by the page.
TEST(FlowPage, TrustsNothingInIt) {
  const Fd fd(memfd_create("flow-page-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(fd.get(), sizeof(FlowPage)), 0);
  auto* page = static_cast<FlowPage*>(mmap(nullptr, sizeof(FlowPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
  ASSERT_NE(page, MAP_FAILED);
  ASSERT_EQ(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  page->magic = FlowPage::kMagic;
  page->version = FlowPage::kVersion;
  page->row_bytes = sizeof(FlowCounters);
  page->rows = UINT32_MAX;
  page->rails = UINT32_MAX;
  std::fill(std::begin(page->identity), std::end(page->identity), 'x');
  std::fill(std::begin(page->flows[0].host), std::end(page->flows[0].host), 'y');
  Result<FlowPageReader> reader = FlowPageReader::open(fd.get());
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  const FlowPageReader::Contents contents = reader->read();
  EXPECT_EQ(contents.flows.size(), FlowPage::kRows);
  EXPECT_EQ(contents.rates.size(), FlowPage::kRails);
  EXPECT_EQ(contents.identity.size(), FlowCounters::kNameBytes);
  EXPECT_EQ(contents.flows[0].host.size(), FlowCounters::kNameBytes);
  munmap(page, sizeof(FlowPage));
}

}  // namespace
}  // namespace theseus
