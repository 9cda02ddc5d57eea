// The page that a process's flow counters lie in, as the host's agent reads it: a memfd of a fixed layout.
//
// The writer never shrinks it (it is sealed), and publishes a row by raising `rows` after it has been filled in.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "transport/flow_counters.h"

namespace theseus {

struct FlowPage {
  static constexpr uint64_t kMagic = 0x31574f4c46454854;  // "THEFLOW1"
  static constexpr uint32_t kVersion = 1;
  static constexpr uint32_t kRows = 16384;
  static constexpr uint32_t kRails = 64;

  uint64_t magic;
  uint32_t version;
  uint32_t row_bytes;
  uint32_t pid;
  std::atomic<uint32_t> rows;   // in use
  std::atomic<uint32_t> rails;  // of this process; 0: no data has crossed a network yet
  uint32_t reserved;
  char identity[FlowCounters::kNameBytes];  // host_identity(), as the rows of its peers say it
  char host[FlowCounters::kNameBytes];
  alignas(64) std::atomic<uint64_t> rates[kRails];  // bytes per second of each rail, as set; 0: not known
  FlowCounters flows[kRows];
};

// The page of this process, made at first use. -1 where there is no memory for it: the counters then lie elsewhere.
int flow_page_fd();
// Says what rails this process has. `rate`: bytes per second of each, 0 where not known.
void describe_rails(int rails, uint64_t rate);
// At most FlowCounters::kNameBytes - 1 bytes; different identities stay different.
std::string shorten_identity(const std::string& identity);

// Another process's page, which is not trusted: sizes, version and strings are checked, and nothing is written.
class FlowPageReader {
 public:
  struct Contents {
    uint32_t pid = 0;
    std::string identity;
    std::string host;
    std::vector<uint64_t> rates;  // by rail
    std::vector<FlowSnapshot> flows;
  };

  // `fd` may be closed afterwards. InvalidArgument: no such page, or of another version.
  static Result<FlowPageReader> open(int fd);
  ~FlowPageReader();
  FlowPageReader(FlowPageReader&& other) noexcept : page_(other.page_) { other.page_ = nullptr; }
  FlowPageReader& operator=(FlowPageReader&&) = delete;

  Contents read() const;

 private:
  explicit FlowPageReader(const FlowPage* page) : page_(page) {}
  const FlowPage* page_;
};

}  // namespace theseus
