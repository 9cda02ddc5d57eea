// This process's connection to the node's agent (theseus_py/agent), which keeps the job's log.
//
// All of it happens on the watch thread; no request ever waits for it. Where no agent of the job and host listens, one
// is started by the command of THESEUS_AGENT; where one dies, a process of the host starts another after 2 s. Without
// a command, an agent that somebody else starts is found.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "base/shared_log.h"

namespace theseus {

class AgentClient {
 public:
  static AgentClient& instance();

  // Connects from now on, for ever. `flow_page_fd`: this process's flow page, for the agent's monitor; -1: none. It is
  // duplicated. Later calls change nothing.
  void start(const std::string& job, const std::string& host, int flow_page_fd);

  bool connected() const;
  uint64_t log_id() const;           // 0: none yet
  std::string raft_address() const;  // where other agents reach this host's; opaque; empty: not known yet
  std::string body_folder() const;   // plans by hash, 16 hexadecimal digits; empty: not known yet
  // A reader from the log's start; null while there is no log.
  std::unique_ptr<SharedLogReader> open_log() const;
  // Called on the watch thread when a log first becomes available (soon, where one is), or its id changes.
  void on_log(std::function<void()> callback);

  // Asks the agents to append a record (context/record.h); `body`: the plan file that it names by hash, if any. `done`
  // is called once, on the watch thread: InvalidArgument, InvalidUsage: refused, with the reason; Timeout: the agents
  // have no quorum, or did not answer (the record may yet be appended); SystemError: there is no agent.
  void append(std::string record, Fd body, std::function<void(Status)> done);
  // Who takes part: each host's name and raft_address(), the same on all hosts, and a secret of the job.
  void set_members(const std::string& secret, std::vector<std::pair<std::string, std::string>> hosts);
  // How a rank is doing (runtime/rank_report.h). Dropped where no agent has said welcome, or what went before it has
  // not left yet: the next one says it anew.
  void report(std::string payload);

 private:
  AgentClient();
  struct Impl;
  Impl* impl_;  // for the life of the process, like the watch thread
};

}  // namespace theseus
