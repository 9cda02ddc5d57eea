#include "transport/p2p.h"

#include <algorithm>
#include <cstring>

#include "base/env.h"
#include "net/process_server.h"

namespace theseus {
namespace {

// What a receiver answers. Status::message() follows where `code` is not Success.
struct Answer {
  int32_t code = 0;
  uint32_t message_bytes = 0;
  cuda::IpcHandle handle;
  uint64_t allocation = 0;  // which one of the receiver's, so that it is imported once
  uint64_t offset = 0;      // of the block
  uint64_t block_bytes = 0;
};
constexpr uint32_t kLongestMessage = 4096;

}  // namespace

// The blocks that lie at one rank. Its own mutex: the watch thread answers from it.
class P2pLinks::Inbox {
 public:
  Inbox(cuda::Driver& driver, int device, int rank, int ranks, size_t block_bytes)
      : driver_(driver), device_(device), rank_(rank), ranks_(ranks), block_bytes_(block_bytes) {}
  ~Inbox() {
    for (void* memory : allocations_) (void)driver_.release(device_, memory);
    if (stream_ != nullptr) (void)driver_.destroy_stream(device_, stream_);
  }

  // Makes room for the first channel of each rank on this host.
  Status open(const std::vector<P2pPeer>& peers) {
    Result<cuda::Stream> stream = driver_.create_stream(device_);
    if (!stream.ok()) return stream.status();
    stream_ = *stream;
    std::vector<Channel> first;
    for (int peer = 0; peer < ranks_; ++peer) {
      if (peer != rank_ && peers[static_cast<size_t>(peer)].local) first.emplace_back(peer, 0);
    }
    return first.empty() ? Status() : add(first);
  }

  struct Block {
    void* at;
    uint64_t allocation;
    uint64_t offset;
  };
  Result<Block> block(int peer, int channel) {
    const std::lock_guard lock(mutex_);
    auto found = blocks_.find({peer, channel});
    if (found == blocks_.end()) {
      THESEUS_TRY(add({{peer, channel}}));
      found = blocks_.find({peer, channel});
    }
    const auto [allocation, offset] = found->second;
    return Block{static_cast<uint8_t*>(allocations_[allocation]) + offset, allocation, offset};
  }

  Answer answer(int peer, int channel, std::string& message) {
    Answer answer;
    const auto refuse = [&](const Status& status) {
      message = status.message().substr(0, kLongestMessage);
      answer.code = static_cast<int32_t>(status.code());
      answer.message_bytes = static_cast<uint32_t>(message.size());
      return answer;
    };
    if (peer < 0 || peer >= ranks_ || peer == rank_ || channel < 0) {
      return refuse(Status::argument("rank " + std::to_string(peer) + ", channel " + std::to_string(channel) +
                                     " is no connection to rank " + std::to_string(rank_)));
    }
    Result<Block> found = block(peer, channel);
    if (!found.ok()) return refuse(found.status());
    void* base = static_cast<uint8_t*>(found->at) - found->offset;
    Result<cuda::IpcHandle> handle = driver_.export_memory(base);
    if (!handle.ok()) return refuse(handle.status());
    Result<cuda::PointerInfo> info = driver_.pointer_info(base);
    if (!info.ok()) return refuse(info.status());
    answer.handle = *handle;
    answer.allocation = found->allocation;
    answer.offset =
        found->offset + static_cast<uint64_t>(static_cast<uint8_t*>(base) - static_cast<uint8_t*>(info->base));
    answer.block_bytes = block_bytes_;
    return answer;
  }

  size_t bytes() const {
    const std::lock_guard lock(mutex_);
    return blocks_.size() * block_bytes_;
  }
  int device() const { return device_; }

 private:
  Status add(const std::vector<Channel>& channels) {
    Result<void*> memory = driver_.allocate(device_, channels.size() * block_bytes_);
    if (!memory.ok()) return memory.status();
    Status cleared = driver_.fill(device_, *memory, 0, channels.size() * block_bytes_, stream_);
    if (cleared.ok()) cleared = driver_.synchronize(device_, stream_);
    if (!cleared.ok()) {
      (void)driver_.release(device_, *memory);
      return cleared;
    }
    for (size_t i = 0; i < channels.size(); ++i) blocks_[channels[i]] = {allocations_.size(), i * block_bytes_};
    allocations_.push_back(*memory);
    return {};
  }

  cuda::Driver& driver_;
  int device_;
  int rank_;
  int ranks_;
  size_t block_bytes_;
  cuda::Stream stream_ = nullptr;
  mutable std::mutex mutex_;
  std::vector<void*> allocations_;
  std::map<Channel, std::pair<uint64_t, uint64_t>> blocks_;  // allocation, offset

