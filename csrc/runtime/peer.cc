#include "runtime/peer.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "base/cores.h"
#include "base/env.h"
#include "base/log.h"
#include "drivers/nccl/library.h"
#include "net/interfaces.h"
#include "net/process_server.h"
#include "net/rdma.h"
#include "net/wire.h"
#include "runtime/device_rank.h"
#include "runtime/job_log.h"
#include "transport/shared_memory.h"

namespace theseus {
namespace {

// Ranks of one process share it; processes never do, not even after fork.
const Id128& process_id() {
  static const Id128 id = random_id();
  return id;
}

// What peers try to read. Volatile, so that it has an address and keeps its value there.
const volatile uint64_t probe_value = kProbeValue;

// Our own transport to other hosts is TCP, which RDMA outruns by far.
bool wants_real_nccl(const cuda::Driver& driver) {
  const std::string net = settings::net();
  if (net == "tcp" || net == "nccl") return net == "nccl";
  static std::once_flag told;
  if (net != "auto") {
    std::call_once(told,
                   [&] { THESEUS_WARN("THESEUS_NET=%s is none of tcp, nccl and auto: it is auto", net.c_str()); });
  }
  if (driver.emulated() || !has_rdma()) return false;
  static const bool installed = nccl::Library::find().ok();
  return installed;
}

}  // namespace

std::string encode(const Peer& peer) {
  WireWriter out;
  out.text(peer.host);
  out.text(peer.host_name);
  out.number(peer.process.high);
  out.number(peer.process.low);
  out.number(peer.pid);
  out.text(peer.unix_name);
  out.text(encode_addresses(peer.server));
  out.text(encode_addresses(peer.rails));
  out.number(peer.memory_tag);
  out.number(peer.slot_bytes);
  out.number(peer.slots);
  out.number(static_cast<uint8_t>(peer.shared_memory));
  out.number(static_cast<uint8_t>(peer.cross_memory));
  out.text(peer.core_mask);
  out.number(peer.core_quota);
  out.number(peer.probe);
  out.text(peer.device);
  out.text(peer.device_uuid);
  out.number(static_cast<uint8_t>(peer.adapts));
  out.number(static_cast<uint8_t>(peer.real_nccl));
  return out.take();
}

Result<Peer> decode_peer(const std::string& bytes) {
  WireReader in(bytes);
  Peer peer;
  peer.host = in.text();
  peer.host_name = in.text();
  peer.process.high = in.number<uint64_t>();
  peer.process.low = in.number<uint64_t>();
  peer.pid = in.number<int32_t>();
  peer.unix_name = in.text();
  Result<std::vector<Address>> server = decode_addresses(in.text());
  Result<std::vector<Address>> rails = decode_addresses(in.text());
  peer.memory_tag = in.number<uint32_t>();
  peer.slot_bytes = in.number<uint32_t>();
  peer.slots = in.number<uint32_t>();
  peer.shared_memory = in.number<uint8_t>() != 0;
  peer.cross_memory = in.number<uint8_t>() != 0;
  peer.core_mask = in.text();
  peer.core_quota = in.number<int32_t>();
  peer.probe = in.number<uint64_t>();
  peer.device = in.text();
  peer.device_uuid = in.text();
  peer.adapts = in.number<uint8_t>() != 0;
  peer.real_nccl = in.number<uint8_t>() != 0;
  if (!in.at_end() || !server.ok() || !rails.ok()) {
    return Status::internal("a rank described itself in a form this build does not know (mixed versions?)");
  }
  peer.server = *server;
  peer.rails = *rails;
  return peer;
}

Result<Peer> describe_self(int device) {
  Result<ProcessServer*> server = ProcessServer::get();
  if (!server.ok()) return server.status();
  Result<std::vector<Address>> addresses = (*server)->addresses();
  if (!addresses.ok()) return addresses.status();
  Result<std::vector<Nic>> nics = local_nics();
  if (!nics.ok()) return nics.status();
  Peer self;
  self.host = host_identity();
  self.host_name = host_name();
  self.process = process_id();
  self.pid = getpid();
  self.unix_name = (*server)->unix_name();
  self.server = *addresses;
  for (const Nic& nic : *nics) {
    if (!nic.addresses.empty()) self.rails.push_back(nic.addresses.front().with_port((*server)->port()));
  }
  self.memory_tag = SharedMemory::process_tag();
  self.slot_bytes = static_cast<uint32_t>(std::clamp<int64_t>(settings::slot_bytes(), 0, 64 << 20));
  self.slots = static_cast<uint32_t>(settings::slots());
  self.shared_memory = settings::shm();
  self.cross_memory = settings::cma() != "0";
  self.core_mask = core_mask();
  self.core_quota = core_quota();
  self.probe = reinterpret_cast<uint64_t>(&probe_value);
  self.adapts = JobLog::wanted();
  Result<cuda::Driver*> driver = device_driver();
  if (!driver.ok()) return driver.status();
  if (*driver != nullptr) {
    Result<cuda::DeviceInfo> info = (*driver)->device_info(device);
    if (!info.ok()) return info.status();
    self.device = (*driver)->emulated() ? "cuda-emu" : "cuda";
    self.device_uuid.assign(info->uuid.begin(), info->uuid.end());
    self.real_nccl = wants_real_nccl(**driver);
  }
  return self;
}

Topology topology_of(const std::vector<Peer>& peers) {
  Topology topology;
  std::map<std::string, int> hosts;
  size_t rails = SIZE_MAX;
  for (size_t rank = 0; rank < peers.size(); ++rank) {
    const Peer& peer = peers[rank];
    const std::string host = peer.shared_memory ? peer.host : peer.host + "#" + std::to_string(rank);
    topology.host_of_rank.push_back(hosts.try_emplace(host, static_cast<int>(hosts.size())).first->second);
    rails = std::min(rails, peer.rails.size());
  }
  topology.rails = static_cast<int>(std::max<size_t>(1, rails));
  return topology;
}

}  // namespace theseus
