#include "net/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <fstream>

#include "base/env.h"

namespace theseus {
namespace {

std::string trim(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> entries;
  size_t start = 0;
  while (start <= text.size()) {
    const size_t end = std::min(text.find(',', start), text.size());
    if (std::string entry = trim(text.substr(start, end - start)); !entry.empty()) entries.push_back(entry);
    start = end + 1;
  }
  return entries;
}

// "10.0.0.1" or "10.0.0.0/8": the network and its prefix length (whole length for an address).
std::optional<InterfaceAddress> parse_subnet(const std::string& text) {
  const size_t slash = text.find('/');
  const auto address = Address::parse(text.substr(0, slash));
  if (!address.ok() || address->port() != 0) return std::nullopt;
  const int bits = address->family() == AF_INET ? 32 : 128;
  if (slash == std::string::npos) return InterfaceAddress{address.value(), bits};
  int length = -1;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data() + slash + 1, end, length);
  if (parsed.ec != std::errc() || parsed.ptr != end || length < 0 || length > bits) return std::nullopt;
  return InterfaceAddress{address.value(), length};
}

// What is left of an interface's addresses under the family rule, best first, one of each family.
std::vector<Address> usable_addresses(const Interface& interface, const std::string& family, bool allow_loopback6) {
  std::vector<Address> best;
  for (const int wanted : {AF_INET, AF_INET6}) {
    if ((family == "AF_INET" && wanted != AF_INET) || (family == "AF_INET6" && wanted != AF_INET6)) continue;
    const Address* chosen = nullptr;
    for (const InterfaceAddress& entry : interface.addresses) {
      if (entry.address.family() != wanted) continue;
      if (wanted == AF_INET6 && entry.address.is_loopback() && !allow_loopback6) continue;
      // A link-local address works on its own link only, so any other comes first.
      if (chosen == nullptr || (chosen->is_link_local() && !entry.address.is_link_local())) chosen = &entry.address;
    }
    if (chosen != nullptr) best.push_back(chosen->with_port(0));
  }
  return best;
}

struct Pattern {
  bool negated = false;
  bool whole_names = false;
  std::vector<std::string> entries;
};

Pattern parse_pattern(const std::string& text) {
  Pattern pattern;
  std::string rest = trim(text);
  if (!rest.empty() && rest[0] == '^') {
    pattern.negated = true;
    rest = trim(rest.substr(1));
  }
  if (!rest.empty() && rest[0] == '=') {
    pattern.whole_names = true;
    rest = trim(rest.substr(1));
  }
  pattern.entries = split_list(rest);
  return pattern;
}

bool entry_matches(const std::string& entry, bool whole_name, const Interface& interface) {
  if (const auto subnet = parse_subnet(entry)) {
    return std::any_of(interface.addresses.begin(), interface.addresses.end(), [&](const InterfaceAddress& own) {
      return own.address.in_subnet(subnet->address, subnet->prefix_length);
    });
  }
  // Old-style alias interfaces are called "eth0:1"; otherwise NCCL reads ":1" as a port and ignores it here.
  if (interface.name == entry) return true;
  const std::string name = entry.substr(0, entry.find(':'));
  return whole_name ? interface.name == name : interface.name.rfind(name, 0) == 0;
}

bool pattern_matches(const Pattern& pattern, const Interface& interface) {
  const bool listed = std::any_of(pattern.entries.begin(), pattern.entries.end(), [&](const std::string& entry) {
    return entry_matches(entry, pattern.whole_names, interface);
  });
  return listed != pattern.negated;
}

template <class Predicate>
std::vector<Nic> collect(const std::vector<Interface>& interfaces, const std::string& family, bool allow_loopback6,
                         Predicate wanted) {
  std::vector<Nic> nics;
  for (const Interface& interface : interfaces) {
    if (!interface.running || !wanted(interface)) continue;
    std::vector<Address> addresses = usable_addresses(interface, family, allow_loopback6);
    if (!addresses.empty()) nics.push_back({interface.name, std::move(addresses)});
  }
  return nics;
}

std::vector<Nic> choose_by_default(const std::vector<Interface>& interfaces, const InterfaceRules& rules,
                                   bool allow_loopback6) {
  const auto by_pattern = [&](const char* text) {
    const Pattern pattern = parse_pattern(text);
    return collect(interfaces, rules.family, allow_loopback6,
                   [&](const Interface& interface) { return pattern_matches(pattern, interface); });
  };
  std::vector<Nic> nics = by_pattern("ib");
  if (nics.empty() && rules.root) {
    nics = collect(interfaces, rules.family, allow_loopback6, [&](const Interface& interface) {
      return std::any_of(interface.addresses.begin(), interface.addresses.end(), [&](const InterfaceAddress& own) {
        return rules.root->in_subnet(own.address, own.prefix_length);
      });
    });
  }
  for (const char* pattern : {"^docker,lo,virbr", "docker", "lo", "virbr"}) {
    if (nics.empty()) nics = by_pattern(pattern);
  }
  return nics;
}

Status no_match(const std::vector<Interface>& interfaces, const InterfaceRules& rules, const Pattern& pattern) {
  std::string reasons;
  for (const Interface& interface : interfaces) {
    const char* why = "carries only ::1";
    if (!interface.running) {
      why = "is down";
    } else if (!pattern.entries.empty() && !pattern_matches(pattern, interface)) {
      why = pattern.negated ? "is excluded" : "does not match";
    } else if (usable_addresses(interface, rules.family, true).empty()) {
      why = "has no address of that family";
    }
    reasons += (reasons.empty() ? "" : ", ") + interface.name + " " + why;
  }
  return Status::system("no network interface matches NCCL_SOCKET_IFNAME='" + rules.ifname + "'" +
                        (rules.family.empty() ? "" : " and NCCL_SOCKET_FAMILY='" + rules.family + "'") +
                        "; candidates: " + (reasons.empty() ? "none" : reasons));
}

// One entry of THESEUS_NICS.
Result<Nic> resolve_nic(const std::vector<Interface>& interfaces, const std::string& entry, const std::string& family) {
  std::string candidates;
  const auto address = Address::parse(entry);
  for (const Interface& interface : interfaces) {
    candidates += (candidates.empty() ? "" : ", ") + interface.name;
    for (const InterfaceAddress& own : interface.addresses) {
      candidates += " " + own.address.ip_string();
      // All of 127.0.0.0/8 is ours, so that loopback can play several NICs.
      const bool ours = address.ok() &&
                        (own.address.same_ip(address.value()) || (own.address.is_loopback() && address->is_loopback() &&
                                                                  address->in_subnet(own.address, own.prefix_length)));
      if (ours) return Nic{entry, {address->with_port(0)}};
    }
    if (interface.name != entry) continue;
    std::vector<Address> addresses = usable_addresses(interface, family, true);
    if (addresses.empty()) return Status::argument("THESEUS_NICS names " + entry + ", which has no usable address");
    return Nic{entry, std::move(addresses)};
  }
  return Status::argument("THESEUS_NICS names '" + entry +
                          "', which is neither an interface nor an address of this host (" + candidates + ")");
}

InterfaceRules rules_from_settings() {
  InterfaceRules rules{settings::socket_ifname(), settings::socket_family(), std::nullopt};
  if (const std::string root = settings::comm_id(); !root.empty()) {
    if (const auto addresses = Address::resolve(root); addresses.ok()) rules.root = addresses->front();
  }
  return rules;
}

}  // namespace

