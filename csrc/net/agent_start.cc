#include "net/agent_start.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstddef>
#include <cstdio>
#include <cstring>

extern char** environ;

namespace theseus {
namespace {

uint64_t hash_names(const std::string& job, const std::string& host) {
  uint64_t value = 0xcbf29ce484222325u;  // FNV-1a
  const auto add = [&value](char byte) { value = (value ^ static_cast<unsigned char>(byte)) * 0x100000001b3u; };
  for (const char byte : job) add(byte);
  add('\0');
  for (const char byte : host) add(byte);
  return value;
}

}  // namespace

std::string agent_socket_name(const std::string& job, const std::string& host) {
  char name[80];
  std::snprintf(name, sizeof name, "theseus-agent-%u-%016" PRIx64, getuid(), hash_names(job, host));
  return name;
}

Fd claim_agent_start(const std::string& job, const std::string& host) {
  Fd claim(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!claim) return claim;
  const std::string name = agent_socket_name(job, host) + "-start";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (bind(claim.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) claim.reset();
  return claim;
}

Result<int> start_agent(const std::string& command, const std::string& job, const std::string& host) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDWR, 0);
  posix_spawn_file_actions_adddup2(&actions, 0, 1);
  posix_spawn_file_actions_adddup2(&actions, 0, 2);
#if __GLIBC_PREREQ(2, 34)
  posix_spawn_file_actions_addclosefrom_np(&actions, 3);
#endif
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  // In the background of a shell that ends: the agent is nobody's child, and no zombie of the application's.
  const std::string script = command + " \"$@\" &";
  const char* arguments[] = {"sh", "-c", script.c_str(), "sh", "--job", job.c_str(), "--host", host.c_str(), nullptr};
  pid_t pid = -1;
  const int error = posix_spawn(&pid, "/bin/sh", &actions, &attributes, const_cast<char**>(arguments), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) return Status::from_errno("cannot start the node's agent", error);
  return pid;
}

bool reap_agent_start(int pid) {
  const pid_t reaped = waitpid(pid, nullptr, WNOHANG);
  return reaped == pid || (reaped < 0 && errno == ECHILD);  // ECHILD: the application waits for any child
}

}  // namespace theseus
