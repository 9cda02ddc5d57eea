// Which cores this process may run on.
#pragma once

#include <string>
#include <vector>

namespace theseus {

// The caller's affinity mask: core i is bit i % 8 of byte i / 8. Never empty.
std::string core_mask();
// Cores that the cgroup's quota is worth, rounded up; 0 where it has none.
int core_quota();
// Number of cores in any of the masks; at least 1.
int count_cores(const std::vector<std::string>& masks);

}  // namespace theseus
