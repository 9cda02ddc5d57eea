#include "base/cores.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <memory>

namespace theseus {
namespace {

// "max 100000" or "150000 100000": quota and period of cgroup v2, in microseconds.
int quota_cores() {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(fopen("/sys/fs/cgroup/cpu.max", "re"),
                                                   [](FILE* f) { return f != nullptr ? fclose(f) : 0; });
  long quota = 0;
  long period = 0;
  if (file == nullptr || fscanf(file.get(), "%ld %ld", &quota, &period) != 2 || quota <= 0 || period <= 0) return 0;
  return static_cast<int>((quota + period - 1) / period);
}

int count_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int mask = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  const int quota = quota_cores();
  return std::max(1, quota > 0 ? std::min(mask, quota) : mask);
}

}  // namespace

int usable_cores() {
  static const int cores = count_cores();
  return cores;
}

}  // namespace theseus
