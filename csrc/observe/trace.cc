#include "observe/trace.h"

#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "base/env.h"
#include "base/log.h"
#include "net/interfaces.h"

namespace theseus {
namespace {

// The events of all communicators that have gone so far: a viewer wants one whole document, so each write is of all.
struct Document {
  std::mutex mutex;
  std::string events;
};

Document& document() {
  static Document& instance = *new Document;
  return instance;
}

// Names of schedules and collectives are letters, digits and a few signs; anything else is left out.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c >= ' ' && c != '"' && c != '\\' && c != 0x7f) out += c;
  }
  return out + "\"";
}

std::string microseconds(uint64_t ns) {
  char text[40];
  std::snprintf(text, sizeof text, "%" PRIu64 ".%03u", ns / 1000, static_cast<unsigned>(ns % 1000));
  return text;
}

}  // namespace

std::unique_ptr<Trace> Trace::open(int rank, const std::string& communicator) {
  if (settings::trace().empty()) return nullptr;
  return std::unique_ptr<Trace>(new Trace(rank, communicator));
}

void Trace::request(uint64_t begin_ns, uint64_t end_ns, Collective collective, uint64_t bytes, uint64_t id,
                    const std::string& schedule) {
  if (events_.size() == kMostEvents) {
    ++dropped_;
    return;
  }
  auto known = std::find(schedules_.begin(), schedules_.end(), schedule);
  if (known == schedules_.end()) known = schedules_.insert(schedules_.end(), schedule);
  events_.push_back({begin_ns, end_ns, id, bytes, 0, collective, static_cast<uint32_t>(known - schedules_.begin())});
}

void Trace::context_switch(uint64_t ns, uint64_t id, uint64_t position, uint64_t epoch) {
  if (events_.size() < kMostEvents) events_.push_back({ns, 0, id, position, epoch, Collective::Barrier, 0});
}

std::string Trace::to_json() const {
  const std::string where = ",\"pid\":" + std::to_string(rank_) + ",\"tid\":" + quoted(communicator_);
  std::string out = "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":" + std::to_string(rank_) +
                    ",\"args\":{\"name\":\"rank " + std::to_string(rank_) + "\"}}";
  for (const Event& event : events_) {
    const std::string id = std::to_string(event.id);
    if (event.end_ns == 0) {
      out += ",\n{\"ph\":\"i\",\"s\":\"p\",\"name\":\"context switch\",\"ts\":" + microseconds(event.begin_ns) + where +
             ",\"args\":{\"request\":" + id + ",\"position\":" + std::to_string(event.bytes) +
             ",\"epoch\":" + std::to_string(event.epoch) + "}}";
      continue;
    }
    out += ",\n{\"ph\":\"X\",\"name\":" + quoted(name_of(event.collective)) +
           ",\"ts\":" + microseconds(event.begin_ns) + ",\"dur\":" + microseconds(event.end_ns - event.begin_ns) +
           where + ",\"args\":{\"request\":" + id + ",\"bytes\":" + std::to_string(event.bytes) +
           ",\"schedule\":" + quoted(schedules_[event.schedule]) + "}}";
  }
  return out;
}

Trace::~Trace() {
  Document& all = document();
  const std::lock_guard lock(all.mutex);
  all.events += (all.events.empty() ? "" : ",\n") + to_json();
  const std::string path = expand_log_path(settings::trace(), host_name(), getpid());
  std::FILE* file = std::fopen(path.c_str(), "we");
  const std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" + all.events + "\n]}\n";
  if (file == nullptr || std::fwrite(text.data(), 1, text.size(), file) != text.size()) {
    THESEUS_WARN("cannot write the trace to %s (THESEUS_TRACE)", path.c_str());
  }
  if (file != nullptr) std::fclose(file);
  if (dropped_ > 0) THESEUS_WARN("the trace leaves out the last %" PRIu64 " requests", dropped_);
}

}  // namespace theseus
