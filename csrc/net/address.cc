#include "net/address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <cstring>

namespace theseus {
namespace {

constexpr size_t kMaxAddresses = 64;
constexpr uint8_t kMappedPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

Result<uint16_t> parse_port(std::string_view text) {
  uint32_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size() || port > 65535) {
    return Status::argument("'" + std::string(text) + "' is not a port number");
  }
  return static_cast<uint16_t>(port);
}

// Splits host and port: "[v6]:port", "host:port"; more than one colon without brackets is a bare IPv6 address.
Status split_port(std::string_view text, std::string* host, uint16_t* port) {
  *port = 0;
  std::string_view port_text;
  if (!text.empty() && text.front() == '[') {
    const size_t close = text.find(']');
    if (close == std::string_view::npos) return Status::argument("'" + std::string(text) + "' has a [ without a ]");
    *host = text.substr(1, close - 1);
    const std::string_view rest = text.substr(close + 1);
    if (rest.empty()) return {};
    if (rest.front() != ':') return Status::argument("'" + std::string(text) + "' has no ':' after the ]");
    port_text = rest.substr(1);
  } else {
    const size_t colon = text.find(':');
    const bool bare = colon == std::string_view::npos || text.find(':', colon + 1) != std::string_view::npos;
    *host = text.substr(0, bare ? text.size() : colon);
    if (bare) return {};
    port_text = text.substr(colon + 1);
  }
  auto parsed = parse_port(port_text);
  if (!parsed.ok()) return parsed.status();
  *port = parsed.value();
  return {};
}

}  // namespace

Address Address::from_sockaddr(const sockaddr* address) {
  Address result;
  if (address == nullptr) return result;
  if (address->sa_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, address, sizeof v4);
    result.family_ = AF_INET;
    result.port_ = ntohs(v4.sin_port);
    std::memcpy(result.ip_, &v4.sin_addr, 4);
  } else if (address->sa_family == AF_INET6) {
    sockaddr_in6 v6;
    std::memcpy(&v6, address, sizeof v6);
    result.port_ = ntohs(v6.sin6_port);
    if (std::memcmp(&v6.sin6_addr, kMappedPrefix, sizeof kMappedPrefix) == 0) {
      result.family_ = AF_INET;
      std::memcpy(result.ip_, v6.sin6_addr.s6_addr + 12, 4);
    } else {
      result.family_ = AF_INET6;
      std::memcpy(result.ip_, &v6.sin6_addr, 16);
      if (result.is_link_local()) result.scope_ = v6.sin6_scope_id;
    }
  }
  return result;
}

Result<Address> Address::parse(std::string_view text) {
  std::string host;
  Address result;
  THESEUS_TRY(split_port(text, &host, &result.port_));
  std::string scope;
  if (const size_t percent = host.find('%'); percent != std::string::npos) {
    scope = host.substr(percent + 1);
    host.resize(percent);
  }
  if (scope.empty() && inet_pton(AF_INET, host.c_str(), result.ip_) == 1) {
    result.family_ = AF_INET;
    return result;
  }
  if (inet_pton(AF_INET6, host.c_str(), result.ip_) != 1) {
    return Status::argument("'" + std::string(text) + "' is not an IP address");
  }
  result.family_ = AF_INET6;
  if (scope.empty()) return result;
  result.scope_ = if_nametoindex(scope.c_str());
  if (result.scope_ == 0) std::from_chars(scope.data(), scope.data() + scope.size(), result.scope_);
  if (result.scope_ == 0) return Status::argument("'" + std::string(text) + "' names no interface after the %");
  return result;
}

Result<std::vector<Address>> Address::resolve(const std::string& text) {
  if (auto number = parse(text); number.ok()) return std::vector<Address>{number.value()};
  std::string host;
  uint16_t port = 0;
  THESEUS_TRY(split_port(text, &host, &port));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0) {
    return Status::system("cannot resolve the host name '" + host + "': " + gai_strerror(error));
  }
  std::vector<Address> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    Address address = from_sockaddr(entry->ai_addr).with_port(port);
    if (address.valid() && std::find(addresses.begin(), addresses.end(), address) == addresses.end()) {
      addresses.push_back(address);
    }
  }
  freeaddrinfo(found);
  if (addresses.empty()) return Status::system("the host name '" + host + "' has no address");
  return addresses;
}

Address Address::any(int family, uint16_t port) {
  Address result;
  result.family_ = family;
  result.port_ = port;
  return result;
}

