// The kernels of a GPU, for all communicators of the process: compiled when they are first needed, or found on disk
// (KernelFiles), and loaded once.
//
// A call that has to run gets the interpreting kernel, compiled on the spot where it has never been before. Kernels
// generated for one plan are made on a thread of their own; until such a one is loaded, the interpreting one runs.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/result.h"
#include "base/types.h"
#include "compiler/kernel_text.h"
#include "device/kernel_abi.h"
#include "drivers/cuda/api.h"
#include "executor/kernel_files.h"

namespace theseus {

cuda::KernelSource source_of(const KernelText& text);
// All that an image depends on, as one text: what it is filed under. `compiler`: its identity().
std::string key_of(const KernelText& text, const std::string& compiler);

struct CudaKernel {
  cuda::Function function = nullptr;
  uint32_t threads = 0;  // of a TB
  uint32_t shared_bytes = 0;
  uint32_t resident = 0;  // TBs that the whole device can run at once
};

class CudaKernels {
 public:
  // Those of one device; never destroyed.
  static CudaKernels& of(cuda::Driver& driver, const cuda::DeviceInfo& device);
  CudaKernels(cuda::Driver& driver, const cuda::DeviceInfo& device, KernelFiles files)
      : driver_(driver), device_(device), files_(std::move(files)) {}
  // Waits for the kernel that is being made.
  ~CudaKernels();

  // Each waits until the kernel is loaded; the outcome, good or bad, is remembered.
  Result<const CudaKernel*> interpreter(DataType type, RedOp op, device::Protocol protocol);
  Result<const CudaKernel*> division(DataType type);
  Result<const CudaKernel*> transfer();

  // A kernel of `name`, which says all that the text depends on: null until it is loaded. The first call has it made in
  // the background; `text` is called there.
  class Generated {
   public:
    const CudaKernel* get() const { return kernel_.load(std::memory_order_acquire); }

   private:
    friend class CudaKernels;
    std::atomic<const CudaKernel*> kernel_{nullptr};
  };
  std::shared_ptr<const Generated> generate(const std::string& name, std::function<KernelText()> text);
  // Waits until nothing is left to make.
  void settle();

  // Generated kernels loaded so far.
  uint64_t generated() const { return loaded_.load(std::memory_order_relaxed); }
  // Texts given to the compiler so far; the others were found on disk.
  uint64_t compiled() const { return compiled_.load(std::memory_order_relaxed); }

 private:
  struct Entry {
    std::mutex mutex;
    bool done = false;
    Status status;
    CudaKernel kernel;
  };
  struct Job {
    std::shared_ptr<Generated> target;
    std::function<KernelText()> text;
    std::string name;
  };
  Result<const CudaKernel*> take(const std::string& name, const std::function<KernelText()>& text);
  Status make(const KernelText& text, CudaKernel& kernel);
  Result<cuda::KernelImage> image_of(const KernelText& text);
  void work();

  cuda::Driver& driver_;
  cuda::DeviceInfo device_;
  KernelFiles files_;
  std::atomic<uint64_t> compiled_{0};
  std::atomic<uint64_t> loaded_{0};
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Entry>> entries_;
  std::map<std::string, std::shared_ptr<Generated>> generated_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool busy_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace theseus
