// Which interfaces NCCL_SOCKET_IFNAME and THESEUS_NICS choose, and what is said where they choose none.
#include "net/interfaces.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include "base/env.h"

namespace theseus {
namespace {

InterfaceAddress at(const std::string& text, int prefix_length) {
  return {Address::parse(text).value(), prefix_length};
}

// A host with everything that has confused people.
std::vector<Interface> crowded_host() {
  return {{"lo", {at("127.0.0.1", 8), at("::1", 128)}, true},
          {"eth0", {at("10.0.0.1", 24), at("fe80::1", 64), at("fd00::1", 64)}, true},
          {"eth01", {at("10.0.1.1", 24)}, true},
          {"bond0", {at("10.1.0.1", 16)}, true},
          {"bond0.29", {at("10.2.0.1", 16)}, true},
          {"docker0x", {at("172.17.0.1", 16)}, true},
          {"veth0", {at("192.168.7.1", 24)}, true},
          {"virbr0", {at("192.168.122.1", 24)}, true},
          {"eth9", {at("10.9.0.1", 24)}, false}};
}

std::string choose(const std::vector<Interface>& interfaces, const std::string& ifname, const std::string& family = "",
                   const std::string& root = "") {
  InterfaceRules rules{ifname, family, std::nullopt};
  if (!root.empty()) rules.root = Address::parse(root).value();
  const auto nics = choose_interfaces(interfaces, rules);
  if (!nics.ok()) return "error";
  std::string names;
  for (const Nic& nic : nics.value()) names += (names.empty() ? "" : " ") + nic.name;
  return names;
}

TEST(Interfaces, TableOfNames) {
  const std::string physical = "eth0 eth01 bond0 bond0.29 veth0";
  const std::pair<const char*, std::string> table[] = {
      {"", physical},
      {"^", physical},
      {"=", physical},
      {"^=", physical},
      {" ", physical},
      {",", physical},
      {"eth", "eth0 eth01"},
      {"e", "eth0 eth01"},
      {"eth0", "eth0 eth01"},
      {"=eth0", "eth0"},
      {"=eth", "error"},
      {"eth0,eth1", "eth0 eth01"},
      {"eth01, bond0", "eth01 bond0 bond0.29"},
      {"=eth01, bond0", "eth01 bond0"},
      {"bond0", "bond0 bond0.29"},
      {"=bond0", "bond0"},
      {"=bond0.29", "bond0.29"},
      {"^=lo", "eth0 eth01 bond0 bond0.29 docker0x veth0 virbr0"},
      {"^lo,docker", "eth0 eth01 bond0 bond0.29 veth0 virbr0"},
      {"^eth,bond,docker,virbr,lo", "veth0"},
      {"^=eth0", "lo eth01 bond0 bond0.29 docker0x veth0 virbr0"},
      {"^ = eth0 , lo", "eth01 bond0 bond0.29 docker0x veth0 virbr0"},
      {"lo", "lo"},
      {"docker", "docker0x"},
      {"veth", "veth0"},
      {"eth0:1", "eth0 eth01"},
      {"=eth0:1", "eth0"},
      {"eth9", "error"},
      {"wlan", "error"},
      {"10.1.0.1", "bond0"},
      {"10.0.0.0/16", "eth0 eth01"},
      {"fd00::/16", "eth0"},
      {"^10.0.0.0/8", "lo docker0x veth0 virbr0"},
  };
  for (const auto& [ifname, expected] : table)
    EXPECT_EQ(choose(crowded_host(), ifname), expected) << "'" << ifname << "'";
}

TEST(Interfaces, DefaultOrder) {
  auto host = crowded_host();
  EXPECT_EQ(choose(host, "", "", "10.1.200.3"), "bond0");  // NCCL_COMM_ID's subnet
  host.push_back({"ib0", {at("11.0.0.1", 24)}, true});
  EXPECT_EQ(choose(host, ""), "ib0");
  EXPECT_EQ(choose(host, "", "", "10.1.200.3"), "ib0");
  EXPECT_EQ(choose({host[0], host[5], host[7]}, ""), "docker0x");
  EXPECT_EQ(choose({host[0], host[7]}, ""), "lo");
  EXPECT_EQ(choose({host[7]}, ""), "virbr0");
  EXPECT_EQ(choose({}, ""), "error");
}

TEST(Interfaces, FamiliesAndAddresses) {
  EXPECT_EQ(choose(crowded_host(), "", "AF_INET6"), "eth0");
  EXPECT_EQ(choose(crowded_host(), "=bond0", "AF_INET6"), "error");
  EXPECT_EQ(choose(crowded_host(), "", "inet"), "error");
  const auto nics = choose_interfaces(crowded_host(), {"=eth0", "", std::nullopt});
  ASSERT_TRUE(nics.ok());
  ASSERT_EQ(nics->front().addresses.size(), 2u);
  EXPECT_EQ(nics->front().addresses[0].to_string(), "10.0.0.1:0");
  EXPECT_EQ(nics->front().addresses[1].to_string(), "[fd00::1]:0");  // before the link-local one
}

TEST(Interfaces, LoopbackSixCountsOnlyWhereItIsAllThereIs) {
  const Interface only_six{"lo", {at("::1", 128)}, true};
  EXPECT_EQ(choose({only_six}, ""), "lo");
  EXPECT_EQ(choose({only_six, {"eth0", {at("fd00::1", 64)}, true}}, "^docker"), "eth0");
  const auto nics = choose_interfaces({{"lo", {at("127.0.0.1", 8), at("::1", 128)}, true}}, {});
  ASSERT_TRUE(nics.ok());
  EXPECT_EQ(nics->front().addresses.size(), 1u);
}

TEST(Interfaces, AnErrorListsCandidatesAndReasons) {
  const auto nics = choose_interfaces(crowded_host(), {"=eth9,lo", "AF_INET6", std::nullopt});
  ASSERT_TRUE(nics.ok());  // lo by ::1, the last resort
  const auto none = choose_interfaces(crowded_host(), {"eth9", "", std::nullopt});
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), Code::SystemError);
  for (const char* part : {"NCCL_SOCKET_IFNAME='eth9'", "eth9 is down", "bond0 does not match"}) {
    EXPECT_NE(none.status().message().find(part), std::string::npos) << none.status().message();
  }
}

