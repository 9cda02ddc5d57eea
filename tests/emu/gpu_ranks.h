// Communicators on emulated GPUs: memory, streams, and ranks in one process.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "drivers/cuda/api.h"
#include "runtime/communicator.h"
#include "unit/collectives.h"
#include "unit/runtime/rank_threads.h"

namespace theseus::testing {

inline cuda::Driver& driver() {
  Result<cuda::Driver*> found = cuda::driver();
  EXPECT_TRUE(found.ok() && *found != nullptr) << found.status().message();
  return **found;
}

// A copy of a host array in a GPU's memory.
class GpuMemory {
 public:
  GpuMemory(int device, const void* data, size_t bytes) : device_(device), bytes_(bytes) {
    Result<void*> made = driver().allocate(device, std::max<size_t>(bytes, 1));
    EXPECT_TRUE(made.ok()) << made.status().message();
    at_ = *made;
    EXPECT_OK(driver().copy(device, at_, data, bytes, nullptr));
    EXPECT_OK(driver().synchronize(device, cuda::Stream{}));
  }
  ~GpuMemory() { EXPECT_OK(driver().release(device_, at_)); }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  void* at(size_t offset = 0) { return static_cast<uint8_t*>(at_) + offset; }
  void read(void* to) {
    EXPECT_OK(driver().copy(device_, to, at_, bytes_, nullptr));
    EXPECT_OK(driver().synchronize(device_, cuda::Stream{}));
  }

 private:
  int device_;
  size_t bytes_;
  void* at_ = nullptr;
};

class GpuStream {
 public:
  explicit GpuStream(int device) : device_(device) {
    Result<cuda::Stream> made = driver().create_stream(device);
    EXPECT_TRUE(made.ok()) << made.status().message();
    stream_ = *made;
  }
  ~GpuStream() { EXPECT_OK(driver().destroy_stream(device_, stream_)); }
  GpuStream(const GpuStream&) = delete;
  GpuStream& operator=(const GpuStream&) = delete;

  cuda::Stream get() const { return stream_; }
  Status wait() { return driver().synchronize(device_, stream_); }
  bool idle() {
    Result<bool> done = driver().query(device_, stream_);
    EXPECT_TRUE(done.ok()) << done.status().message();
    return done.ok() && *done;
  }

 private:
  int device_;
  cuda::Stream stream_ = nullptr;
};

// One process, one thread: a communicator with a rank on each of `devices`, and a stream for each rank.
class GpuRanks {
 public:
  explicit GpuRanks(const std::vector<int>& devices) : devices_(devices) {
    Result<std::vector<Communicator*>> made = Communicator::init_all(static_cast<int>(devices.size()), devices);
    EXPECT_TRUE(made.ok()) << made.status().message();
    if (made.ok()) handles_ = *made;
    for (const int device : devices) streams_.push_back(std::make_unique<GpuStream>(device));
  }
  ~GpuRanks() {
    on_threads(static_cast<int>(handles_.size()), [this](int rank) {
      if (Communicator* handle = take(rank); handle != nullptr) (void)Communicator::destroy(handle).ok();
    });
  }
  int size() const { return static_cast<int>(devices_.size()); }
  int device(int rank) const { return devices_[static_cast<size_t>(rank)]; }
  Communicator& operator[](int rank) { return *handles_[static_cast<size_t>(rank)]; }
  Communicator* take(int rank) { return std::exchange(handles_[static_cast<size_t>(rank)], nullptr); }
  GpuStream& stream(int rank) { return *streams_[static_cast<size_t>(rank)]; }

  // The calls of all ranks as one group; waits for the result.
  Status run(const std::vector<CollectiveCall>& calls) {
    group_start();
    for (int rank = 0; rank < size(); ++rank) {
      CollectiveCall call = calls[static_cast<size_t>(rank)];
      call.stream = stream(rank).get();
      (void)(*this)[rank].submit(call).ok();  // group_end() returns what is wrong
    }
    THESEUS_TRY(group_end());
    for (int rank = 0; rank < size(); ++rank) THESEUS_TRY(stream(rank).wait());
    return {};
  }

 private:
  std::vector<int> devices_;
  std::vector<Communicator*> handles_;
  std::vector<std::unique_ptr<GpuStream>> streams_;
};

// One rank's buffers on a GPU: as RankBuffers has them on the host.
template <class T>
class GpuBuffers {
 public:
  GpuBuffers(const CollectiveCase& test, int rank, int device)
      : host_(test, rank), memory_(device, host_.memory(), host_.bytes()) {}

  CollectiveCall call(const CollectiveCase& test) {
    CollectiveCall call;
    call.collective = test.collective;
    call.send = host_.send() == nullptr ? nullptr : memory_.at(host_.send_offset());
    call.recv = host_.recv() == nullptr ? nullptr : memory_.at(host_.recv_offset());
    call.count = test.count;
    call.type = type_of<T>();
    call.op = static_cast<int>(test.op);
    call.root = test.root;
    return call;
  }
  std::string difference() {
    memory_.read(host_.memory());
    return host_.difference();
  }

 private:
  RankBuffers<T> host_;
  GpuMemory memory_;
};

}  // namespace theseus::testing
