// What a communicator did, as a Chrome trace (chrome://tracing, Perfetto): requests as bars, switches of the context as
// marks. Only where THESEUS_TRACE names a file; pid is the rank.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/types.h"

namespace theseus {

class Trace {
 public:
  // The trace of one communicator of this process; null where THESEUS_TRACE is empty. Written when it goes, and all of
  // the process's communicators go into one file. %h in the name is the host, %p the process.
  static std::unique_ptr<Trace> open(int rank, const std::string& communicator);
  ~Trace();

  void request(uint64_t begin_ns, uint64_t end_ns, Collective collective, uint64_t bytes, uint64_t id,
               const std::string& schedule);
  // The context changed before request `id`.
  void context_switch(uint64_t ns, uint64_t id, uint64_t position, uint64_t epoch);

 private:
  struct Event {
    uint64_t begin_ns;
    uint64_t end_ns;  // 0: a mark
    uint64_t id;
    uint64_t bytes;  // of a mark: the position
    uint64_t epoch;
    Collective collective;
    uint32_t schedule;  // in schedules_
  };
  static constexpr size_t kMostEvents = 1 << 20;  // later ones are counted, not kept

  Trace(int rank, std::string communicator) : rank_(rank), communicator_(std::move(communicator)) {}
  std::string to_json() const;

  const int rank_;
  const std::string communicator_;
  std::vector<Event> events_;
  std::vector<std::string> schedules_;
  uint64_t dropped_ = 0;
};

}  // namespace theseus
