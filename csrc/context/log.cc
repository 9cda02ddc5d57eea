#include "context/log.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <map>
#include <utility>

#include "context/digest.h"

namespace theseus {

void ScheduleSet::set(uint32_t id, bool value) {
  const size_t word = id / 64;
  const uint64_t bit = uint64_t{1} << (id % 64);
  if (value) {
    if (words_.size() <= word) words_.resize(word + 1);
    words_[word] |= bit;
  } else if (word < words_.size()) {
    words_[word] &= ~bit;
    while (!words_.empty() && words_.back() == 0) words_.pop_back();
  }
}

bool ScheduleSet::test(uint32_t id) const { return id / 64 < words_.size() && (words_[id / 64] >> (id % 64) & 1) != 0; }

void ScheduleSet::intersect(const ScheduleSet& other) {
  if (words_.size() > other.words_.size()) words_.resize(other.words_.size());
  for (size_t i = 0; i < words_.size(); ++i) words_[i] &= other.words_[i];
  while (!words_.empty() && words_.back() == 0) words_.pop_back();
}

ScheduleSet ScheduleSet::from_words(std::vector<uint64_t> words) {
  ScheduleSet set;
  set.words_ = std::move(words);
  while (!set.words_.empty() && set.words_.back() == 0) set.words_.pop_back();
  return set;
}

namespace {

// An element of an exogenous attribute from a position on.
struct Change {
  uint64_t position;
  double value;
};

// How often `positions`, ascending, holds something up to `position`.
template <class Positions>
size_t count_until(const Positions& positions, uint64_t position) {
  return static_cast<size_t>(std::upper_bound(positions.begin(), positions.end(), position) - positions.begin());
}

// An attribute and the values it had: enough of them for a snapshot at any position that was not forgotten.
class AttributeHistory {
 public:
  explicit AttributeHistory(Attribute attribute) : newest_(std::move(attribute)) {
    newest_.values.assign(newest_.definition.length, newest_.definition.initial);
    definition_digest_ = Digest().add(encode(newest_.definition)).value();
  }

  const Attribute& newest() const { return newest_; }
  uint64_t definition_digest() const { return definition_digest_; }

  void update(const ExogenousUpdate& record, uint64_t position) {
    if (changes_.empty()) changes_.resize(newest_.definition.length);
    for (const auto& [index, value] : record.elements) {
      std::vector<Change>& changes = changes_[index];
      newest_.values[index] = value;
      if (!changes.empty() && changes.back().position == position) {
        changes.back().value = value;
      } else {
        changes.push_back({position, value});
        overwritten_.emplace_back(position, index);
      }
    }
    updates_.push_back(position);
    ++newest_.version;
  }

  Attribute at(uint64_t position) const {
    if (updates_.empty() || updates_.back() <= position) return newest_;
    Attribute attribute{
        newest_.id, newest_.definition, newest_.source, forgotten_ + count_until(updates_, position), {}};
    attribute.values.resize(newest_.definition.length);
    for (size_t i = 0; i < changes_.size(); ++i) attribute.values[i] = value_at(changes_[i], position);
    return attribute;
  }

  void forget_before(uint64_t position) {
    for (; !overwritten_.empty() && overwritten_.front().first <= position; overwritten_.pop_front()) {
      std::vector<Change>& changes = changes_[overwritten_.front().second];
      const auto later = first_after(changes, position);
      if (later - changes.begin() > 1) changes.erase(changes.begin(), later - 1);
    }
    const size_t passed = count_until(updates_, position);
    forgotten_ += passed;
    updates_.erase(updates_.begin(), updates_.begin() + static_cast<std::ptrdiff_t>(passed));
  }

 private:
  static std::vector<Change>::const_iterator first_after(const std::vector<Change>& changes, uint64_t position) {
    return std::upper_bound(changes.begin(), changes.end(), position,
                            [](uint64_t at, const Change& change) { return at < change.position; });
  }
  double value_at(const std::vector<Change>& changes, uint64_t position) const {
    const auto later = first_after(changes, position);
    return later == changes.begin() ? newest_.definition.initial : (later - 1)->value;
  }

  Attribute newest_;
  uint64_t definition_digest_ = 0;
  std::vector<std::vector<Change>> changes_;               // by element; empty before the first update
  std::deque<std::pair<uint64_t, uint32_t>> overwritten_;  // position from which older changes of an element may go
  std::deque<uint64_t> updates_;                           // positions of versions, but for those forgotten
  uint64_t forgotten_ = 0;
};

struct ScheduleEntry {
  Schedule schedule;
  int32_t replaces = -1;
  uint64_t removed_at = 0;  // 0: never
  uint64_t digest = 0;
};

}  // namespace

struct ContextLog::Impl {
  uint64_t id = 0;
  uint64_t position = 0;
  uint64_t kept_from = 0;
  size_t elements = 0;
  std::deque<AttributeHistory> attributes;  // by id; a deque, since find_attribute() hands out pointers
  std::vector<uint64_t> defined_at;         // by attribute id, ascending
  std::deque<ScheduleEntry> schedules;      // by id; likewise
  std::vector<uint64_t> added_at;           // by schedule id, ascending
  std::map<std::string, uint32_t, std::less<>> attribute_ids;
  std::map<std::string, uint32_t, std::less<>> schedule_ids;  // not removed

