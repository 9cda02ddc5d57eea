// The part of DLPack's ABI (version 1) that reading a host tensor needs.
#pragma once

#include <cstdint>

namespace theseus::bindings::dlpack {

struct Device {
  int32_t type;
  int32_t id;
};
inline constexpr int32_t kCpu = 1;
inline constexpr int32_t kCudaHost = 3;  // pinned host memory
inline constexpr int32_t kCudaManaged = 13;

struct DType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  int32_t dimensions;
  DType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null: C order
  uint64_t byte_offset;
};

struct ManagedTensor {  // capsule "dltensor"
  Tensor tensor;
  void* manager;
  void (*deleter)(ManagedTensor*);
};

struct VersionedTensor {  // capsule "dltensor_versioned"
  uint32_t major;
  uint32_t minor;
  void* manager;
  void (*deleter)(VersionedTensor*);
  uint64_t flags;
  Tensor tensor;
};
inline constexpr uint64_t kReadOnly = 1;

}  // namespace theseus::bindings::dlpack
