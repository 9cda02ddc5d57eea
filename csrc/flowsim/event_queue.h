// The next event of each activity, earliest first: a heap that knows where everybody is, so that moving an event costs
// O(log n) and leaves nothing stale behind. Ties go to the lower id.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace theseus::flowsim {

class EventQueue {
 public:
  explicit EventQueue(int32_t activities) : place_(activities, -1) {}

  bool empty() const { return heap_.empty(); }
  double time() const { return heap_.front().time; }

  // Gives the activity's one event a time, whether it had one or not.
  void set(int32_t id, double time) {
    if (place_[id] < 0) {
      place_[id] = static_cast<int32_t>(heap_.size());
      heap_.push_back({time, id});
    } else {
      heap_[place_[id]].time = time;
    }
    sink(rise(place_[id]));
  }

  void remove(int32_t id) {
    const int32_t at = place_[id];
    if (at < 0) return;
    place_[id] = -1;
    const Event last = heap_.back();
    heap_.pop_back();
    if (last.id == id) return;
    put(at, last);
    sink(rise(at));
  }

  int32_t pop() {
    const int32_t id = heap_.front().id;
    remove(id);
    return id;
  }

 private:
  struct Event {
    double time;
    int32_t id;
    bool operator<(const Event& other) const { return time != other.time ? time < other.time : id < other.id; }
  };

  void put(int32_t at, const Event& event) {
    heap_[at] = event;
    place_[event.id] = at;
  }

  int32_t rise(int32_t at) {
    const Event event = heap_[at];
    for (; at > 0 && event < heap_[(at - 1) / 2]; at = (at - 1) / 2) put(at, heap_[(at - 1) / 2]);
    put(at, event);
    return at;
  }

  void sink(int32_t at) {
    const Event event = heap_[at];
    const int32_t size = static_cast<int32_t>(heap_.size());
    while (true) {
      int32_t child = 2 * at + 1;
      if (child + 1 < size && heap_[child + 1] < heap_[child]) ++child;
      if (child >= size || !(heap_[child] < event)) break;
      put(at, heap_[child]);
      at = child;
    }
    put(at, event);
  }

  std::vector<Event> heap_;
  std::vector<int32_t> place_;  // of each activity in heap_; -1: it has no event
};

}  // namespace theseus::flowsim
