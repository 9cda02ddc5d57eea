#include "context/record.h"

#include <algorithm>
#include <cmath>

#include "net/wire.h"

namespace theseus {
namespace {

constexpr uint8_t kRecordVersion = 1;

bool is_name(std::string_view name) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-' || c == ':';
  };
  return !name.empty() && name.size() <= kLongestName && std::all_of(name.begin(), name.end(), fits);
}

Status check_name(const char* what, std::string_view name) {
  if (is_name(name)) return {};
  // A name that is no name may hold anything, so it is not repeated.
  return Status::argument(std::string("the name of ") + what + " must be 1 to " + std::to_string(kLongestName) +
                          " letters, digits, '.', '_', '-' or ':'");
}

Status check_text(const std::string& owner, const char* what, std::string_view text, size_t longest) {
  if (text.size() <= longest) return {};
  return Status::argument(owner + ": " + what + " is " + std::to_string(text.size()) + " bytes long, at most " +
                          std::to_string(longest) + " are allowed");
}

bool has_source(Hook hook) { return hook == Hook::Smooth || hook == Hook::Hysteresis || hook == Hook::Dwell; }

Status check_parameters(const AttributeDefinition& record, const std::string& owner) {
  if (record.hook != Hook::Hysteresis && record.second != 0) {
    return Status::argument(owner + ": only hysteresis takes a second parameter; leave it 0");
  }
  switch (record.hook) {
    case Hook::Smooth:
      if (record.first > 0 && record.first <= 1) return {};
      return Status::argument(owner + ": the weight of an exponential average lies above 0 and up to 1");
    case Hook::Hysteresis:
      if (record.first <= record.second) return {};
      return Status::argument(owner + ": the lower threshold stands above the upper one; swap them");
    case Hook::Dwell:
      if (record.first >= 0) return {};
      return Status::argument(owner + ": a dwell time is not negative (seconds)");
    default:
      if (record.first == 0) return {};
      return Status::argument(owner + ": its hook takes no parameter; leave it 0");
  }
}

Status check(const AttributeDefinition& record) {
  THESEUS_TRY(check_name("an attribute", record.name));
  const std::string owner = "attribute " + record.name;
  if (static_cast<int>(record.hook) >= kHooks) return Status::argument(owner + ": unknown hook");
  if (record.length == 0 || record.length > kLongestArray) {
    return Status::argument(owner + ": its length must be 1 to " + std::to_string(kLongestArray));
  }
  if (!std::isfinite(record.initial) || !std::isfinite(record.first) || !std::isfinite(record.second)) {
    return Status::argument(owner + ": initial value and parameters must be finite numbers");
  }
  if (has_source(record.hook)) {
    THESEUS_TRY(check_name("a source", record.source));
  } else if (!record.source.empty()) {
    return Status::argument(owner + ": only smooth, hysteresis and dwell have a source; leave it empty");
  } else if (record.hook != Hook::Exogenous && record.length != 1) {
    return Status::argument(owner + ": a counter is one number; give it length 1");
  }
  return check_parameters(record, owner);
}

Status check(const ExogenousUpdate& record) {
  THESEUS_TRY(check_name("an attribute", record.name));
  const std::string owner = "attribute " + record.name;
  if (record.elements.empty() || record.elements.size() > kLongestArray) {
    return Status::argument(owner + ": an update sets 1 to " + std::to_string(kLongestArray) + " elements");
  }
  for (const auto& [index, value] : record.elements) {
    if (index >= kLongestArray) {
      return Status::argument(owner + ": index " + std::to_string(index) + " is beyond the longest array");
    }
    if (!std::isfinite(value)) {
      return Status::argument(owner + ": element " + std::to_string(index) + " is not a finite number");
    }
  }
  return {};
}

bool is_rooted(Collective collective) {
  return collective == Collective::Broadcast || collective == Collective::Reduce || collective == Collective::Gather ||
         collective == Collective::Scatter;
}

