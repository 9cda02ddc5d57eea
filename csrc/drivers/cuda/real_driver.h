// Driver over libcuda.so.1. Contexts are the devices' primary ones, as the CUDA runtime's, PyTorch's and CuPy's are.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "drivers/cuda/api.h"
#include "drivers/cuda/nvrtc.h"
#include "drivers/cuda/real_table.h"

namespace theseus::cuda {

class RealDriver final : public Driver {
 public:
  RealDriver(const DriverTable& table, int devices);
  // Gives the contexts back.
  ~RealDriver() override;

  bool emulated() const override { return false; }
  int device_count() const override { return static_cast<int>(contexts_.size()); }
  Result<DeviceInfo> device_info(int device) override;
  Result<int> current_device() override;
  Status set_current_device(int device) override;
  Result<bool> can_access_peer(int device, int peer) override;
  Status enable_peer(int device, int peer) override;

  Result<void*> allocate(int device, size_t bytes) override;
  Status release(int device, void* memory) override;
  Result<void*> allocate_pinned(size_t bytes) override;
  Status release_pinned(void* memory) override;
  Status register_host(void* memory, size_t bytes) override;
  Status unregister_host(void* memory) override;
  Result<void*> device_address(int device, void* pinned) override;
  Result<PointerInfo> pointer_info(const void* pointer) override;

  Result<IpcHandle> export_memory(const void* pointer) override;
  Result<void*> import_memory(int device, const IpcHandle& handle) override;
  Status release_import(int device, void* base) override;

  Result<Stream> create_stream(int device, Priority priority) override;
  Status destroy_stream(int device, Stream stream) override;
  Status synchronize(int device, Stream stream) override;
  Result<bool> query(int device, Stream stream) override;
  Result<Capture> capture(int device, Stream stream) override;

  Result<Event> create_event(int device, bool timing) override;
  Status destroy_event(int device, Event event) override;
  Status record(int device, Event event, Stream stream) override;
  Status wait(int device, Stream stream, Event event) override;
  Status synchronize(int device, Event event) override;
  Result<bool> query(int device, Event event) override;
  Result<float> elapsed(int device, Event from, Event to) override;

  Status copy(int device, void* to, const void* from, size_t bytes, Stream stream) override;
  Status fill(int device, void* memory, uint8_t value, size_t bytes, Stream stream) override;
  Status launch(int device, const Launch& launch) override;
  Status call_host(int device, Stream stream, void (*call)(void*), void* argument) override;

  Result<Module> load(int device, const KernelImage& image) override;
  Status unload(int device, Module module) override;
  Result<Function> function(int device, Module module, const std::string& name) override;
  Result<FunctionInfo> function_info(int device, Function function) override;
  Status set_dynamic_shared(int device, Function function, int bytes) override;
  Result<int> occupancy(int device, Function function, int block, size_t shared_bytes) override;

  Result<KernelCompiler*> compiler() override;

 private:
  class Scope;
  struct Import {
    void* base;
    int count;
  };
  using ImportKey = std::pair<int, std::array<uint8_t, 64>>;  // device, handle

  Status check(int device) const;
  Result<CUcontext> context(int device);
  // Ok, or the error of `what` that the driver gave.
  Status result(const char* what, CUresult result) const;
  // Calls `function` with `arguments` in the context of `device`.
  template <class Function, class... Arguments>
  Status call(int device, const char* what, Function function, Arguments... arguments);
  // The same, for the two functions that answer by their result.
  template <class Function, class Object>
  Result<bool> done(int device, const char* what, Function function, Object object);
  Result<int> attribute(int device, int number);
  // A device whose context costs nothing: the thread's own, else one that is in use; -1: none is.
  int device_in_use();

  const DriverTable table_;
  std::mutex mutex_;
  std::vector<CUcontext> contexts_;  // by device; null: not retained yet
  std::set<std::array<uint8_t, 64>> exported_;
  std::map<ImportKey, Import> imports_;
  std::unique_ptr<NvrtcCompiler> compiler_;
};

}  // namespace theseus::cuda