Result<std::vector<Interface>> list_interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return Status::from_errno("cannot list the network interfaces", errno);
  std::vector<Interface> interfaces;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const Address address = Address::from_sockaddr(entry->ifa_addr);
    if (!address.valid()) continue;
    auto found = std::find_if(interfaces.begin(), interfaces.end(),
                              [&](const Interface& interface) { return interface.name == entry->ifa_name; });
    if (found == interfaces.end()) {
      const bool running = (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_RUNNING) != 0;
      found = interfaces.insert(interfaces.end(), Interface{entry->ifa_name, {}, running});
    }
    int prefix_length = 0;
    if (entry->ifa_netmask != nullptr && address.family() == AF_INET) {
      sockaddr_in mask;
      std::memcpy(&mask, entry->ifa_netmask, sizeof mask);
      prefix_length = std::popcount(mask.sin_addr.s_addr);
    } else if (entry->ifa_netmask != nullptr) {
      sockaddr_in6 mask;
      std::memcpy(&mask, entry->ifa_netmask, sizeof mask);
      for (const uint8_t byte : mask.sin6_addr.s6_addr) prefix_length += std::popcount(byte);
    }
    found->addresses.push_back({address, prefix_length});
  }
  freeifaddrs(list);
  return interfaces;
}

Result<std::vector<Nic>> choose_interfaces(const std::vector<Interface>& interfaces, const InterfaceRules& rules) {
  if (!rules.family.empty() && rules.family != "AF_INET" && rules.family != "AF_INET6") {
    return Status::argument("NCCL_SOCKET_FAMILY='" + rules.family + "' is neither AF_INET nor AF_INET6");
  }
  const Pattern pattern = parse_pattern(rules.ifname);
  for (const bool allow_loopback6 : {false, true}) {
    // "", "^" and "=" name nothing, and so choose nothing: as if unset.
    std::vector<Nic> nics = pattern.entries.empty()
                                ? choose_by_default(interfaces, rules, allow_loopback6)
                                : collect(interfaces, rules.family, allow_loopback6, [&](const Interface& interface) {
                                    return pattern_matches(pattern, interface);
                                  });
    if (!nics.empty()) return nics;
  }
  return no_match(interfaces, rules, pattern);
}

