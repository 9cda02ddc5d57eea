#include "net/rendezvous.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/env.h"
#include "base/log.h"
#include "net/interfaces.h"
#include "net/rendezvous_service.h"
#include "net/wire.h"

namespace theseus {
namespace {

constexpr uint32_t kIdMagic = 0x49554854;  // "THUI"
constexpr uint32_t kIdVersion = 1;
constexpr size_t kIdAddresses = 2;
constexpr double kReplySeconds = 2;  // beyond the deadline, for the answer that names the missing ranks

enum IdFlags : uint32_t {
  kIdDerived = 1,      // whoever joins opens it, and who serves may come late
  kIdOwnListener = 2,  // rank 0 listens at the id's address (NCCL_COMM_ID)
};

// What the 128 bytes hold.
struct IdContent {
  Id128 nonce;
  uint32_t flags = 0;
  std::vector<Address> addresses;

  bool patient() const { return (flags & kIdDerived) != 0; }
};

UniqueId encode(const IdContent& content) {
  WireWriter writer;
  writer.number(kIdMagic).number(kIdVersion).number(content.nonce.high).number(content.nonce.low).number(content.flags);
  const size_t count = std::min(content.addresses.size(), kIdAddresses);
  writer.text(encode_addresses({content.addresses.begin(), content.addresses.begin() + static_cast<long>(count)}));
  const std::string bytes = writer.take();
  static_assert(4 + 4 + 16 + 4 + 4 + kIdAddresses * Address::kWireBytes <= sizeof(UniqueId));
  UniqueId id{};
  std::memcpy(id.bytes, bytes.data(), bytes.size());
  return id;
}

Result<IdContent> decode(const UniqueId& id) {
  if (std::all_of(std::begin(id.bytes), std::end(id.bytes), [](char byte) { return byte == 0; })) {
    return Status::argument(
        "the unique id is all zero: one process has to get it from ncclGetUniqueId and send it to the others");
  }
  WireReader reader(std::string_view(id.bytes, sizeof id.bytes));
  if (reader.number<uint32_t>() != kIdMagic || reader.number<uint32_t>() != kIdVersion) {
    return Status::argument(
        "the unique id is not one of this library's (it comes from another NCCL, or was damaged on its way)");
  }
  IdContent content;
  content.nonce.high = reader.number<uint64_t>();
  content.nonce.low = reader.number<uint64_t>();
  content.flags = reader.number<uint32_t>();
  auto addresses = decode_addresses(reader.text());
  if (!reader.ok() || !addresses.ok() || addresses->empty())
    return Status::argument("the unique id was damaged on its way");
  content.addresses = std::move(addresses).value();
  return content;
}

std::string text_of(const std::vector<Address>& addresses) {
  std::string text;
  for (const Address& address : addresses) text += (text.empty() ? "" : " or ") + address.to_string();
  return text;
}

void sleep_milliseconds(long milliseconds) {
  const timespec pause{0, milliseconds * 1000000};
  nanosleep(&pause, nullptr);
}

// The serving process of a fresh id listens before the id exists, so a refusal is final, but for a moment's overload.
// That of a derived id may come later than we.
Result<Socket> reach(const IdContent& id, const Hello& hello, const Deadline& deadline) {
  for (int attempt = 1;; ++attempt) {
    auto socket = ProcessServer::connect(id.addresses, hello, deadline);
    if (socket.ok() || deadline.cancelled()) return socket;
    const bool worth_waiting = socket.status().code() == Code::RemoteError && (id.patient() || attempt < 4);
    if (worth_waiting && !deadline.expired()) {
      sleep_milliseconds(std::min(5L * attempt, 50L));
      continue;
    }
    if (socket.status().code() == Code::RemoteError || socket.status().code() == Code::Timeout) {
      const std::string who =
          id.patient() ? "the process that serves this communicator's start" : "the process that made this unique id";
      return Status(socket.status().code(),
                    who + " does not answer at " + text_of(id.addresses) + ": " + socket.status().message());
    }
    return socket;
  }
}

Status check_arguments(int rank, int ranks, const std::string& blob, const std::string& must_agree) {
  if (ranks < 1 || ranks > kMaxRanks) {
    return Status::argument("the number of ranks is " + std::to_string(ranks) + "; it has to be 1 to " +
                            std::to_string(kMaxRanks));
  }
  if (rank < 0 || rank >= ranks) {
    return Status::argument("rank " + std::to_string(rank) + " is not one of " + std::to_string(ranks) + " ranks");
  }
  if (blob.size() > kMaxRendezvousBlob || must_agree.size() > kMaxRendezvousBlob / 2) {
    return Status::argument("what a rank tells the others at the start is limited to " +
                            std::to_string(kMaxRendezvousBlob) + " bytes");
  }
  return {};
}

Result<RendezvousResult> read_answer(const Frame& answer, int ranks) {
  WireReader reader(answer.payload);
  if (answer.type == kRendezvousError) {
    const auto code = reader.number<int32_t>();
    const std::string message = reader.text();
    const bool known = reader.ok() && code >= 1 && code <= static_cast<int32_t>(Code::Timeout);
    return Status(known ? static_cast<Code>(code) : Code::InternalError, message);
  }
  RendezvousResult result;
  result.communicator.high = reader.number<uint64_t>();
  result.communicator.low = reader.number<uint64_t>();
  const bool complete = reader.number<uint32_t>() == static_cast<uint32_t>(ranks);
  for (int i = 0; i < ranks && reader.ok(); ++i) result.blobs.push_back(reader.text());
  if (answer.type != kRendezvousTable || !complete || !reader.at_end()) {
    return Status::internal("the rendezvous answered with a malformed table");
  }
  return result;
}

}  // namespace

Result<UniqueId> create_unique_id() {
  IdContent content;
  if (const std::string fixed = settings::comm_id(); !fixed.empty()) {
    auto addresses = Address::resolve(fixed);
    if (!addresses.ok() || addresses->front().port() == 0) {
      return Status::argument("NCCL_COMM_ID=" + fixed + " is not host:port" +
                              (addresses.ok() ? "" : ": " + addresses.status().message()));
    }
    // Every process makes the same id by itself.
    content.nonce = derive_id(Id128{1, 1}, fixed);
    content.flags = kIdDerived | kIdOwnListener;
    content.addresses = std::move(addresses).value();
    return encode(content);
  }
  auto service = RendezvousService::get();
  if (!service.ok()) return service.status();
  auto server = ProcessServer::get();
  if (!server.ok()) return server.status();
  auto addresses = server.value()->addresses();
  if (!addresses.ok()) return addresses.status();
  content.nonce = random_id();
  content.addresses = std::move(addresses).value();
  service.value()->expect(content.nonce);
  return encode(content);
}

UniqueId derive_unique_id(const Id128& nonce, const std::vector<Address>& addresses) {
  return encode({nonce, kIdDerived, addresses});
}

Status start_rendezvous_service() { return RendezvousService::get().status(); }

Result<RendezvousResult> rendezvous(const UniqueId& id, int rank, int ranks, const std::string& blob,
                                    const Deadline& deadline, const std::string& must_agree) {
  const double allowed = deadline.remaining();
  THESEUS_TRY(check_not_forked());
  THESEUS_TRY(check_arguments(rank, ranks, blob, must_agree));
  auto content = decode(id);
  if (!content.ok()) return content.status();
  THESEUS_TRY(start_rendezvous_service());
  if ((content->flags & kIdOwnListener) != 0 && rank == 0) {
    const Status listening = ProcessServer::get().value()->listen_also(content->addresses.front());
    // An earlier rank 0 in another process may listen there still, and serves as well.
    if (!listening.ok()) THESEUS_WARN("NCCL_COMM_ID: " + listening.message());
  }

  Hello hello;
  hello.communicator = content->nonce;
  hello.purpose = Purpose::Rendezvous;
  hello.source = rank;
  auto socket = reach(content.value(), hello, deadline);
  if (!socket.ok()) return socket.status();

  JoinRequest request;
  request.rank = rank;
  request.ranks = ranks;
  request.derived = content->patient();
  request.timeout = deadline.remaining();
  request.allowed = allowed;
  request.label = "host " + host_name() + ", pid " + std::to_string(getpid());
  request.must_agree = must_agree;
  request.blob = blob;
  const Deadline answer_deadline = deadline.plus(kReplySeconds);
  Status status = send_frame(socket.value(), kRendezvousJoin, request.encode(), answer_deadline);
  if (status.ok()) {
    const size_t limit = 64 + static_cast<size_t>(ranks) * (kMaxRendezvousBlob + 4);
    auto answer = recv_frame(socket.value(), std::min(limit, size_t{UINT32_MAX}), answer_deadline);
    if (answer.ok()) return read_answer(answer.value(), ranks);
    status = answer.status();
  }
  if (deadline.cancelled()) return deadline.status("waiting for the other ranks");
  if (status.code() == Code::RemoteError) {
    return Status::remote("the process at " + text_of(content->addresses) +
                          ", which serves this communicator's start, ended: " + status.message());
  }
  return status;
}

}  // namespace theseus
