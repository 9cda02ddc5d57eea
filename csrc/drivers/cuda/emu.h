// The emulator: devices in host memory, streams that are threads, kernels that g++ compiled. It shows whether what is
// asked of a driver is right, not how fast a GPU would do it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "drivers/cuda/api.h"
#include "drivers/cuda/emu_compiler.h"
#include "drivers/cuda/emu_faults.h"
#include "drivers/cuda/emu_memory.h"
#include "drivers/cuda/emu_module.h"
#include "drivers/cuda/emu_room.h"
#include "drivers/cuda/emu_stream.h"
#include "drivers/cuda/emu_threads.h"

namespace theseus::cuda {

struct EmulatorOptions {
  int devices = 4;
  int max_threads = 2;                        // of a TB
  uint64_t memory_bytes = uint64_t{4} << 30;  // of each device
  std::string compiler;                       // empty: found on PATH
  std::string compiler_flags;

  // THESEUS_EMU_*.
  static EmulatorOptions from_settings();
};

class Emulator final : public Driver {
 public:
  explicit Emulator(EmulatorOptions options);
  // Waits for all work.
  ~Emulator() override;

  EmulatorFaults& faults() { return faults_; }
  // Lets so many TBs of cooperative launches run at once on a device; 0, as it begins: any number.
  void limit_room(int device, uint64_t blocks) { rooms_[static_cast<size_t>(device)].limit(blocks); }

  // CUDA graphs, as a user of the library would make them. A stream that waits for an event recorded under a capture
  // joins it. end_capture() is for the stream that began; InvalidUsage where the capture was spoilt.
  Status begin_capture(int device, Stream stream);
  Result<std::shared_ptr<EmuGraph>> end_capture(int device, Stream stream);
  Status replay(int device, const std::shared_ptr<EmuGraph>& graph, Stream stream);

  // Also as a user would make them: a stream that the legacy default stream waits for, and that waits for it
  // (cudaStreamCreate), and memory that host and devices share (cudaMallocManaged).
  Result<Stream> create_blocking_stream(int device);
  Result<void*> allocate_managed(int device, size_t bytes);

  bool emulated() const override { return true; }
  int device_count() const override { return options_.devices; }
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

  Result<Stream> create_stream(int device, Priority priority = Priority::Low) override;
  Status destroy_stream(int device, Stream stream) override;
  Status synchronize(int device, Stream stream) override;
  Result<bool> query(int device, Stream stream) override;
  Result<Capture> capture(int device, Stream stream) override;

  Result<Event> create_event(int device, bool timing = false) override;
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
  struct TimedEvent {
    int device = 0;
    bool timing = false;
    EmuEvent event;
  };

  // What every call starts with: not forked, a device that exists and has not crashed.
  Status check(int device) const;
  Status finish_closed(int device);
  Result<std::shared_ptr<EmuStream>> find(int device, Stream stream);
  Result<std::shared_ptr<TimedEvent>> find(Event event);
  Result<std::shared_ptr<const EmuFunction>> find(int device, Function function);
  std::vector<std::shared_ptr<EmuStream>> streams_of(int device);
  std::shared_ptr<EmuStream> new_stream(int device, bool blocking);
  Result<Stream> add_stream(int device, bool blocking);
  std::shared_ptr<EmuStream> stream_of_thread(int device);
  // Queues work as CUDA orders streams: the legacy default stream first waits for what blocking streams have so far,
  // and they for what it has.
  Status submit(const std::shared_ptr<EmuStream>& on, EmuWork work);
  Status check_launch(const EmuFunction& function, const Launch& launch) const;

  const EmulatorOptions options_;
  EmulatorFaults faults_;
  EmuMemory memory_;
  std::vector<std::atomic<bool>> crashed_;
  std::vector<EmuRoom> rooms_;  // by device

  // Handles are addresses; only those in these tables are followed.
  std::mutex mutex_;
  std::vector<std::shared_ptr<EmuStream>> null_streams_;  // by device
  std::unordered_map<Stream, std::shared_ptr<EmuStream>> streams_;
  std::map<std::pair<std::thread::id, int>, std::shared_ptr<EmuStream>> thread_streams_;  // by thread and device
  std::unordered_map<Event, std::shared_ptr<TimedEvent>> events_;
  std::unordered_map<Module, std::shared_ptr<EmuModule>> modules_;
  std::unordered_map<Function, std::shared_ptr<const EmuFunction>> functions_;
  std::unique_ptr<EmuCompiler> compiler_;
  std::atomic<uint64_t> next_capture_{1};
  std::vector<std::weak_ptr<EmuStream>> closing_;  // destroyed, and perhaps at work still

  EmuThreads threads_;  // last: its end waits for work that uses all of the above
};

}  // namespace theseus::cuda