Result<std::vector<Nic>> resolve_nics(const std::vector<Interface>& interfaces, const std::string& list,
                                      const std::string& family) {
  std::vector<Nic> nics;
  for (const std::string& entry : split_list(list)) {
    auto nic = resolve_nic(interfaces, entry, family);
    if (!nic.ok()) return nic.status();
    nics.push_back(std::move(nic).value());
  }
  if (nics.empty()) return Status::argument("THESEUS_NICS='" + list + "' names no interface");
  return nics;
}

Result<std::vector<Nic>> local_nics() {
  auto interfaces = list_interfaces();
  if (!interfaces.ok()) return interfaces.status();
  if (const std::string list = settings::nics(); !list.empty()) {
    return resolve_nics(interfaces.value(), list, settings::socket_family());
  }
  InterfaceRules rules = rules_from_settings();
  if (!settings::host().empty() && rules.ifname.empty()) rules.ifname = "=lo";
  return choose_interfaces(interfaces.value(), rules);
}

Result<std::vector<Address>> control_addresses() {
  auto interfaces = list_interfaces();
  if (!interfaces.ok()) return interfaces.status();
  InterfaceRules rules = rules_from_settings();
  if (!settings::host().empty() && rules.ifname.empty()) rules.ifname = "=lo";
  auto nics = choose_interfaces(interfaces.value(), rules);
  if (!nics.ok()) return nics.status();
  return nics->front().addresses;
}

std::string host_identity() {
  if (std::string name = settings::host(); !name.empty()) return "virtual:" + name;
  if (std::string name = settings::host_id(); !name.empty()) return "named:" + name;
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat network{};
  stat("/proc/self/ns/net", &network);
  return boot + ":" + std::to_string(network.st_ino);
}

std::string host_name() {
  char name[256] = "";
  if (gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "localhost";
  return name;
}

}  // namespace theseus
