#include "net/star_hub.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/env.h"
#include "base/log.h"
#include "net/interfaces.h"
#include "net/wire.h"

namespace theseus {
namespace {

constexpr size_t kMaxFrame = kMaxGatherBlob + 4096;
constexpr size_t kMaxQueued = size_t{1} << 30;
// A rank runs one gather at a time; more than this many open ones are those that their callers gave up on.
constexpr size_t kMaxOpenGathers = 16;
constexpr size_t kMaxFailures = 64;

std::string encode_failure(int dead_rank, const Status& failure) {
  return WireWriter().number(dead_rank).number(static_cast<int32_t>(failure.code())).text(failure.message()).take();
}

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", seconds);
  return text;
}

}  // namespace

std::string process_label() { return "host " + host_name() + ", pid " + std::to_string(getpid()); }

double heartbeat_period(double timeout) { return std::clamp(timeout / 4, 0.01, 1.0); }

double SilenceClock::tick() {
  const uint64_t now = now_ns();
  const double gap = static_cast<double>(now - last_ns_) * 1e-9;
  last_ns_ = now;
  return std::min(gap, 2 * period_);
}

StarHub::StarHub(ProcessServer* server, const CommId& communicator, int ranks)
    : server_(server),
      communicator_(communicator),
      members_(static_cast<size_t>(ranks)),
      timeout_(settings::heartbeat_timeout()),
      clock_(heartbeat_period(timeout_)) {}

void StarHub::open() {
  const auto self = shared_from_this();
  server_->register_handler(communicator_, Purpose::Star, 0, [self](const Hello& hello, Socket socket) {
    self->accept(hello.source, std::move(socket));
  });
  server_->loop().run([self] {
    self->timer_ = self->server_->loop().add_timer(heartbeat_period(self->timeout_), [self] { self->tick(); });
  });
}

void StarHub::accept(int rank, Socket socket) {
  if (ended_ || rank < 0 || rank >= static_cast<int>(members_.size())) return;
  Member& member = members_[static_cast<size_t>(rank)];
  if (member.state != State::Absent || member.connection != nullptr) {
    THESEUS_WARN("rank %d connects to the control star twice; the second connection is dropped", rank);
    return;
  }
  FrameConnection::Callbacks callbacks;
  const std::weak_ptr<StarHub> weak = weak_from_this();
  callbacks.on_frame = [weak, rank](Frame frame) {
    if (const auto self = weak.lock()) self->on_frame(rank, frame);
  };
  callbacks.on_close = [weak, rank](const std::string& why) {
    if (const auto self = weak.lock()) self->dead(rank, "ended (" + why + ")");
  };
  member.connection =
      FrameConnection::open(server_->loop(), std::move(socket), kMaxFrame, kMaxQueued, std::move(callbacks));
}

void StarHub::on_frame(int rank, const Frame& frame) {
  Member& member = members_[static_cast<size_t>(rank)];
  if (ended_ || member.state == State::Left || member.state == State::Dead) return;
  member.silent = 0;
  WireReader reader(frame.payload);
  switch (frame.type) {
    case kStarIntroduce: return introduce(rank, reader.text());
    case kStarHeartbeat:
      member.progress.request = reader.number<uint64_t>();
      member.progress.signature_hash = reader.number<uint32_t>();
      member.waits_in = reader.text();
      return compare_waiting(rank);
    case kStarGather: {
      const auto sequence = reader.number<uint64_t>();
      std::string blob = reader.text();
      if (reader.ok()) contribute(rank, sequence, std::move(blob));
      return;
    }
    case kStarFail: {
      reader.number<int32_t>();
      const auto code = std::clamp(reader.number<int32_t>(), 1, static_cast<int32_t>(Code::Timeout));
      const std::string message = reader.text();
      return failed(rank, -1, Status(static_cast<Code>(code), message));
    }
    case kStarGoodbye: return goodbye(rank);
    default: return dead(rank, "sent something that is no message of the control star");
  }
}

// Ranks that wait in the same request, and mean different things by it, wait for what nobody sends.
void StarHub::compare_waiting(int rank) {
  const Member& one = members_[static_cast<size_t>(rank)];
  if (one.waits_in.empty() || one.progress.request == 0 || reported_mismatch_) return;
  for (size_t i = 0; i < members_.size(); ++i) {
    const Member& other = members_[i];
    if (other.state != State::Present || other.waits_in.empty() || other.progress.request != one.progress.request ||
        other.progress.signature_hash == one.progress.signature_hash) {
      continue;
    }
    reported_mismatch_ = true;
    return failed(-1, -1,
                  Status::usage("mismatched calls: rank " + std::to_string(i) + " runs " + other.waits_in +
                                ", but rank " + std::to_string(rank) + " runs " + one.waits_in));
  }
}

void StarHub::introduce(int rank, const std::string& label) {
  Member& member = members_[static_cast<size_t>(rank)];
  if (member.state != State::Absent) return;
  member.state = State::Present;
  member.label = label;
  member.progress.rank = rank;
  member.connection->send(kStarWelcome, WireWriter().text(process_label()).take());
  for (const std::string& failure : failures_) member.connection->send(kStarFail, failure);
  // Who left before this one came, it has to know too: rank 0's absence changes what the end of the hub means.
  for (size_t other = 0; other < members_.size(); ++other) {
    if (members_[other].state != State::Left) continue;
    member.connection->send(kStarGoodbye, WireWriter().number(static_cast<int32_t>(other)).take());
  }
}