  const Attribute* attribute(std::string_view name) const {
    const auto found = attribute_ids.find(name);
    return found == attribute_ids.end() ? nullptr : &attributes[found->second].newest();
  }
  ScheduleEntry* entry(std::string_view name) {
    const auto found = schedule_ids.find(name);
    return found == schedule_ids.end() ? nullptr : &schedules[found->second];
  }

  Status check(const AttributeDefinition& record);
  Status check(const ExogenousUpdate& record);
  Status check(const ScheduleDefinition& record);
  Status check(const ScheduleRemoval& record);
  void apply(const AttributeDefinition& record);
  void apply(const ExogenousUpdate& record);
  void apply(const ScheduleDefinition& record);
  void apply(const ScheduleRemoval& record);
  uint64_t digest_of(const Snapshot& snapshot) const;
};

Status ContextLog::Impl::check(const AttributeDefinition& record) {
  if (attribute(record.name) != nullptr) {
    return Status::argument("attribute " + record.name + " exists already; choose another name");
  }
  if (attributes.size() >= kMostAttributes || elements + record.length > kMostElements) {
    return Status::argument("attribute " + record.name + ": a job has at most " + std::to_string(kMostAttributes) +
                            " attributes of " + std::to_string(kMostElements) + " elements together");
  }
  if (record.source.empty()) return {};
  const Attribute* source = attribute(record.source);
  if (source == nullptr) {
    return Status::argument("attribute " + record.name + ": its source " + record.source +
                            " is unknown; define that first");
  }
  if (source->definition.hook != Hook::Exogenous) {
    return Status::argument("attribute " + record.name + ": its source " + record.source + " is not exogenous");
  }
  if (record.length != 1 && record.length != source->definition.length) {
    return Status::argument("attribute " + record.name + ": its length " + std::to_string(record.length) +
                            " is not its source's, " + std::to_string(source->definition.length));
  }
  if (elements + source->definition.length > kMostElements) {
    return Status::argument("attribute " + record.name + ": all attributes together have at most " +
                            std::to_string(kMostElements) + " elements");
  }
  return {};
}

Status ContextLog::Impl::check(const ExogenousUpdate& record) {
  const Attribute* known = attribute(record.name);
  if (known == nullptr) return Status::argument("attribute " + record.name + " is unknown; define it first");
  if (known->definition.hook != Hook::Exogenous) {
    return Status::argument("attribute " + record.name + " is advanced by its hook and cannot be set");
  }
  for (const auto& [index, value] : record.elements) {
    if (index >= known->definition.length) {
      return Status::argument("attribute " + record.name + ": index " + std::to_string(index) + " of an array of " +
                              std::to_string(known->definition.length));
    }
  }
  return {};
}

Status ContextLog::Impl::check(const ScheduleDefinition& record) {
  if (entry(record.name) != nullptr) {
    return Status::argument("schedule " + record.name + " exists already; remove it or choose another name");
  }
  if (schedules.size() >= kMostSchedules) {
    return Status::argument("schedule " + record.name + ": a job has at most " + std::to_string(kMostSchedules) +
                            " schedules, removed ones included");
  }
  if (record.replaces.empty()) return {};
  const ScheduleEntry* replaced = entry(record.replaces);
  if (replaced == nullptr) {
    return Status::argument("schedule " + record.name + ": " + record.replaces +
                            ", which it replaces, is unknown or was removed");
  }
  const Collective collective = replaced->schedule.definition.collective;
  if (collective != record.collective) {
    return Status::argument("schedule " + record.name + ": it is for " + name_of(record.collective) + ", and " +
                            record.replaces + ", which it replaces, for " + name_of(collective));
  }
  return {};
}

Status ContextLog::Impl::check(const ScheduleRemoval& record) {
  if (entry(record.name) != nullptr) return {};
  return Status::argument("schedule " + record.name + " is unknown or was removed already");
}

void ContextLog::Impl::apply(const AttributeDefinition& record) {
  Attribute attribute;
  attribute.id = static_cast<uint32_t>(attributes.size());
  attribute.definition = record;
  if (!record.source.empty()) {
    const Attribute& source = *this->attribute(record.source);
    attribute.source = static_cast<int32_t>(source.id);
    attribute.definition.length = source.definition.length;
  }
  elements += attribute.definition.length;
  attribute_ids.emplace(record.name, attribute.id);
  attributes.emplace_back(std::move(attribute));
  defined_at.push_back(position);
}

void ContextLog::Impl::apply(const ExogenousUpdate& record) {
  attributes[attribute_ids.find(record.name)->second].update(record, position);
}

void ContextLog::Impl::apply(const ScheduleDefinition& record) {
  const auto id = static_cast<uint32_t>(schedules.size());
  ScheduleEntry added{{id, record}, -1, 0, Digest().add(encode(record)).value()};
  if (!record.replaces.empty()) added.replaces = static_cast<int32_t>(entry(record.replaces)->schedule.id);
  schedules.push_back(std::move(added));
  added_at.push_back(position);
  schedule_ids.emplace(record.name, id);
}

void ContextLog::Impl::apply(const ScheduleRemoval& record) {
  const auto found = schedule_ids.find(record.name);
  schedules[found->second].removed_at = position;
  schedule_ids.erase(found);
}

uint64_t ContextLog::Impl::digest_of(const Snapshot& snapshot) const {
  Digest digest;
  digest.add(snapshot.log_id).add(snapshot.position);
  digest.add(uint64_t{snapshot.attributes.size()});
  for (const Attribute& attribute : snapshot.attributes) {
    digest.add(attributes[attribute.id].definition_digest()).add(attribute.version);
    for (const double value : attribute.values) digest.add(value);
  }
  digest.add(uint64_t{snapshot.schedules.size()});
  for (const Schedule& schedule : snapshot.schedules)
    digest.add(uint64_t{schedule.id}).add(schedules[schedule.id].digest);
  digest.add(uint64_t{snapshot.replaces.size()});
  for (const int32_t replaced : snapshot.replaces) digest.add(static_cast<uint64_t>(replaced));
  return digest.value();
}

ContextLog::ContextLog(uint64_t id) : impl_(std::make_unique<Impl>()) { impl_->id = id; }
ContextLog::~ContextLog() = default;
ContextLog::ContextLog(ContextLog&&) noexcept = default;
ContextLog& ContextLog::operator=(ContextLog&&) noexcept = default;

uint64_t ContextLog::id() const { return impl_->id; }
uint64_t ContextLog::position() const { return impl_->position; }
uint32_t ContextLog::schedules() const { return static_cast<uint32_t>(impl_->schedules.size()); }

Status ContextLog::check(const Record& record) const {
  THESEUS_TRY(theseus::check(record));
  return std::visit([this](const auto& one) { return impl_->check(one); }, record);
}

Status ContextLog::apply(const Record& record) {
  THESEUS_TRY(check(record));
  ++impl_->position;
  std::visit([this](const auto& one) { impl_->apply(one); }, record);
  return {};
}

const Schedule* ContextLog::schedule(uint32_t id) const {
  return id < impl_->schedules.size() ? &impl_->schedules[id].schedule : nullptr;
}

std::optional<uint32_t> ContextLog::find_schedule(std::string_view name) const {
  const ScheduleEntry* found = impl_->entry(name);
  if (found == nullptr) return std::nullopt;
  return found->schedule.id;
}

bool ContextLog::removed(uint32_t id, uint64_t position) const {
  if (id >= impl_->schedules.size()) return false;
  const uint64_t at = impl_->schedules[id].removed_at;
  return at != 0 && at <= position;
}

const Attribute* ContextLog::find_attribute(std::string_view name) const { return impl_->attribute(name); }

Result<Snapshot> ContextLog::snapshot(uint64_t position, const ScheduleSet& loaded) const {
  if (position > impl_->position || position < impl_->kept_from) {
    return Status::argument("no snapshot at position " + std::to_string(position) + " of the job log: " +
                            std::to_string(impl_->kept_from) + " to " + std::to_string(impl_->position) + " are held");
  }
  Snapshot snapshot;
  snapshot.log_id = impl_->id;
  snapshot.position = position;
  const size_t attributes = count_until(impl_->defined_at, position);
  for (size_t i = 0; i < attributes; ++i) snapshot.attributes.push_back(impl_->attributes[i].at(position));
  const size_t known = count_until(impl_->added_at, position);
  const std::vector<uint64_t>& words = loaded.words();
  for (size_t word = 0; word < words.size(); ++word) {
    for (uint64_t rest = words[word]; rest != 0; rest &= rest - 1) {
      const auto id = static_cast<uint32_t>(word * 64 + static_cast<size_t>(std::countr_zero(rest)));
      if (id >= known) {
        return Status::argument("schedule " + std::to_string(id) + " is not in the job log up to position " +
                                std::to_string(position));
      }
      if (!removed(id, position)) snapshot.schedules.push_back(impl_->schedules[id].schedule);
    }
  }
  snapshot.replaces.reserve(known);
  for (size_t id = 0; id < known; ++id) snapshot.replaces.push_back(impl_->schedules[id].replaces);
  snapshot.digest = impl_->digest_of(snapshot);
  return snapshot;
}

void ContextLog::forget_before(uint64_t position) {
  position = std::min(position, impl_->position);
  if (position <= impl_->kept_from) return;
  impl_->kept_from = position;
  for (AttributeHistory& attribute : impl_->attributes) attribute.forget_before(position);
}

}  // namespace theseus
