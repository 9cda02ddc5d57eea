// Which network interfaces to use: NCCL_SOCKET_IFNAME's rules as a pure function, and the rails of this process.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "net/address.h"

namespace theseus {

struct InterfaceAddress {
  Address address;
  int prefix_length = 0;
};

struct Interface {
  std::string name;
  std::vector<InterfaceAddress> addresses;
  bool running = true;
};

// Interfaces of this network namespace that carry an IPv4 or IPv6 address, in the kernel's order.
Result<std::vector<Interface>> list_interfaces();

// A rail: one NIC of this process, with at most one address of each family (IPv4 first), port 0.
struct Nic {
  std::string name;
  std::vector<Address> addresses;
};

struct InterfaceRules {
  std::string ifname;           // NCCL_SOCKET_IFNAME
  std::string family;           // NCCL_SOCKET_FAMILY
  std::optional<Address> root;  // NCCL_COMM_ID's address, where set: its subnet comes before the rest
};

// NCCL's choice, in order. ifname: optional ^, optional =, comma list of prefixes (= : whole names); blanks are
// trimmed; IP addresses and subnets (10.0.0.0/8) are accepted too; ":port" after a name is ignored, as NCCL does.
// Without a list: ib*, the root's subnet, all but docker*, lo*, virbr*, then docker*, lo*, virbr*. ::1 counts only
// where nothing else is there. SystemError without a match: lists the candidates and why each was passed over.
Result<std::vector<Nic>> choose_interfaces(const std::vector<Interface>& interfaces, const InterfaceRules& rules);

// THESEUS_NICS: names or IP addresses, in the order given; an address may repeat. InvalidArgument names the bad entry.
Result<std::vector<Nic>> resolve_nics(const std::vector<Interface>& interfaces, const std::string& list,
                                      const std::string& family);

// The rails of this process by its settings: THESEUS_NICS; for a virtual host (THESEUS_HOST) loopback; else
// NCCL_SOCKET_IFNAME's choice.
Result<std::vector<Nic>> local_nics();

// Where peers reach this process's server: addresses of the first NIC chosen, IPv4 first, port 0. Virtual hosts:
// loopback.
Result<std::vector<Address>> control_addresses();

// Who shares memory with whom: THESEUS_HOST, else NCCL_HOSTID, else boot id and network namespace.
std::string host_identity();
// gethostname(), or "localhost".
std::string host_name();

}  // namespace theseus