void StarHub::contribute(int rank, uint64_t sequence, std::string blob) {
  if (gathers_.size() >= kMaxOpenGathers && gathers_.count(sequence) == 0) {
    fail_gather(gathers_.begin()->first, Status::internal("too many unfinished exchanges on the control star"));
  }
  Gather& gather = gathers_[sequence];
  gather.blobs.resize(members_.size());
  auto& slot = gather.blobs[static_cast<size_t>(rank)];
  if (slot.has_value()) return;
  slot = std::move(blob);
  if (++gather.count < static_cast<int>(members_.size())) return review_gathers();
  WireWriter table;
  table.number(sequence);
  for (const auto& entry : gather.blobs) table.text(*entry);
  gathers_.erase(sequence);
  broadcast(kStarTable, table.take(), -1);
}

void StarHub::fail_gather(uint64_t sequence, const Status& failure) {
  gathers_.erase(sequence);
  broadcast(kStarGatherFailed,
            WireWriter().number(sequence).number(static_cast<int32_t>(failure.code())).text(failure.message()).take(),
            -1);
}

// A gather that a rank has not contributed to, and never will, cannot end.
void StarHub::review_gathers() {
  std::map<uint64_t, Status> hopeless;
  for (const auto& [sequence, gather] : gathers_) {
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      const State state = members_[rank].state;
      if (gather.blobs[rank].has_value() || (state != State::Left && state != State::Dead)) continue;
      hopeless[sequence] = Status::remote(name_of(static_cast<int>(rank)) + " has left the communicator");
      break;
    }
  }
  for (const auto& [sequence, failure] : hopeless) fail_gather(sequence, failure);
}

void StarHub::goodbye(int rank) {
  Member& member = members_[static_cast<size_t>(rank)];
  if (ended_ || member.state == State::Left || member.state == State::Dead) return;
  member.state = State::Left;
  member.connection->close();
  broadcast(kStarGoodbye, WireWriter().number(rank).take(), rank);
  review_gathers();
  end_if_empty();
}

void StarHub::dead(int rank, const std::string& what) {
  Member& member = members_[static_cast<size_t>(rank)];
  if (ended_ || member.state == State::Left || member.state == State::Dead) return;
  const Status failure = Status::remote(name_of(rank) + " " + what);
  member.state = State::Dead;
  // Should it live after all, cut off or stopped, it gets to know as well.
  if (member.connection != nullptr) {
    member.connection->send(kStarFail, encode_failure(rank, failure));
    member.connection->close_after_send();
  }
  failed(rank, rank, failure);
  review_gathers();
  end_if_empty();
}

void StarHub::failed(int source, int dead_rank, const Status& failure) {
  THESEUS_WARN(failure.message());
  const std::string payload = encode_failure(dead_rank, failure);
  if (failures_.size() < kMaxFailures) failures_.push_back(payload);
  broadcast(kStarFail, payload, source);
}

void StarHub::broadcast(uint32_t type, const std::string& payload, int except) {
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    if (members_[rank].state == State::Present && static_cast<int>(rank) != except) {
      // A send that finds the peer gone may call dead(), which changes states but never the vector.
      members_[rank].connection->send(type, payload);
    }
  }
}

void StarHub::tick() {
  const auto self = shared_from_this();
  const double heard = clock_.tick();
  for (size_t i = 0; i < members_.size(); ++i) {
    Member& member = members_[i];
    if (member.state == State::Left || member.state == State::Dead) continue;
    member.silent += heard;
    if (member.silent <= timeout_) continue;
    dead(static_cast<int>(i), member.state == State::Absent
                                  ? "did not come to the communicator's control star within " + seconds_text(timeout_)
                                  : "gave no sign of life for " + seconds_text(timeout_));
  }
  broadcast(kStarHeartbeat, slowest(), -1);
}

void StarHub::end_if_empty() {
  const bool empty = std::none_of(members_.begin(), members_.end(), [](const Member& member) {
    return member.state == State::Absent || member.state == State::Present;
  });
  if (!empty || ended_) return;
  ended_ = true;
  server_->loop().remove_timer(timer_);
  // The handler and the timer own this object; the caller still runs in it.
  server_->loop().post(
      [self = shared_from_this()] { self->server_->unregister_handler(self->communicator_, Purpose::Star, 0); });
}

std::string StarHub::name_of(int rank) const {
  const std::string& label = members_[static_cast<size_t>(rank)].label;
  return "rank " + std::to_string(rank) + (label.empty() ? "" : " (" + label + ")");
}

std::string StarHub::slowest() const {
  Progress slowest;
  for (const Member& member : members_) {
    if (member.state != State::Present) continue;
    if (slowest.rank < 0 || member.progress.request < slowest.request) slowest = member.progress;
  }
  return WireWriter()
      .number(static_cast<int32_t>(slowest.rank))
      .number(slowest.request)
      .number(slowest.signature_hash)
      .take();
}

}  // namespace theseus
