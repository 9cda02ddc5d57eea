#include "transport/flow_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "base/fd.h"
#include "base/ids.h"
#include "net/interfaces.h"

namespace theseus {
namespace {

void set_text(char (&to)[FlowCounters::kNameBytes], const std::string& text) {
  const size_t bytes = std::min(text.size(), FlowCounters::kNameBytes - 1);
  std::memcpy(to, text.data(), bytes);
  std::memset(to + bytes, 0, FlowCounters::kNameBytes - bytes);
}

void fill_in(FlowCounters& row, const std::string& identity, int rail, const std::string& host) {
  set_text(row.identity, identity);
  set_text(row.host, host.empty() ? identity : host);
  row.rail = static_cast<uint32_t>(rail);
}

// Never destroyed: ports of communicators that outlive main() still count.
struct Table {
  std::mutex mutex;  // guards who gets which row
  Fd fd;
  FlowPage* page = nullptr;
  std::map<std::pair<std::string, int>, FlowCounters*> rows;
  std::vector<std::unique_ptr<FlowCounters>> beside;  // where the page is full, or there is none

  Table() {
    Fd made(memfd_create("theseus-flows", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!made || ftruncate(made.get(), sizeof(FlowPage)) != 0) return;
    fcntl(made.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    void* memory = mmap(nullptr, sizeof(FlowPage), PROT_READ | PROT_WRITE, MAP_SHARED, made.get(), 0);
    if (memory == MAP_FAILED) return;
    page = static_cast<FlowPage*>(memory);
    page->version = FlowPage::kVersion;
    page->row_bytes = sizeof(FlowCounters);
    page->pid = static_cast<uint32_t>(getpid());
    set_text(page->identity, shorten_identity(host_identity()));
    set_text(page->host, host_name());
    page->magic = FlowPage::kMagic;
    fd = std::move(made);
  }

  FlowCounters& row(const std::string& identity, int rail, const std::string& host) {
    FlowCounters*& known = rows[{identity, rail}];
    if (known != nullptr) return *known;
    const uint32_t used = page == nullptr ? FlowPage::kRows : page->rows.load(std::memory_order_relaxed);
    if (used < FlowPage::kRows) {
      known = &page->flows[used];
      fill_in(*known, identity, rail, host);
      page->rows.store(used + 1, std::memory_order_release);
    } else {
      known = beside.emplace_back(std::make_unique<FlowCounters>()).get();
      fill_in(*known, identity, rail, host);
    }
    return *known;
  }
};

Table& table() {
  static auto* instance = new Table;
  return *instance;
}

std::string text_of(const char (&bytes)[FlowCounters::kNameBytes]) {
  return {bytes, std::find(bytes, bytes + FlowCounters::kNameBytes, '\0')};
}

}  // namespace

std::string shorten_identity(const std::string& identity) {
  if (identity.size() < FlowCounters::kNameBytes) return identity;
  const std::string digest = derive_id({}, identity).to_string();
  return identity.substr(0, FlowCounters::kNameBytes - 2 - std::min<size_t>(digest.size(), 32)) + "#" +
         digest.substr(0, 32);
}

FlowCounters& flow_counters(const std::string& identity, int rail, const std::string& host) {
  const std::string key = shorten_identity(identity);
  const std::lock_guard lock(table().mutex);
  return table().row(key, rail, host);
}

std::vector<FlowSnapshot> snapshot_flows() {
  std::vector<FlowSnapshot> all;
  const std::lock_guard lock(table().mutex);
  for (const auto& [key, flow] : table().rows) all.push_back(snapshot_of(*flow));
  return all;
}

int flow_page_fd() { return table().fd.get(); }

void describe_rails(int rails, uint64_t rate) {
  FlowPage* page = table().page;
  if (page == nullptr) return;
  const uint32_t known = std::min(static_cast<uint32_t>(rails), FlowPage::kRails);
  for (uint32_t rail = 0; rail < known; ++rail) page->rates[rail].store(rate, std::memory_order_relaxed);
  page->rails.store(known, std::memory_order_release);
}

Result<FlowPageReader> FlowPageReader::open(int fd) {
  struct stat about{};
  const int seals = fcntl(fd, F_GET_SEALS);
  if (fstat(fd, &about) != 0 || about.st_size < static_cast<off_t>(sizeof(FlowPage)) || seals < 0 ||
      (seals & F_SEAL_SHRINK) == 0) {
    return Status::argument("descriptor " + std::to_string(fd) + " is no page of flow counters");
  }
  void* memory = mmap(nullptr, sizeof(FlowPage), PROT_READ, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return Status::from_errno("cannot map a page of flow counters", errno);
  FlowPageReader reader(static_cast<const FlowPage*>(memory));
  if (reader.page_->magic != FlowPage::kMagic || reader.page_->version != FlowPage::kVersion ||
      reader.page_->row_bytes != sizeof(FlowCounters)) {
    return Status::argument("the page of flow counters of descriptor " + std::to_string(fd) +
                            " is of another version of the library");
  }
  return reader;
}

FlowPageReader::~FlowPageReader() {
  if (page_ != nullptr) munmap(const_cast<FlowPage*>(page_), sizeof(FlowPage));
}

FlowPageReader::Contents FlowPageReader::read() const {
  Contents contents;
  contents.pid = page_->pid;
  contents.identity = text_of(page_->identity);
  contents.host = text_of(page_->host);
  const uint32_t rails = std::min(page_->rails.load(std::memory_order_acquire), FlowPage::kRails);
  for (uint32_t rail = 0; rail < rails; ++rail) {
    contents.rates.push_back(page_->rates[rail].load(std::memory_order_relaxed));
  }
  const uint32_t rows = std::min(page_->rows.load(std::memory_order_acquire), FlowPage::kRows);
  contents.flows.reserve(rows);
  for (uint32_t row = 0; row < rows; ++row) contents.flows.push_back(snapshot_of(page_->flows[row]));
  return contents;
}

}  // namespace theseus
