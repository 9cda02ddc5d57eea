#include "net/star.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "base/env.h"
#include "base/fork.h"
#include "net/frames.h"
#include "net/process_server.h"
#include "net/star_hub.h"
#include "net/wire.h"

namespace theseus {
namespace {

constexpr size_t kMaxQueued = size_t{1} << 30;

size_t largest_frame(int ranks) { return 64 + static_cast<size_t>(ranks) * (kMaxGatherBlob + 4); }

Code code_of(int32_t number) {
  return number >= 1 && number <= static_cast<int32_t>(Code::Timeout) ? static_cast<Code>(number) : Code::RemoteError;
}

}  // namespace

// One rank's end. Shared by its Star and the watch thread's callbacks; the mutex guards what both touch.
struct Star::Leaf : std::enable_shared_from_this<Star::Leaf> {
  using Table = std::vector<std::string>;

  // `own_hub`: of rank 0, whose process holds the hub; null elsewhere.
  Leaf(EventLoop& event_loop, int ranks_, std::string hub_label_, std::shared_ptr<StarHub> own_hub)
      : loop(event_loop),
        ranks(ranks_),
        hub_label(std::move(hub_label_)),
        hub(std::move(own_hub)),
        timeout(settings::heartbeat_timeout()),
        clock(heartbeat_period(timeout)) {}

  void start(Socket socket);
  void on_frame(const Frame& frame);
  void on_hub_lost(const std::string& what);
  void tick();
  // On the watch thread: records the failure, and tells whoever waits for one.
  void record(const Status& failure, int dead_rank);
  Result<Table> gather(const std::string& blob, const Deadline& deadline);
  void finish_gather(uint64_t sequence, Result<Table> outcome);
  void stop(bool goodbye);

  EventLoop& loop;
  const int ranks;
  const std::string hub_label;
  const std::shared_ptr<StarHub> hub;
  const double timeout;

  std::mutex mutex;
  std::condition_variable changed;
  Status failure;
  std::set<int> dead;
  std::set<int> gone;                     // said goodbye
  uint64_t sequence = 0;                  // of the last gather
  std::optional<Result<Table>> gathered;  // its outcome
  std::vector<std::function<void(const Status&)>> callbacks;
  Progress slowest;
  bool left = false;

  std::atomic<bool> has_failed{false};
  std::atomic<uint64_t> request{0};
  std::atomic<uint32_t> signature_hash{0};
  std::string description;  // of that request; guarded by the mutex

