#include "net/event_loop.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>

#include "base/clock.h"
#include "base/fork.h"
#include "base/log.h"

namespace theseus {
namespace {

constexpr uint64_t kWakeId = 0;
thread_local const EventLoop* current_loop = nullptr;

}  // namespace

Result<EventLoop*> EventLoop::start() {
  THESEUS_TRY(check_not_forked());
  arm_fork_guard();
  // Lives as long as the process: its thread uses it until the very end.
  std::unique_ptr<EventLoop> loop(new EventLoop);
  loop->epoll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  if (!loop->epoll_) return descriptor_error("cannot start the watch thread", errno);
  loop->wake_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!loop->wake_) return descriptor_error("cannot start the watch thread", errno);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeId;
  if (epoll_ctl(loop->epoll_.get(), EPOLL_CTL_ADD, loop->wake_.get(), &event) != 0) {
    return Status::from_errno("cannot start the watch thread", errno);
  }

  // The application's signals are its own business: its threads inherit none of this.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  const int error = pthread_create(&thread, &attributes, thread_main, loop.get());
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) return Status::from_errno("cannot start the watch thread", error);
  return loop.release();
}

void* EventLoop::thread_main(void* self) {
  pthread_setname_np(pthread_self(), "theseus-watch");
  static_cast<EventLoop*>(self)->main();
  return nullptr;
}

bool EventLoop::on_thread() const { return current_loop == this; }

void EventLoop::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
}

void EventLoop::post(std::function<void()> function) {
  if (is_forked_child()) return;
  bool first;
  {
    std::lock_guard lock(mutex_);
    first = posted_.empty();
    posted_.push_back(std::move(function));
  }
  if (first) wake();
}

void EventLoop::run(const std::function<void()>& function) {
  if (on_thread()) return function();
  if (is_forked_child()) return;
  std::mutex mutex;
  std::condition_variable finished;
  bool done = false;
  post([&] {
    function();
    // Notified under the lock: the waiter's stack frame may be gone as soon as it sees `done`.
    std::lock_guard lock(mutex);
    done = true;
    finished.notify_one();
  });
  std::unique_lock lock(mutex);
  finished.wait(lock, [&] { return done; });
}

void EventLoop::on_loop(std::function<void()> function) {
  if (on_thread()) {
    function();
  } else {
    post(std::move(function));
  }
}

EventLoop::TimerId EventLoop::add_timer(double period, std::function<void()> function) {
  const TimerId id = next_timer_.fetch_add(1, std::memory_order_relaxed);
  auto timer = std::make_shared<Timer>();
  timer->period_ns = static_cast<uint64_t>(std::max(period, 0.001) * 1e9);
  timer->due_ns = now_ns() + timer->period_ns;
  timer->function = std::move(function);
  on_loop([this, id, timer] { timers_[id] = timer; });
  return id;
}

void EventLoop::remove_timer(TimerId timer) {
  on_loop([this, timer] { timers_.erase(timer); });
}

void EventLoop::watch(int fd, uint32_t events, std::function<void(uint32_t)> function) {
  auto watch = std::make_shared<Watch>(Watch{fd, std::move(function)});
  on_loop([this, fd, events, watch] {
    unwatch(fd);
    const uint64_t id = next_watch_++;
    watches_[id] = watch;
    watch_of_fd_[fd] = id;
    epoll_event event{};
    event.events = events;
    event.data.u64 = id;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      THESEUS_WARN("cannot watch descriptor %d: errno %d", fd, errno);
    }
  });
}

void EventLoop::change(int fd, uint32_t events) {
  on_loop([this, fd, events] {
    const auto found = watch_of_fd_.find(fd);
    if (found == watch_of_fd_.end()) return;
    epoll_event event{};
    event.events = events;
    event.data.u64 = found->second;
    epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
  });
}

void EventLoop::unwatch(int fd) {
  on_loop([this, fd] {
    const auto found = watch_of_fd_.find(fd);
    if (found == watch_of_fd_.end()) return;
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
    watches_.erase(found->second);
    watch_of_fd_.erase(found);
  });
}

void EventLoop::run_posted() {
  std::vector<std::function<void()>> posted;
  {
    std::lock_guard lock(mutex_);
    posted.swap(posted_);
  }
  for (auto& function : posted) {
    function();
    function = nullptr;  // what it owns goes before the next one runs
  }
}

void EventLoop::run_timers() {
  const uint64_t now = now_ns();
  std::vector<TimerId> due;
  for (auto& [id, timer] : timers_) {
    if (timer->due_ns > now) continue;
    timer->due_ns = now + timer->period_ns;
    due.push_back(id);
  }
  for (const TimerId id : due) {
    // An earlier timer may have removed this one.
    const auto found = timers_.find(id);
    if (found == timers_.end()) continue;
    const std::shared_ptr<Timer> timer = found->second;
    timer->function();
  }
}

int EventLoop::wait_milliseconds() const {
  if (timers_.empty()) return -1;
  uint64_t next = UINT64_MAX;
  for (const auto& [id, timer] : timers_) next = std::min(next, timer->due_ns);
  const uint64_t now = now_ns();
  return next <= now ? 0 : static_cast<int>(std::min<uint64_t>((next - now) / 1000000 + 1, 60000));
}

namespace {

constexpr int kBatch = 64;
constexpr int kMostBatches = 64;  // so that a flood does not keep the timers waiting for ever

}  // namespace

void EventLoop::main() {
  current_loop = this;
  epoll_event events[kBatch];
  while (true) {
    // All that is ready comes before the timers: a loop that is late must not take what it has yet to read for silence.
    int ready = epoll_wait(epoll_.get(), events, kBatch, wait_milliseconds());
    for (int batch = 1; ready > 0; ++batch) {
      dispatch(events, ready);
      if (ready < kBatch || batch == kMostBatches) break;
      ready = epoll_wait(epoll_.get(), events, kBatch, 0);
    }
    run_posted();
    run_timers();
  }
}

void EventLoop::dispatch(const epoll_event* events, int count) {
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == kWakeId) {
      uint64_t wakes;
      [[maybe_unused]] const ssize_t got = read(wake_.get(), &wakes, sizeof wakes);
      continue;
    }
    // An earlier callback of this batch may have taken the watch away.
    const auto found = watches_.find(events[i].data.u64);
    if (found == watches_.end()) continue;
    const std::shared_ptr<Watch> watch = found->second;
    watch->function(events[i].events);
  }
}

}  // namespace theseus
