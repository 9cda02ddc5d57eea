// The job log as one rank has read it, and what follows from a position of it.
//
// Append-only and the same everywhere, so a position (number of records) gives the attributes, the versions of their
// values and the schedules known; only which schedules are *loaded* differs out of order, hence a bitmap.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "context/record.h"

namespace theseus {

// What one job may ever define; removed schedules count, since ids are never reused.
inline constexpr uint32_t kMostSchedules = 1 << 16;
inline constexpr uint32_t kMostAttributes = 1 << 12;
inline constexpr size_t kMostElements = 1 << 20;  // of all attributes together

// Bit per schedule id. Bits beyond the end are 0.
class ScheduleSet {
 public:
  void set(uint32_t id, bool value = true);
  bool test(uint32_t id) const;
  void intersect(const ScheduleSet& other);
  const std::vector<uint64_t>& words() const { return words_; }  // no trailing zeros
  static ScheduleSet from_words(std::vector<uint64_t> words);
  bool operator==(const ScheduleSet&) const = default;

 private:
  std::vector<uint64_t> words_;
};

struct Attribute {
  uint32_t id = 0;
  AttributeDefinition definition;  // its length is the source's, where it has one
  int32_t source = -1;             // id, where the hook has one
  uint64_t version = 0;            // updates folded
  std::vector<double> values;      // exogenous: the folded values; else: initial
};

struct Schedule {
  uint32_t id = 0;
  ScheduleDefinition definition;
};

// A copy of everything that selection needs, at one position; owns all it holds, so that the log may go.
struct Snapshot {
  uint64_t log_id = 0;
  uint64_t position = 0;
  std::vector<Attribute> attributes;  // by id, all
  std::vector<Schedule> schedules;    // loaded and not removed, ascending ids
  std::vector<int32_t> replaces;      // by schedule id, removed ones too: the id it replaces, or -1
  uint64_t digest = 0;                // over all of the above; equal on all ranks that may install it
};

class ContextLog {
 public:
  explicit ContextLog(uint64_t id);
  ~ContextLog();
  ContextLog(ContextLog&&) noexcept;
  ContextLog& operator=(ContextLog&&) noexcept;

  uint64_t id() const;
  uint64_t position() const;
  uint32_t schedules() const;  // ids given so far

  // Why apply() would refuse the record: a name taken, an unknown attribute, source or schedule, a removed one, an
  // index out of range, too many. Policies are not looked at (policy/).
  Status check(const Record& record) const;
  // Applies the next record. A refused one is an error and takes no position.
  Status apply(const Record& record);

  // Null where the id was not given (yet). Removed ones are still there.
  const Schedule* schedule(uint32_t id) const;
  std::optional<uint32_t> find_schedule(std::string_view name) const;  // that is not removed
  bool removed(uint32_t id, uint64_t position) const;
  const Attribute* find_attribute(std::string_view name) const;  // with its newest values

  // InvalidArgument: the position was not reached yet, or was dropped by forget_before(), or does not know a schedule
  // of `loaded` yet. Bits of schedules removed by then do not matter.
  Result<Snapshot> snapshot(uint64_t position, const ScheduleSet& loaded) const;
  // Old values of exogenous attributes below `position` may go; schedules and definitions stay.
  void forget_before(uint64_t position);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace theseus