  // The watch thread alone touches what follows.
  std::shared_ptr<FrameConnection> connection;
  SilenceClock clock;
  double silent = 0;
  bool rank0_left = false;
  EventLoop::TimerId timer = 0;
};

void Star::Leaf::start(Socket socket) {
  const auto self = shared_from_this();
  auto shared = std::make_shared<Socket>(std::move(socket));
  loop.run([self, shared] {
    FrameConnection::Callbacks callbacks;
    const std::weak_ptr<Leaf> weak = self;
    callbacks.on_frame = [weak](Frame frame) {
      if (const auto leaf = weak.lock()) leaf->on_frame(frame);
    };
    callbacks.on_close = [weak](const std::string& why) {
      if (const auto leaf = weak.lock()) leaf->on_hub_lost("ended (" + why + ")");
    };
    self->connection = FrameConnection::open(self->loop, std::move(*shared), largest_frame(self->ranks), kMaxQueued,
                                             std::move(callbacks));
    self->clock.tick();
    self->timer = self->loop.add_timer(heartbeat_period(self->timeout), [self] { self->tick(); });
  });
}

void Star::Leaf::on_frame(const Frame& frame) {
  silent = 0;
  WireReader reader(frame.payload);
  switch (frame.type) {
    case kStarHeartbeat: {
      std::lock_guard lock(mutex);
      slowest.rank = reader.number<int32_t>();
      slowest.request = reader.number<uint64_t>();
      slowest.signature_hash = reader.number<uint32_t>();
      return;
    }
    case kStarTable: {
      const auto number = reader.number<uint64_t>();
      Table table;
      for (int i = 0; i < ranks && reader.ok(); ++i) table.push_back(reader.text());
      if (!reader.at_end()) return finish_gather(number, Status::internal("malformed table on the control star"));
      return finish_gather(number, std::move(table));
    }
    case kStarGatherFailed: {
      const auto number = reader.number<uint64_t>();
      const Code code = code_of(reader.number<int32_t>());
      return finish_gather(number, Status(code, reader.text()));
    }
    case kStarFail: {
      const auto rank = reader.number<int32_t>();
      const Code code = code_of(reader.number<int32_t>());
      return record(Status(code, reader.text()), rank);
    }
    case kStarGoodbye: {
      const auto rank = reader.number<int32_t>();
      rank0_left = rank0_left || rank == 0;
      std::lock_guard lock(mutex);
      if (rank >= 0 && rank < ranks) gone.insert(rank);
      return;
    }
    default: return;
  }
}

// The end of the hub is the end of rank 0's process. Once rank 0 has left, that is its right: the others go on
// unwatched.
void Star::Leaf::on_hub_lost(const std::string& what) {
  loop.remove_timer(timer);
  const Status lost = Status::remote("rank 0 (" + hub_label + ") " + what);
  uint64_t waiting;
  {
    std::lock_guard lock(mutex);
    waiting = sequence;
  }
  if (!rank0_left) record(lost, 0);
  finish_gather(waiting, lost);
}

void Star::Leaf::tick() {
  silent += clock.tick();
  if (silent > timeout) {
    connection->close();
    char text[64];
    std::snprintf(text, sizeof text, "gave no sign of life for %.3g s", timeout);
    return on_hub_lost(text);
  }
  std::string progress;
  {
    std::lock_guard lock(mutex);
    progress = WireWriter()
                   .number(request.load(std::memory_order_relaxed))
                   .number(signature_hash.load(std::memory_order_relaxed))
                   .text(description)
                   .take();
  }
  connection->send(kStarHeartbeat, progress);
}

void Star::Leaf::record(const Status& status, int dead_rank) {
  std::vector<std::function<void(const Status&)>> waiting;
  Status first;
  {
    std::lock_guard lock(mutex);
    if (left) return;
    if (dead_rank >= 0) dead.insert(dead_rank);
    if (failure.ok()) {
      failure = status;
      has_failed.store(true, std::memory_order_release);
    }
    first = failure;
    waiting.swap(callbacks);
    changed.notify_all();
  }
  for (const auto& callback : waiting) callback(first);
}

Result<Star::Leaf::Table> Star::Leaf::gather(const std::string& blob, const Deadline& deadline) {
  if (blob.size() > kMaxGatherBlob) return Status::argument("an exchange between ranks is limited to 1 MiB a rank");
  std::unique_lock lock(mutex);
  if (left) return Status::usage("this rank has left the communicator");
  if (!failure.ok()) return failure;
  const uint64_t number = ++sequence;
  gathered.reset();
  loop.post([self = shared_from_this(), number, blob] {
    if (self->connection == nullptr || !self->connection->is_open()) {
      return self->finish_gather(number, Status::remote("rank 0, which connects the ranks, has left the communicator"));
    }
    self->connection->send(kStarGather, WireWriter().number(number).text(blob).take());
  });
  while (true) {
    if (gathered.has_value()) return *std::exchange(gathered, std::nullopt);
    if (!failure.ok()) return failure;
    if (left) return Status::usage("this rank has left the communicator");
    if (deadline.expired()) return deadline.status("the exchange between all ranks");
    const int wait = deadline.poll_milliseconds();
    changed.wait_for(lock, std::chrono::milliseconds(wait < 0 ? 1000 : wait));
  }
}

void Star::Leaf::finish_gather(uint64_t number, Result<Table> outcome) {
  std::lock_guard lock(mutex);
  if (number != sequence || number == 0) return;  // of a call that has given up
  // The hub may be gone before the caller has picked up what it sent.
  if (gathered.has_value()) return;
  gathered = std::move(outcome);
  changed.notify_all();
}

void Star::Leaf::stop(bool goodbye) {
  {
    std::lock_guard lock(mutex);
    if (left) return;
    left = true;
    changed.notify_all();
  }
  // After this nothing runs on the watch thread for this rank: run() comes behind whatever runs there now.
  loop.run([this, goodbye] {
    loop.remove_timer(timer);
    if (goodbye && hub != nullptr && !has_failed.load(std::memory_order_acquire)) {
      // Not through the socket: this process may end as soon as this returns, and the others must have heard by then.
      connection->close();
      hub->goodbye(0);
    } else {
      if (goodbye) connection->send(kStarGoodbye, "");
      goodbye ? connection->close_after_send() : connection->close();
    }
    std::lock_guard lock(mutex);
    callbacks.clear();
  });
}

namespace {

// Rank 0 is connected like everybody else, only by a pair of sockets.
Result<Socket> open_hub(const CommId& communicator, int ranks, std::shared_ptr<StarHub>* hub) {
  auto server = ProcessServer::get();
  if (!server.ok()) return server.status();
  auto ends = Socket::pair();
  if (!ends.ok()) return ends.status();
  *hub = std::make_shared<StarHub>(server.value(), communicator, ranks);
  (*hub)->open();
  server.value()->loop().run([&] { (*hub)->accept(0, std::move(ends->first)); });
  return std::move(ends->second);
}

}  // namespace

Result<std::unique_ptr<Star>> Star::connect(const CommId& communicator, int rank, int ranks,
                                            const std::vector<Address>& hub, const Deadline& deadline) {
  auto server = ProcessServer::get();
  if (!server.ok()) return server.status();
  Hello hello;
  hello.communicator = communicator;
  hello.purpose = Purpose::Star;
  hello.source = rank;
  hello.destination = 0;
  std::shared_ptr<StarHub> own_hub;
  auto socket = rank == 0 ? open_hub(communicator, ranks, &own_hub) : ProcessServer::connect(hub, hello, deadline);
  if (!socket.ok()) return socket.status();
  THESEUS_TRY(send_frame(socket.value(), kStarIntroduce, WireWriter().text(process_label()).take(), deadline));
  auto welcome = recv_frame(socket.value(), 4096, deadline);
  if (!welcome.ok()) {
    return Status(welcome.status().code(), "rank 0 does not answer on the control star: " + welcome.status().message());
  }
  if (welcome->type != kStarWelcome) return Status::internal("rank 0 answered with something that is no welcome");
  auto leaf =
      std::make_shared<Leaf>(server.value()->loop(), ranks, WireReader(welcome->payload).text(), std::move(own_hub));
  leaf->start(std::move(socket).value());
  return std::unique_ptr<Star>(new Star(std::move(leaf)));
}

Star::Star(std::shared_ptr<Leaf> leaf) : leaf_(std::move(leaf)), generation_(fork_generation()) {}

Star::~Star() {
  // In a forked child the locks may be held by threads that are gone: leave everything as it is.
  if (generation_ != fork_generation()) {
    new std::shared_ptr<Leaf>(std::move(leaf_));
    return;
  }
  leave(true);
}

Result<std::vector<std::string>> Star::all_gather(const std::string& blob, double timeout_s) {
  return all_gather(blob, Deadline::after(timeout_s));
}

Result<std::vector<std::string>> Star::all_gather(const std::string& blob, const Deadline& deadline) {
  THESEUS_TRY(check_not_forked());
  return leaf_->gather(blob, deadline);
}

void Star::fail(const Status& status) {
  if (is_forked_child() || status.ok()) return;
  {
    std::lock_guard lock(leaf_->mutex);
    if (leaf_->left) return;
    if (leaf_->failure.ok()) {
      leaf_->failure = status;
      leaf_->has_failed.store(true, std::memory_order_release);
    }
  }
  leaf_->loop.post([leaf = leaf_, status] {
    leaf->connection->send(
        kStarFail, WireWriter().number(-1).number(static_cast<int32_t>(status.code())).text(status.message()).take());
    leaf->record(status, -1);
  });
}

Status Star::status() const {
  THESEUS_TRY(check_not_forked());
  if (!failed()) return {};
  std::lock_guard lock(leaf_->mutex);
  return leaf_->failure;
}

bool Star::failed() const { return leaf_->has_failed.load(std::memory_order_acquire); }

std::vector<int> Star::dead_ranks() const {
  if (is_forked_child()) return {};
  std::lock_guard lock(leaf_->mutex);
  return {leaf_->dead.begin(), leaf_->dead.end()};
}

std::vector<int> Star::left_ranks() const {
  if (is_forked_child()) return {};
  std::lock_guard lock(leaf_->mutex);
  return {leaf_->gone.begin(), leaf_->gone.end()};
}

void Star::on_failure(std::function<void(const Status&)> callback) {
  if (is_forked_child()) return;
  leaf_->loop.post([leaf = leaf_, callback = std::move(callback)]() mutable {
    Status failure;
    {
      std::lock_guard lock(leaf->mutex);
      if (leaf->left) return;
      failure = leaf->failure;
      if (failure.ok()) return leaf->callbacks.push_back(std::move(callback));
    }
    callback(failure);
  });
}

void Star::set_progress(uint64_t request, uint32_t signature_hash, std::string description) {
  if (is_forked_child()) return;
  std::lock_guard lock(leaf_->mutex);
  leaf_->description = std::move(description);
  leaf_->request.store(request, std::memory_order_relaxed);
  leaf_->signature_hash.store(signature_hash, std::memory_order_relaxed);
}

Progress Star::slowest() const {
  if (is_forked_child()) return {};
  std::lock_guard lock(leaf_->mutex);
  return leaf_->slowest;
}

void Star::close() { leave(true); }
void Star::drop() { leave(false); }

void Star::leave(bool goodbye) {
  if (is_forked_child()) return;
  leaf_->stop(goodbye);
}

}  // namespace theseus
