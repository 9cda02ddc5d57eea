// How many cores this process may run on.
#pragma once

namespace theseus {

// By affinity mask and cgroup quota (rounded up); at least 1. Asked once a process.
int usable_cores();

}  // namespace theseus
