// The one door of this process: a TCP listener and an abstract Unix listener, served by the watch thread.
//
// Whoever connects says a fixed-size hello first; a connection goes to the handler registered for the hello's
// (communicator, purpose, destination rank). A stranger (wrong magic, short, silent, too many) is dropped and delays
// nobody. Connections that come before their handler wait for it, bounded in number and time.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/fork.h"
#include "base/ids.h"
#include "base/result.h"
#include "net/address.h"
#include "net/event_loop.h"
#include "net/socket.h"

namespace theseus {

enum class Purpose : uint32_t {
  Star = 1,
  Data = 2,
  Descriptor = 3,
  Rendezvous = 4,
  Buffer = 5,
  Agreement = 6,
  DeviceMemory = 7
};

// First bytes on every connection between processes. Little-endian, as all of our wire formats.
struct Hello {
  static constexpr uint32_t kMagic = 0x53454854;  // "THES"
  static constexpr uint32_t kVersion = 1;

  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  CommId communicator;
  Purpose purpose = Purpose::Data;
  int32_t source = -1;       // rank that connects
  int32_t destination = -1;  // rank that is wanted (several ranks may live in one process)
  int32_t rail = 0;
  int32_t channel = 0;
  uint32_t reserved = 0;
  uint64_t tag = 0;  // the purpose's own
};
static_assert(sizeof(Hello) == 56);

class ProcessServer {
 public:
  // Called on the watch thread; must not block. The socket is non-blocking, right after the hello.
  using Handler = std::function<void(const Hello&, Socket)>;

  // Starts listeners and watch thread at first use. InvalidUsage in a forked child; SystemError else.
  static Result<ProcessServer*> get();

  EventLoop& loop() { return *loop_; }

  // Connections for (communicator, purpose, destination) go to `handler`, those parked first. Replaces an older one.
  void register_handler(const CommId& communicator, Purpose purpose, int destination, Handler handler);
  // Also drops what is parked. Off the watch thread, a call of the handler may still be under way.
  void unregister_handler(const CommId& communicator, Purpose purpose, int destination);
  // Where no such handler is registered: takes all of `purpose` instead of parking.
  void register_fallback(Purpose purpose, Handler handler);

  // Where peers reach this process: control_addresses() with the listener's port.
  Result<std::vector<Address>> addresses() const;
  uint16_t port() const { return port_; }
  // Name of the abstract Unix listener, for processes of this host and user.
  const std::string& unix_name() const { return unix_name_; }

  // A further TCP listener, kept for the life of the process (NCCL_COMM_ID). Idempotent per address.
  Status listen_also(const Address& address);

  // Connects and says hello.
  static Result<Socket> connect(const std::vector<Address>& to, const Hello& hello, const Deadline& deadline,
                                const Address& source = {});
  static Result<Socket> connect_unix(const std::string& name, const Hello& hello, const Deadline& deadline);

 private:
  using Key = std::tuple<uint64_t, uint64_t, uint32_t, int32_t>;
  struct Greeting {
    Socket socket;
    char bytes[sizeof(Hello)];
    size_t received = 0;
    uint64_t deadline_ns = 0;
  };
  struct Parked {
    Hello hello;
    Socket socket;
    uint64_t deadline_ns;
  };

  ProcessServer() = default;
  static Result<ProcessServer*> create();
  static Key key_of(const CommId& communicator, Purpose purpose, int destination);
  void serve(std::shared_ptr<Socket> listener, bool is_unix);
  void accept_all(const std::shared_ptr<Socket>& listener, bool is_unix);
  void pause(const std::shared_ptr<Socket>& listener, bool is_unix);
  void greet(Socket socket);
  void read_hello(const std::shared_ptr<Greeting>& greeting);
  void drop(const std::shared_ptr<Greeting>& greeting, const char* why);
  void route(const Hello& hello, Socket socket);
  void expire();

  EventLoop* loop_ = nullptr;
  uint16_t port_ = 0;
  bool dual_stack_ = false;
  std::string unix_name_;
  // The watch thread alone touches what follows.
  std::map<Key, std::shared_ptr<Handler>> handlers_;
  std::map<uint32_t, std::shared_ptr<Handler>> fallbacks_;
  std::list<std::shared_ptr<Greeting>> greetings_;  // oldest first
  std::multimap<Key, Parked> parked_;
  std::map<std::string, std::shared_ptr<Socket>> extra_listeners_;
};

}  // namespace theseus
