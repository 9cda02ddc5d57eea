#include "base/cores.h"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <memory>

namespace theseus {

// "max 100000" or "150000 100000": quota and period of cgroup v2, in microseconds.
int core_quota() {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(fopen("/sys/fs/cgroup/cpu.max", "re"),
                                                   [](FILE* f) { return f != nullptr ? fclose(f) : 0; });
  long quota = 0;
  long period = 0;
  if (file == nullptr || fscanf(file.get(), "%ld %ld", &quota, &period) != 2 || quota <= 0 || period <= 0) return 0;
  return static_cast<int>((quota + period - 1) / period);
}

std::string core_mask() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) CPU_SET(0, &set);
  std::string mask;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &set)) continue;
    mask.resize(static_cast<size_t>(core / 8 + 1));
    mask.back() = static_cast<char>(static_cast<uint8_t>(mask.back()) | 1u << (core % 8));
  }
  return mask;
}

int count_cores(const std::vector<std::string>& masks) {
  std::string all;
  for (const std::string& mask : masks) {
    all.resize(std::max(all.size(), mask.size()));
    for (size_t i = 0; i < mask.size(); ++i) all[i] = static_cast<char>(all[i] | mask[i]);
  }
  int cores = 0;
  for (const char byte : all) cores += std::popcount(static_cast<uint8_t>(byte));
  return std::max(1, cores);
}

}  // namespace theseus
