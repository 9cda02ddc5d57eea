// The job log in shared memory: a file that one process (the agent) appends to and many (the ranks) read.
//
// Head, then records: {length u32, crc32c u32, bytes, padding to 8}. An append writes the record, then publishes the
// new count in the head with release order, so that a reader never sees half a record; a reader checks length and CRC
// all the same, since the file may lie on a disk that lost power. Written by index: an index below the count must
// repeat what stands there (a restarted agent replays its journal); a different record freezes the log for good.
//
// Only the head is mapped. Records go by pwrite() and pread(), so that a full disk or a file cut short is an error and
// no SIGBUS.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/result.h"

namespace theseus {

// Bytes of one record at most.
inline constexpr uint32_t kLongestLogRecord = 16u << 20;

class SharedLogWriter {
 public:
  // Makes the file (mode 0600), or opens one of the same log id and version. One writer at a time (flock).
  // InvalidUsage: somebody else writes it; it is another log's; it is frozen. SystemError: no room, no permission, or
  // the file is damaged.
  static Result<std::unique_ptr<SharedLogWriter>> open(const std::string& path, uint64_t log_id,
                                                       uint64_t capacity_bytes = 64u << 20);
  ~SharedLogWriter();

  uint64_t log_id() const;
  uint64_t count() const;
  bool frozen() const;
  // Appends record number `index` (== count()), or checks an older one against what stands there. InvalidUsage: a gap,
  // or frozen (also by this call: what stands at `index` differs). SystemError: no room; nothing was appended.
  Status append(uint64_t index, std::string_view bytes);
  // No further record, for good: the writer knows that logs have forked.
  void freeze();
  // A read-only descriptor of the file, for passing to readers. Not the writer's own, whose lock would live on in them.
  int fd() const;

 private:
  struct Impl;
  explicit SharedLogWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

class SharedLogReader {
 public:
  // SystemError: the file cannot be read, or is no job log (a writer that was killed at once leaves none).
  static Result<std::unique_ptr<SharedLogReader>> open(const std::string& path);
  static Result<std::unique_ptr<SharedLogReader>> from_fd(Fd fd);
  ~SharedLogReader();

  uint64_t log_id() const;
  uint64_t count() const;     // records published; one load
  uint64_t position() const;  // read so far
  bool frozen() const;
  // The next record into `bytes` (a copy); false where there is none yet. SystemError: the file is damaged from here
  // on.
  Result<bool> next(std::string& bytes);

 private:
  struct Impl;
  explicit SharedLogReader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace theseus
