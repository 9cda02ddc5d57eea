// What the job log holds, one record an entry: schedules, attributes, values (Theseus, "Signals, schedules and
// policies").
//
// A record names things; ids are given when it is applied (context/log.h), in log order, and never reused.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "base/types.h"

namespace theseus {

inline constexpr size_t kLongestName = 128;         // letters, digits, and . _ - :
inline constexpr size_t kLongestPolicy = 4096;      // bytes of one expression
inline constexpr size_t kLongestArguments = 32768;  // bytes of ScheduleDefinition::algorithm
inline constexpr uint32_t kLongestArray = 65536;
inline constexpr size_t kLongestRecord = 1 << 20;

// What moves an attribute. All but Exogenous are endogenous: advanced by every rank alike, over installed values.
enum class Hook : uint8_t {
  Exogenous,   // set_exo
  Requests,    // requests of the communicator since the attribute was installed
  Agreements,  // agreements since then
  Seconds,     // time since then, as agreed; moves at agreements
  Smooth,      // exponential average of `source`, moves at agreements: value += first * (source - value)
  Hysteresis,  // 1 from when `source` falls below `first` until it rises above `second` (first <= second), else 0
  Dwell,       // follows `source`, but changes at most once in `first` agreed seconds
};
inline constexpr int kHooks = 7;

struct AttributeDefinition {
  std::string name;
  Hook hook = Hook::Exogenous;
  uint32_t length = 1;  // 1: a number; more: an array. Smooth, Hysteresis and Dwell: as their source
  double initial = 0;
  std::string source;  // an exogenous attribute, for Smooth, Hysteresis and Dwell; empty else
  double first = 0;
  double second = 0;
  bool operator==(const AttributeDefinition&) const = default;
};

// Elements of an exogenous attribute. Updates fold in log order, each making one version.
struct ExogenousUpdate {
  std::string name;
  std::vector<std::pair<uint32_t, double>> elements;  // index, value
  bool operator==(const ExogenousUpdate&) const = default;
};

struct ScheduleDefinition {
  std::string name;
  Collective collective = Collective::AllReduce;
  int32_t root = -1;        // rooted collectives: the root it is made for; -1: any
  std::string algorithm;    // a built-in's name, with arguments where it takes some; empty: a plan
  uint64_t plan_hash = 0;   // of the plan file's bytes (hash_bytes)
  uint64_t plan_bytes = 0;  // its length
  std::string usable;       // policy: an expression; empty: always
  std::string score;        // policy: an expression; empty: 0
  std::string replaces;     // a schedule's name, or empty
  bool operator==(const ScheduleDefinition&) const = default;
};

struct ScheduleRemoval {
  std::string name;
  bool operator==(const ScheduleRemoval&) const = default;
};

using Record = std::variant<AttributeDefinition, ExogenousUpdate, ScheduleDefinition, ScheduleRemoval>;

// Little-endian, versioned. decode checks everything that can be checked without a log: sizes, names, ranges, NaN.
std::string encode(const Record& record);
Result<Record> decode_record(std::string_view bytes);
// What decode would refuse, for records made here.
Status check(const Record& record);

}  // namespace theseus
