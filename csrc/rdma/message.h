// What the two ends of a queue pair tell each other around a change of class. See queue_pair.h.
#pragma once

#include <cstdint>

namespace theseus::rdma {

struct Message {
  enum Kind : uint32_t {
    kHold = 1,     // "I am drained: drain too, post nothing until released or your lease ends"
    kHeld = 2,     // "done, and these are my sequence numbers"
    kRelease = 3,  // "go on"
  };
  uint32_t kind = 0;
  uint32_t from = 0, to = 0;  // queue pair numbers
  uint32_t number = 0;        // of the kHold; the other two repeat it
  uint32_t sq_psn = 0, rq_psn = 0;
};

// What became of a request: the traffic class now in force, and 0 or the errno of why it is not the requested one.
struct Marked {
  uint32_t qp = 0;
  uint8_t traffic_class = 0;
  int error = 0;
};

}  // namespace theseus::rdma
