// What the ranks of a communicator tell each other when they meet: one record a rank, exchanged by the rendezvous.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "net/address.h"
#include "schedule/topology.h"

namespace theseus {

struct Peer {
  std::string host;       // host_identity(): who shares memory with whom
  std::string host_name;  // for messages
  Id128 process;          // random, one a process
  int32_t pid = 0;
  std::string unix_name;        // its ProcessServer's Unix listener
  std::vector<Address> server;  // its ProcessServer's addresses
  std::vector<Address> rails;   // the same port, by rail
  uint32_t memory_tag = 0;      // high half of the ids of its shared allocations
  uint32_t slot_bytes = 0;      // what its settings ask for; the smallest wins
  uint32_t slots = 0;
  bool shared_memory = true;    // false: THESEUS_SHM=0
  bool cross_memory = true;     // false: THESEUS_CMA=0
  std::string core_mask;        // cores it may run on
  int32_t core_quota = 0;       // cores that it may use at a time; 0: no limit
  uint64_t probe = 0;           // address there of kProbeValue, to find out whether its memory may be read
  std::string device = "host";  // where its buffers are: host, cuda or cuda-emu
  std::string device_uuid;      // of its GPU; empty on the host
  bool adapts = false;          // THESEUS_ADAPT; a communicator agrees on contexts where all its ranks do
  bool real_nccl = false;  // THESEUS_NET: communicators of several hosts are for the real NCCL, where all ranks say so
};

inline constexpr uint64_t kProbeValue = 0x70726f6265546865;

std::string encode(const Peer& peer);
Result<Peer> decode_peer(const std::string& bytes);
// This process, as the others are to see it, with the GPU `device` (-1: host memory).
Result<Peer> describe_self(int device);
// Host of each rank (ranks that may not share memory count as hosts of their own), and the rails they all have.
Topology topology_of(const std::vector<Peer>& peers);

}  // namespace theseus
