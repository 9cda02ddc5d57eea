// Registered buffers and windows.
#pragma once

#include "nccl_api/include/nccl.h"

namespace theseus::nccl_api {

// Forgets the registrations of a communicator that ends.
void forget_registrations(ncclComm_t comm);

}  // namespace theseus::nccl_api
