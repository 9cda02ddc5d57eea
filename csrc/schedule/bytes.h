// Little-endian bytes out and in, whatever the machine; the reader survives any input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace theseus {

class ByteWriter {
 public:
  template <class T>
  void put(T value) {
    static_assert(std::is_integral_v<T>);
    auto bits = static_cast<uint64_t>(value);
    for (size_t i = 0; i < sizeof(T); ++i, bits >>= 8) bytes_ += static_cast<char>(bits & 0xff);
  }
  void append(const std::string& bytes) { bytes_ += bytes; }
  size_t size() const { return bytes_.size(); }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// After a read past the end every read gives 0 and ok() is false.
class ByteReader {
 public:
  ByteReader(const char* data, size_t size) : data_(data), left_(size) {}

  template <class T>
  T get() {
    static_assert(std::is_integral_v<T>);
    if (left_ < sizeof(T)) {
      fail();
      return 0;
    }
    uint64_t bits = 0;
    for (size_t i = 0; i < sizeof(T); ++i) bits |= uint64_t{static_cast<uint8_t>(data_[i])} << (8 * i);
    data_ += sizeof(T);
    left_ -= sizeof(T);
    return static_cast<T>(bits);
  }
  // 0 or 1; anything else fails.
  bool get_flag() {
    const uint8_t value = get<uint8_t>();
    if (value > 1) fail();
    return value == 1;
  }
  std::string get_string(size_t size) {
    if (left_ < size) {
      fail();
      return {};
    }
    std::string text(data_, size);
    data_ += size;
    left_ -= size;
    return text;
  }
  // `count` if that many elements of at least `bytes_each` can follow, else fails and gives 0: no allocation is ever
  // larger than the input warrants.
  size_t limited(size_t count, size_t bytes_each) {
    if (count > left_ / bytes_each) {
      fail();
      return 0;
    }
    return count;
  }
  void fail() {
    ok_ = false;
    left_ = 0;
  }
  bool ok() const { return ok_; }
  size_t left() const { return left_; }

 private:
  const char* data_;
  size_t left_;
  bool ok_ = true;
};

// 64 well-mixed bits. No defence against an adversary, only against accidents.
inline uint64_t hash_bytes(const char* data, size_t size) {
  const auto mix = [](uint64_t x) {
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ull;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ull;
    return x ^ (x >> 32);
  };
  uint64_t hash = mix(size + 0x9e3779b97f4a7c15ull);
  ByteReader in(data, size);
  while (in.left() >= 8) hash = mix(hash ^ in.get<uint64_t>()) + 0x9e3779b97f4a7c15ull;
  uint64_t tail = 1;
  while (in.left() > 0) tail = tail << 8 | in.get<uint8_t>();
  return mix(hash ^ tail);
}

}  // namespace theseus
