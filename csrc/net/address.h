// Socket addresses, IPv4 and IPv6: a value type with a fixed wire form.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace theseus {

class Address {
 public:
  // An invalid address: family() == AF_UNSPEC.
  Address() = default;
  // Takes IPv4-mapped IPv6 addresses as the IPv4 they are.
  static Address from_sockaddr(const sockaddr* address);

  // A number, no names: "10.0.0.1", "10.0.0.1:80", "::1", "[::1]:80", "fe80::1%eth0". InvalidArgument else.
  static Result<Address> parse(std::string_view text);
  // The same, or a host name with a port; names are looked up (which may block). All addresses found.
  static Result<std::vector<Address>> resolve(const std::string& text);

  static Address any(int family, uint16_t port);
  static Address loopback(int family, uint16_t port);

  int family() const { return family_; }
  bool valid() const { return family_ != AF_UNSPEC; }
  uint16_t port() const { return port_; }
  Address with_port(uint16_t port) const;
  bool is_loopback() const;
  bool is_link_local() const;
  bool same_ip(const Address& other) const;
  // True where the first `prefix_length` bits are equal (and the families are).
  bool in_subnet(const Address& network, int prefix_length) const;
  bool operator==(const Address&) const = default;

  // "10.0.0.1:80", "[::1]:80"; without the port: "10.0.0.1", "::1".
  std::string to_string() const;
  std::string ip_string() const;

  // For bind() and connect().
  socklen_t to_sockaddr(sockaddr_storage* out) const;

  // 24 bytes; the scope id travels only for link-local addresses, where it is the receiver's to reinterpret.
  static constexpr size_t kWireBytes = 24;
  std::string encode() const;
  // InvalidArgument on wrong length or family.
  static Result<Address> decode(std::string_view bytes);

 private:
  int family_ = AF_UNSPEC;
  uint16_t port_ = 0;
  uint32_t scope_ = 0;
  uint8_t ip_[16] = {};  // IPv4: the first four
};

// A list of addresses as one string, and back. Bounded at 64.
std::string encode_addresses(const std::vector<Address>& addresses);
Result<std::vector<Address>> decode_addresses(std::string_view bytes);

}  // namespace theseus