Status check(const ScheduleDefinition& record) {
  THESEUS_TRY(check_name("a schedule", record.name));
  const std::string owner = "schedule " + record.name;
  if (static_cast<int>(record.collective) >= kCollectives) return Status::argument(owner + ": unknown collective");
  if (record.collective == Collective::AllToAllV || record.collective == Collective::SendRecv) {
    return Status::argument(owner + ": " + name_of(record.collective) + " runs point to point and takes no schedule");
  }
  if (record.root < -1 || (record.root >= 0 && !is_rooted(record.collective))) {
    return Status::argument(owner + ": root " + std::to_string(record.root) + " does not fit " +
                            name_of(record.collective) + "; -1 means any");
  }
  THESEUS_TRY(check_text(owner, "its algorithm", record.algorithm, kLongestArguments));
  THESEUS_TRY(check_text(owner, "its usable policy", record.usable, kLongestPolicy));
  THESEUS_TRY(check_text(owner, "its score policy", record.score, kLongestPolicy));
  if (record.algorithm.empty() && record.plan_bytes == 0) {
    return Status::argument(owner + ": it has neither an algorithm nor a plan; give one");
  }
  if (record.replaces.empty()) return {};
  THESEUS_TRY(check_name("the schedule it replaces", record.replaces));
  if (record.replaces == record.name) return Status::argument(owner + ": it cannot replace itself");
  return {};
}

Status check(const ScheduleRemoval& record) { return check_name("a schedule", record.name); }

void write(WireWriter& out, const AttributeDefinition& record) {
  out.text(record.name).number(static_cast<uint8_t>(record.hook)).number(record.length).number(record.initial);
  out.text(record.source).number(record.first).number(record.second);
}

void write(WireWriter& out, const ExogenousUpdate& record) {
  out.text(record.name).number(static_cast<uint32_t>(record.elements.size()));
  for (const auto& [index, value] : record.elements) out.number(index).number(value);
}

void write(WireWriter& out, const ScheduleDefinition& record) {
  out.text(record.name).number(static_cast<uint8_t>(record.collective)).number(record.root);
  out.text(record.algorithm).number(record.plan_hash).number(record.plan_bytes);
  out.text(record.usable).text(record.score).text(record.replaces);
}

void write(WireWriter& out, const ScheduleRemoval& record) { out.text(record.name); }

AttributeDefinition read_attribute(WireReader& in) {
  AttributeDefinition record;
  record.name = in.text();
  record.hook = static_cast<Hook>(in.number<uint8_t>());
  record.length = in.number<uint32_t>();
  record.initial = in.number<double>();
  record.source = in.text();
  record.first = in.number<double>();
  record.second = in.number<double>();
  return record;
}

ExogenousUpdate read_update(WireReader& in) {
  ExogenousUpdate record;
  record.name = in.text();
  const auto count = in.number<uint32_t>();
  // One more than allowed is enough for check() to refuse it; nothing is set aside for what does not follow.
  for (uint32_t i = 0; i < count && i <= kLongestArray && in.ok(); ++i) {
    const auto index = in.number<uint32_t>();
    record.elements.emplace_back(index, in.number<double>());
  }
  return record;
}

ScheduleDefinition read_schedule(WireReader& in) {
  ScheduleDefinition record;
  record.name = in.text();
  record.collective = static_cast<Collective>(in.number<uint8_t>());
  record.root = in.number<int32_t>();
  record.algorithm = in.text();
  record.plan_hash = in.number<uint64_t>();
  record.plan_bytes = in.number<uint64_t>();
  record.usable = in.text();
  record.score = in.text();
  record.replaces = in.text();
  return record;
}

}  // namespace

std::string encode(const Record& record) {
  WireWriter out;
  out.number(kRecordVersion).number(static_cast<uint8_t>(record.index()));
  std::visit([&out](const auto& one) { write(out, one); }, record);
  return out.take();
}

Result<Record> decode_record(std::string_view bytes) {
  if (bytes.size() > kLongestRecord) {
    return Status::argument("a record of " + std::to_string(bytes.size()) + " bytes is too long; at most " +
                            std::to_string(kLongestRecord) + " are allowed");
  }
  WireReader in(bytes);
  const auto version = in.number<uint8_t>();
  if (in.ok() && version != kRecordVersion) {
    return Status::argument("a record of version " + std::to_string(version) + " where this library reads version " +
                            std::to_string(kRecordVersion) + "; run one version of it in a job");
  }
  const auto kind = in.number<uint8_t>();
  Record record;
  switch (kind) {
    case 0: record = read_attribute(in); break;
    case 1: record = read_update(in); break;
    case 2: record = read_schedule(in); break;
    case 3: record = ScheduleRemoval{in.text()}; break;
    default: return Status::argument("a record of unknown kind " + std::to_string(kind));
  }
  if (!in.at_end()) return Status::argument("a record whose bytes end too early or too late");
  THESEUS_TRY(check(record));
  return record;
}

Status check(const Record& record) {
  return std::visit([](const auto& one) { return check(one); }, record);
}

}  // namespace theseus
