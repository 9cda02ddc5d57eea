#include "transport/pacing.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "base/env.h"
#include "base/fd.h"
#include "base/ids.h"
#include "base/log.h"
#include "net/interfaces.h"
#include "net/process_server.h"
#include "net/socket.h"

namespace theseus {
namespace {

constexpr double kOpenSeconds = 10;
constexpr double kRetrySeconds = 0.1;
constexpr double kReachSeconds = 3;

std::string socket_name(const std::string& host) {
  return "theseus-nic-" + std::to_string(geteuid()) + "-" + derive_id({}, host).to_string();
}

Result<PacingPage*> map_page(const Fd& fd) {
  struct stat about{};
  if (fstat(fd.get(), &about) != 0 || about.st_size < static_cast<off_t>(sizeof(PacingPage))) {
    return Status::system("what another process handed out as the page of virtual NICs is none");
  }
  void* memory = mmap(nullptr, sizeof(PacingPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return Status::from_errno("cannot map the page of virtual NICs", errno);
  return static_cast<PacingPage*>(memory);
}

bool same_file(const Fd& a, const Fd& b) {
  struct stat first{}, second{};
  return fstat(a.get(), &first) == 0 && fstat(b.get(), &second) == 0 && first.st_ino == second.st_ino &&
         first.st_dev == second.st_dev;
}

void set_rate_in(PacingPage& page, int rail, uint64_t bytes_per_second, Direction direction) {
  PacingPage::Nic& nic = page.nics[static_cast<unsigned>(rail) % PacingPage::kRails];
  if (direction != Direction::Ingress) nic.egress.set_rate(bytes_per_second, now_ns());
  if (direction != Direction::Egress) nic.ingress.set_rate(bytes_per_second, now_ns());
  page.changes.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

// Owned by the Pacing and by the watch thread's callbacks. After open() the watch thread alone touches it, but for
// `page` and `owner`.
struct Pacing::Share : std::enable_shared_from_this<Pacing::Share> {
  std::string name;
  Fd fd;
  std::atomic<PacingPage*> page{nullptr};
  std::vector<PacingPage*> mapped;  // ports may be looking at an older one
  std::atomic<bool> owner{false};
  EventLoop* loop = nullptr;
  Socket listener;
  std::map<int, Socket> followers;  // kept so that they notice our end
  Socket leader;
  EventLoop::TimerId retry = 0;
  bool closed = false;

  ~Share() {
    for (PacingPage* old : mapped) munmap(old, sizeof(PacingPage));
  }

  Status create(uint64_t bytes_per_second) {
    fd = Fd(memfd_create("theseus-nics", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd) return descriptor_error("cannot make the page of virtual NICs", errno);
    if (ftruncate(fd.get(), sizeof(PacingPage)) != 0) {
      return Status::from_errno("cannot make the page of virtual NICs", errno);
    }
    fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    Result<PacingPage*> fresh = map_page(fd);
    if (!fresh.ok()) return fresh.status();
    for (PacingPage::Nic& nic : (*fresh)->nics) {
      nic.egress.set_rate(bytes_per_second, now_ns());
      nic.ingress.set_rate(bytes_per_second, now_ns());
    }
    (*fresh)->magic = PacingPage::kMagic;
    use(*fresh);
    return {};
  }

  void use(PacingPage* fresh) {
    mapped.push_back(fresh);
    page.store(fresh, std::memory_order_release);
  }

  // Takes the page that the owner of the name sent. Two may exist for a moment, when a process came between the
  // death of the owner and the takeover: its page wins, with the rates of the one that was changed more often.
  Status adopt(Fd received) {
    if (fd && same_file(fd, received)) return {};
    Result<PacingPage*> other = map_page(received);
    if (!other.ok()) return other.status();
    if ((*other)->magic != PacingPage::kMagic) {
      munmap(*other, sizeof(PacingPage));
      return Status::system("the page of virtual NICs is of another version of the library");
    }
    if (PacingPage* old = page.load(std::memory_order_relaxed); old != nullptr && old->changes > (*other)->changes) {
      for (int rail = 0; rail < PacingPage::kRails; ++rail) {
        (*other)->nics[rail].egress.set_rate(old->nics[rail].egress.rate(), now_ns());
        (*other)->nics[rail].ingress.set_rate(old->nics[rail].ingress.rate(), now_ns());
      }
      (*other)->changes.store(old->changes);
    }
    use(*other);
    fd = std::move(received);
    return {};
  }

  void serve(Socket socket) {
    listener = std::move(socket);
    owner.store(true, std::memory_order_release);
    loop->watch(listener.fd(), EPOLLIN, [self = shared_from_this()](uint32_t) { self->hand_out(); });
  }

  void hand_out() {
    if (closed) return;
    for (;;) {
      Result<Socket> follower = listener.accept(Deadline::after(0));
      if (!follower.ok()) return;
      if (!follower->peer_is_same_user()) continue;
      if (!follower->send_descriptor(fd.get(), "P", 1, Deadline::after(0)).ok()) continue;
      const int descriptor = follower->fd();
      followers[descriptor] = std::move(*follower);
      loop->watch(descriptor, EPOLLIN, [self = shared_from_this(), descriptor](uint32_t) {
        self->loop->unwatch(descriptor);
        self->followers.erase(descriptor);
      });
    }
  }

  // `socket`: to the owner of the name. What comes over it is the page, once, and then its end.
  void follow(Socket socket) {
    leader = std::move(socket);
    loop->watch(leader.fd(), EPOLLIN, [self = shared_from_this()](uint32_t) { self->heard_from_leader(); });
  }

  void heard_from_leader() {
    if (closed) return;
    char byte = 0;
    Result<Fd> received = leader.recv_descriptor(&byte, 1, Deadline::after(0));
    if (received.ok()) {
      if (Status adopted = adopt(std::move(*received)); !adopted.ok()) THESEUS_WARN(adopted.message());
      return;
    }
    if (received.status().code() == Code::Timeout) return;
    loop->unwatch(leader.fd());
    leader.close();
    take_over();
  }

  // The owner is gone: own the name, or follow who was faster.
  void take_over() {
    if (closed) return;
    Result<Socket> own = Socket::listen_unix(name);
    if (own.ok()) return serve(std::move(*own));
    Result<Socket> other = Socket::connect_unix(name, Deadline::after(0));
    if (other.ok() && other->peer_is_same_user()) return follow(std::move(*other));
    retry = loop->add_timer(kRetrySeconds, [self = shared_from_this()] {
      self->loop->remove_timer(self->retry);
      self->take_over();
    });
  }

  void close() {
    closed = true;
    for (const Socket* socket : {&listener, &leader}) {
      if (socket->valid()) loop->unwatch(socket->fd());
    }
    for (const auto& [descriptor, socket] : followers) loop->unwatch(descriptor);
    listener.close();
    leader.close();
    followers.clear();
    if (retry != 0) loop->remove_timer(retry);
  }
};

Pacing::Pacing(std::shared_ptr<Share> share) : share_(std::move(share)), page_(&share_->page) {}

Pacing::~Pacing() {
  share_->loop->post([share = share_] { share->close(); });
}

bool Pacing::is_owner() const { return share_->owner.load(std::memory_order_acquire); }

void Pacing::set_rate(int rail, uint64_t bytes_per_second, Direction direction) {
  set_rate_in(*page_->load(std::memory_order_acquire), rail, bytes_per_second, direction);
}

Status Pacing::set_rate_of(const std::string& host, int rail, uint64_t bytes_per_second, Direction direction) {
  if (rail < 0 || rail >= PacingPage::kRails) {
    return Status::argument("host " + host + " has no virtual NIC " + std::to_string(rail));
  }
  const Deadline deadline = Deadline::after(kReachSeconds);
  Result<Socket> owner = Socket::connect_unix(socket_name(host), deadline);
  if (!owner.ok()) owner = Socket::connect_unix(socket_name("virtual:" + host), deadline);
  if (!owner.ok()) {
    return Status::remote("no process of a host '" + host +
                          "' with virtual NICs runs here: they exist while one with THESEUS_NIC_RATE does");
  }
  if (!owner->peer_is_same_user()) return Status::system("the virtual NICs of " + host + " belong to another user");
  char byte = 0;
  Result<Fd> fd = owner->recv_descriptor(&byte, 1, deadline);
  if (!fd.ok()) return fd.status();
  Result<PacingPage*> page = map_page(*fd);
  if (!page.ok()) return page.status();
  const bool known = (*page)->magic == PacingPage::kMagic;
  if (known) set_rate_in(**page, rail, bytes_per_second, direction);
  munmap(*page, sizeof(PacingPage));
  return known ? Status() : Status::system("the page of virtual NICs is of another version of the library");
}

Result<std::unique_ptr<Pacing>> Pacing::open(const std::string& host, uint64_t bytes_per_second) {
  Result<ProcessServer*> server = ProcessServer::get();
  if (!server.ok()) return server.status();
  auto share = std::make_shared<Share>();
  share->name = socket_name(host);
  share->loop = &(*server)->loop();
  const auto done = [&share] { return std::unique_ptr<Pacing>(new Pacing(share)); };
  const Deadline deadline = Deadline::after(kOpenSeconds);
  Status failure;
  while (!deadline.expired()) {
    Result<Socket> listener = Socket::listen_unix(share->name);
    if (listener.ok()) {
      THESEUS_TRY(share->create(bytes_per_second));
      share->loop->run([&] { share->serve(std::move(*listener)); });
      return done();
    }
    failure = listener.status();
    Result<Socket> leader = Socket::connect_unix(share->name, deadline.at_most(1));
    if (!leader.ok()) continue;  // died just now
    if (!leader->peer_is_same_user()) return Status::system("@" + share->name + " belongs to another user");
    char byte = 0;
    Result<Fd> received = leader->recv_descriptor(&byte, 1, deadline.at_most(3));
    if (!received.ok()) {
      failure = received.status();
      continue;
    }
    THESEUS_TRY(share->adopt(std::move(*received)));
    share->loop->run([&] { share->follow(std::move(*leader)); });
    return done();
  }
  return Status::system("cannot share the virtual NICs of THESEUS_NIC_RATE with the other processes of this host: " +
                        failure.message());
}

Result<Pacing*> Pacing::for_this_host() {
  const double rate = settings::nic_rate();
  if (rate <= 0) return static_cast<Pacing*>(nullptr);
  static auto* mutex = new std::mutex;
  static auto* known = new std::map<std::string, std::unique_ptr<Pacing>>;
  const std::lock_guard lock(*mutex);
  std::unique_ptr<Pacing>& pacing = (*known)[host_identity()];
  if (pacing == nullptr) {
    Result<std::unique_ptr<Pacing>> opened = open(host_identity(), static_cast<uint64_t>(rate));
    if (!opened.ok()) return opened.status();
    pacing = std::move(*opened);
  }
  return pacing.get();
}

}  // namespace theseus