 public:
  // Inboxes of this process, by communicator and rank. Never destroyed: communicators may end after main().
  struct Directory {
    std::mutex mutex;
    std::map<std::tuple<uint64_t, uint64_t, int>, std::weak_ptr<Inbox>> inboxes;
  };
  static Directory& directory() {
    static Directory& instance = *new Directory;
    return instance;
  }
};

P2pLinks::P2pLinks(const CommId& communicator, int rank, cuda::Driver& driver, int device, std::vector<P2pPeer> peers,
                   size_t block_bytes)
    : communicator_(communicator),
      rank_(rank),
      driver_(driver),
      device_(device),
      peers_(std::move(peers)),
      block_bytes_(block_bytes) {}

Result<std::unique_ptr<P2pLinks>> P2pLinks::open(const CommId& communicator, int rank, cuda::Driver& driver, int device,
                                                 std::vector<P2pPeer> peers, size_t block_bytes) {
  auto links =
      std::unique_ptr<P2pLinks>(new P2pLinks(communicator, rank, driver, device, std::move(peers), block_bytes));
  links->inbox_ = std::make_shared<Inbox>(driver, device, rank, static_cast<int>(links->peers_.size()), block_bytes);
  THESEUS_TRY(links->inbox_->open(links->peers_));
  {
    Inbox::Directory& directory = Inbox::directory();
    const std::lock_guard lock(directory.mutex);
    directory.inboxes[{communicator.high, communicator.low, rank}] = links->inbox_;
  }
  Result<ProcessServer*> server = ProcessServer::get();
  if (!server.ok()) return server.status();
  const auto serve = [inbox = links->inbox_](const Hello& hello, Socket socket) {
    if (!socket.peer_is_same_user()) return;
    std::string message;
    const Answer answer = inbox->answer(hello.source, hello.channel, message);
    const Deadline deadline = Deadline::after(1);
    // What cannot be sent is missed by who asked: its own deadline tells.
    if (!socket.send_all(&answer, sizeof answer, deadline).ok()) return;
    (void)socket.send_all(message.data(), message.size(), deadline).ok();
  };
  (*server)->register_handler(communicator, Purpose::DeviceMemory, rank, serve);
  return links;
}

P2pLinks::~P2pLinks() {
  if (Result<ProcessServer*> server = ProcessServer::get(); server.ok() && inbox_ != nullptr) {
    (*server)->unregister_handler(communicator_, Purpose::DeviceMemory, rank_);
    (*server)->loop().run([] {});  // the handler is not running any more
  }
  Inbox::Directory& directory = Inbox::directory();
  {
    const std::lock_guard lock(directory.mutex);
    directory.inboxes.erase({communicator_.high, communicator_.low, rank_});
  }
  for (const auto& [key, base] : imported_) (void)driver_.release_import(device_, base);
}

Status P2pLinks::check(int peer) const {
  if (peer < 0 || static_cast<size_t>(peer) >= peers_.size() || peer == rank_) {
    return Status::internal("a plan connects rank " + std::to_string(rank_) + " with rank " + std::to_string(peer) +
                            ", which is no peer");
  }
  const P2pPeer& other = peers_[static_cast<size_t>(peer)];
  if (other.local) return {};
  return Status::internal("rank " + std::to_string(peer) + " is on another host (" + other.host_name +
                          "), where kernels of this one reach no memory");
}

Result<void*> P2pLinks::own_block(int peer, int channel) {
  THESEUS_TRY(check(peer));
  Result<Inbox::Block> block = inbox_->block(peer, channel);
  if (!block.ok()) return block.status();
  return block->at;
}

Result<void*> P2pLinks::peer_block(int peer, int channel) {
  THESEUS_TRY(check(peer));
  if (const auto known = known_.find({peer, channel}); known != known_.end()) return known->second;
  const bool inside = peers_[static_cast<size_t>(peer)].process == peers_[static_cast<size_t>(rank_)].process;
  Result<void*> block = inside ? take_inside(peer, channel) : take_between(peer, channel);
  if (block.ok()) known_[{peer, channel}] = *block;
  return block;
}

Result<void*> P2pLinks::take_inside(int peer, int channel) {
  std::shared_ptr<Inbox>& inbox = held_[peer];
  if (inbox == nullptr) {
    Inbox::Directory& directory = Inbox::directory();
    const std::lock_guard lock(directory.mutex);
    const auto found = directory.inboxes.find({communicator_.high, communicator_.low, peer});
    if (found != directory.inboxes.end()) inbox = found->second.lock();
  }
  if (inbox == nullptr) {
    return Status::remote("rank " + std::to_string(peer) + " of this process has left the communicator");
  }
  if (inbox->device() != device_) THESEUS_TRY(driver_.enable_peer(device_, inbox->device()));
  Result<Inbox::Block> block = inbox->block(rank_, channel);
  if (!block.ok()) return block.status();
  return block->at;
}

Result<void*> P2pLinks::take_between(int peer, int channel) {
  const std::string whose = "device memory of rank " + std::to_string(peer);
  Hello hello;
  hello.communicator = communicator_;
  hello.purpose = Purpose::DeviceMemory;
  hello.source = rank_;
  hello.destination = peer;
  hello.channel = channel;
  const Deadline deadline = Deadline::after(settings::heartbeat_timeout());
  Result<Socket> socket = ProcessServer::connect_unix(peers_[static_cast<size_t>(peer)].unix_name, hello, deadline);
  if (!socket.ok()) return socket.status();
  if (!socket->peer_is_same_user()) return Status::system(whose + " belongs to a process of another user");
  Answer answer;
  THESEUS_TRY(socket->recv_all(&answer, sizeof answer, deadline));
  if (answer.code != 0) {
    std::string message(std::min(answer.message_bytes, kLongestMessage), '\0');
    THESEUS_TRY(socket->recv_all(message.data(), message.size(), deadline));
    return Status::remote(whose + ": " + message);
  }
  if (answer.block_bytes != block_bytes_) {
    return Status::internal(whose + " comes in blocks of " + std::to_string(answer.block_bytes) + " bytes, not " +
                            std::to_string(block_bytes_) + " (mixed versions?)");
  }
  void*& base = imported_[{peer, answer.allocation}];
  if (base == nullptr) {
    Result<void*> imported = driver_.import_memory(device_, answer.handle);
    if (!imported.ok()) {
      imported_.erase({peer, answer.allocation});
      return imported.status();
    }
    base = *imported;
  }
  return static_cast<uint8_t*>(base) + answer.offset;
}

size_t P2pLinks::bytes() const { return inbox_->bytes(); }

}  // namespace theseus
