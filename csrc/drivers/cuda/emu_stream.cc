#include "drivers/cuda/emu_stream.h"

#include <string>
#include <utility>

#include "base/clock.h"

namespace theseus::cuda {

uint64_t EmuEvent::record(const std::shared_ptr<EmuGraph>& graph) {
  std::lock_guard lock(mutex_);
  captured_ = graph != nullptr;
  graph_ = graph;
  return ++recorded_;
}

void EmuEvent::reach(uint64_t record) {
  std::lock_guard lock(mutex_);
  // A replayed graph reaches its records again, after later ones.
  if (record >= reached_) {
    reached_ = record;
    reached_ns_ = now_ns();
  }
  reached_changed_.notify_all();
}

void EmuEvent::wait_for(uint64_t record) {
  std::unique_lock lock(mutex_);
  reached_changed_.wait(lock, [&] { return reached_ >= record; });
}

EmuEvent::Last EmuEvent::last() const {
  std::lock_guard lock(mutex_);
  return {recorded_, captured_, graph_.lock(), reached_ >= recorded_, reached_ns_};
}

void EmuStream::start(EmuThreads& threads) {
  threads.run([self = shared_from_this()] { self->drain(); });
}

void EmuStream::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

void EmuStream::drain() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return !queue_.empty() || closed_; });
    if (queue_.empty()) return;
    EmuWork work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    before_();
    work();
    work = nullptr;
    lock.lock();
    ++finished_;
    changed_.notify_all();
  }
}

void EmuStream::submit(EmuWork work) {
  std::lock_guard lock(mutex_);
  if (graph_ != nullptr) {
    std::lock_guard graph_lock(graph_->mutex);
    graph_->work.push_back(std::move(work));
    return;
  }
  queue_.push_back(std::move(work));
  ++submitted_;
  changed_.notify_all();
}

uint64_t EmuStream::mark() const {
  std::lock_guard lock(mutex_);
  return finished_ >= submitted_ ? 0 : submitted_;
}

void EmuStream::wait_for(uint64_t mark) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return finished_ >= mark; });
}

Status EmuStream::refuse_capture_of(const char* call) {
  std::lock_guard lock(mutex_);
  return refuse_capture(call);
}

Status EmuStream::refuse_capture(const char* call) {
  if (graph_ == nullptr) return {};
  std::lock_guard graph_lock(graph_->mutex);
  graph_->valid = false;
  return Status::usage(std::string("cannot ") + call +
                       " a stream that is being captured into a CUDA graph; the capture is invalid now");
}

Status EmuStream::synchronize() {
  std::unique_lock lock(mutex_);
  THESEUS_TRY(refuse_capture("synchronize"));
  changed_.wait(lock, [&, target = submitted_] { return finished_ >= target; });
  return {};
}

Result<bool> EmuStream::query() {
  std::lock_guard lock(mutex_);
  if (Status refused = refuse_capture("query"); !refused.ok()) return refused;
  return finished_ >= submitted_;
}

std::shared_ptr<EmuGraph> EmuStream::graph() const {
  std::lock_guard lock(mutex_);
  return graph_;
}

Status EmuStream::begin_capture(std::shared_ptr<EmuGraph> graph) {
  std::lock_guard lock(mutex_);
  if (graph_ != nullptr && graph_ != graph)
    return Status::usage("the stream is being captured into another CUDA graph");
  graph_ = std::move(graph);
  return {};
}

void EmuStream::leave_capture() {
  std::lock_guard lock(mutex_);
  graph_ = nullptr;
}

}  // namespace theseus::cuda
