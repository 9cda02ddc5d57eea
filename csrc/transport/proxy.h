// Connections of a rank's kernels to ranks on other hosts: a thread of the rank moves messages between pinned memory
// that kernels reach (ProxyEnd) and the rank's TcpLinks, which are its own from here on. So kernels have what the host
// executor has: rails, first aid, pacing, counters.
//
// Kernels cannot wake a thread, so it looks, and sleeps for longer and longer, as long as messages are outstanding that
// were announced. Where none are, it sleeps until the next announcement.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "drivers/cuda/api.h"
#include "schedule/plan.h"
#include "transport/proxy_end.h"
#include "transport/tcp_links.h"

namespace theseus {

// Messages that each micro-batch of a request moves over an end.
struct ProxyUse {
  ProxyEnd* end;
  uint64_t messages;
};

class Proxy {
 public:
  // `links` are open; `slot_bytes`: their longest message. `on_failure` is called once, on the proxy's thread, when a
  // connection is dead; afterwards nothing moves any more.
  Proxy(cuda::Driver& driver, std::unique_ptr<TcpLinks> links, uint32_t slot_bytes,
        std::function<void(const Status&)> on_failure);
  // No kernel uses an end any more.
  ~Proxy() { stop(); }
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  // A new end of a connection, to be asked for once; it lives as long as the proxy. Waits for the thread, which starts
  // with the first one, but not for the peer.
  Result<ProxyEnd*> connect(const Connection& connection);

  // A request of so many micro-batches is about to run. From any thread.
  void announce(const std::vector<ProxyUse>& uses, uint64_t micro_batches);
  // Until what was announced is there, and what was sent is with the system's kernel. Else why not.
  Status flush(const Deadline& deadline);
  // Nothing moves from here on. From any thread; does not wait.
  void abort();
  // The same; waits for the thread. Ends stay.
  void stop();

 private:
  struct Wanted {
    const Connection& connection;
    std::unique_ptr<ProxySender> sender;  // one of the two
    std::unique_ptr<ProxyReceiver> receiver;
    Status status;
    bool done = false;
  };
  void work();
  Status attach(Wanted& wanted);
  void attach_wanted();
  // Until nothing is left to move (true), or there is something else to do.
  Result<bool> pump();
  Result<bool> advance_ends();
  bool settled() const;

  cuda::Driver& driver_;
  std::unique_ptr<TcpLinks> links_;
  const uint32_t slot_bytes_;
  const std::function<void(const Status&)> on_failure_;
  std::atomic<bool> interrupted_{false};         // the thread has something else to do than to move messages
  std::vector<std::unique_ptr<ProxyEnd>> ends_;  // the thread's alone, while there is one

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<Wanted*> wanted_;
  bool busy_ = false;  // there may be something to move
  bool stopping_ = false;
  Status status_;  // why nothing moves any more
  std::thread thread_;
};

}  // namespace theseus
