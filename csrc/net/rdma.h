// Whether this host could do better than TCP.
#pragma once

#include <string>

namespace theseus {

// Whether an RDMA device (InfiniBand, RoCE) has a port that is up. `folder`: where Linux lists them.
bool has_rdma(const std::string& folder = "/sys/class/infiniband");

}  // namespace theseus