TEST(Interfaces, ListOfNics) {
  const auto nics = resolve_nics(crowded_host(), "bond0, 10.0.1.1,127.0.0.2,127.0.0.3, lo", "");
  ASSERT_TRUE(nics.ok()) << nics.status().message();
  std::string all;
  for (const Nic& nic : nics.value()) all += nic.name + "=" + nic.addresses.front().ip_string() + " ";
  EXPECT_EQ(all, "bond0=10.1.0.1 10.0.1.1=10.0.1.1 127.0.0.2=127.0.0.2 127.0.0.3=127.0.0.3 lo=127.0.0.1 ");
  for (const char* bad : {"eth7", "10.77.0.1", "eth0,,nothing", ","}) {
    EXPECT_EQ(resolve_nics(crowded_host(), bad, "").status().code(), Code::InvalidArgument) << bad;
  }
}

TEST(Interfaces, VirtualHostsUseLoopbackAndOthersNeverAdvertiseIt) {
  setenv("THESEUS_HOST", "a", 1);
  reload_settings();
  EXPECT_EQ(host_identity(), "virtual:a");
  auto addresses = control_addresses();
  ASSERT_TRUE(addresses.ok()) << addresses.status().message();
  EXPECT_TRUE(addresses->front().is_loopback());
  setenv("THESEUS_NICS", "127.0.0.1,127.0.0.2", 1);
  reload_settings();
  EXPECT_EQ(local_nics()->size(), 2u);
  unsetenv("THESEUS_NICS");
  unsetenv("THESEUS_HOST");
  reload_settings();
  EXPECT_NE(host_identity(), "virtual:a");
  addresses = control_addresses();
  ASSERT_TRUE(addresses.ok());
  const auto all = list_interfaces();
  ASSERT_TRUE(all.ok());
  bool has_other = false;
  for (const Interface& interface : all.value()) {
    for (const auto& own : interface.addresses) {
      const bool plain = interface.name.rfind("docker", 0) != 0 && interface.name.rfind("virbr", 0) != 0;
      has_other = has_other || (plain && interface.running && !own.address.is_loopback());
    }
  }
  EXPECT_FALSE(has_other && addresses->front().is_loopback());
}

}  // namespace
}  // namespace theseus