Address Address::loopback(int family, uint16_t port) {
  Address result = any(family, port);
  if (family == AF_INET) {
    result.ip_[0] = 127;
    result.ip_[3] = 1;
  } else {
    result.ip_[15] = 1;
  }
  return result;
}

Address Address::with_port(uint16_t port) const {
  Address copy = *this;
  copy.port_ = port;
  return copy;
}

bool Address::is_loopback() const {
  if (family_ == AF_INET) return ip_[0] == 127;
  return family_ == AF_INET6 && same_ip(loopback(AF_INET6, 0));
}

bool Address::is_link_local() const {
  if (family_ == AF_INET) return ip_[0] == 169 && ip_[1] == 254;
  return family_ == AF_INET6 && ip_[0] == 0xfe && (ip_[1] & 0xc0) == 0x80;
}

bool Address::same_ip(const Address& other) const {
  return family_ == other.family_ && std::memcmp(ip_, other.ip_, sizeof ip_) == 0;
}

bool Address::in_subnet(const Address& network, int prefix_length) const {
  if (family_ != network.family_ || !valid()) return false;
  const int bits = std::clamp(prefix_length, 0, family_ == AF_INET ? 32 : 128);
  const int bytes = bits / 8;
  if (std::memcmp(ip_, network.ip_, static_cast<size_t>(bytes)) != 0) return false;
  if (bits % 8 == 0) return true;
  const int mask = 0xff << (8 - bits % 8);
  return ((ip_[bytes] ^ network.ip_[bytes]) & mask & 0xff) == 0;
}

std::string Address::ip_string() const {
  if (!valid()) return "(no address)";
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(family_, ip_, text, sizeof text);
  std::string result = text;
  if (scope_ != 0) {
    char name[IF_NAMESIZE];
    result += "%" + (if_indextoname(scope_, name) != nullptr ? std::string(name) : std::to_string(scope_));
  }
  return result;
}

std::string Address::to_string() const {
  if (!valid()) return ip_string();
  if (family_ == AF_INET) return ip_string() + ":" + std::to_string(port_);
  return "[" + ip_string() + "]:" + std::to_string(port_);
}

socklen_t Address::to_sockaddr(sockaddr_storage* out) const {
  std::memset(out, 0, sizeof *out);
  if (family_ == AF_INET) {
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port_);
    std::memcpy(&v4.sin_addr, ip_, 4);
    std::memcpy(out, &v4, sizeof v4);
    return sizeof v4;
  }
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port_);
  v6.sin6_scope_id = scope_;
  std::memcpy(&v6.sin6_addr, ip_, 16);
  std::memcpy(out, &v6, sizeof v6);
  return sizeof v6;
}

std::string Address::encode() const {
  std::string bytes(kWireBytes, '\0');
  bytes[0] = family_ == AF_INET ? 4 : family_ == AF_INET6 ? 6 : 0;
  std::memcpy(&bytes[2], &port_, 2);
  std::memcpy(&bytes[4], &scope_, 4);
  std::memcpy(&bytes[8], ip_, 16);
  return bytes;
}

Result<Address> Address::decode(std::string_view bytes) {
  Address result;
  if (bytes.size() != kWireBytes || (bytes[0] != 0 && bytes[0] != 4 && bytes[0] != 6)) {
    return Status::argument("malformed socket address");
  }
  result.family_ = bytes[0] == 4 ? AF_INET : bytes[0] == 6 ? AF_INET6 : AF_UNSPEC;
  std::memcpy(&result.port_, &bytes[2], 2);
  std::memcpy(&result.scope_, &bytes[4], 4);
  std::memcpy(result.ip_, &bytes[8], 16);
  return result;
}

std::string encode_addresses(const std::vector<Address>& addresses) {
  std::string bytes;
  for (const Address& address : addresses) bytes += address.encode();
  return bytes;
}

Result<std::vector<Address>> decode_addresses(std::string_view bytes) {
  if (bytes.size() % Address::kWireBytes != 0 || bytes.size() / Address::kWireBytes > kMaxAddresses) {
    return Status::argument("malformed list of socket addresses");
  }
  std::vector<Address> addresses;
  for (size_t offset = 0; offset < bytes.size(); offset += Address::kWireBytes) {
    auto address = Address::decode(bytes.substr(offset, Address::kWireBytes));
    if (!address.ok()) return address.status();
    addresses.push_back(address.value());
  }
  return addresses;
}

}  // namespace theseus
