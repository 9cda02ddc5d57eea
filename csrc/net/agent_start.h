// Starting the node's agent as a process of its own, from a process that must not notice.
#pragma once

#include <string>

#include "base/fd.h"
#include "base/result.h"

namespace theseus {

// The agent's abstract socket name, without its leading zero byte (theseus_py/agent/wire.py has the same).
std::string agent_socket_name(const std::string& job, const std::string& host);

// The right to start the agent, while the descriptor lives; invalid where another process of this user has it.
Fd claim_agent_start(const std::string& job, const std::string& host);

// Runs `command --job JOB --host HOST` by the shell, in its own session, with no signal blocked, nothing inherited but
// the environment, and no child left to this process but the short-lived shell, whose process id is returned.
Result<int> start_agent(const std::string& command, const std::string& job, const std::string& host);
// Takes the shell's exit status, if it has ended. Never blocks.
bool reap_agent_start(int pid);

}  // namespace theseus
