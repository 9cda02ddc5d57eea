#include "drivers/cuda/emu.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/env.h"
#include "base/fork.h"

namespace theseus::cuda {
namespace {

thread_local int chosen_device = 0;

Status cuda_error(std::string message) { return {Code::UnhandledCudaError, std::move(message)}; }

}  // namespace

EmulatorOptions EmulatorOptions::from_settings() {
  return {static_cast<int>(settings::emu_devices()), static_cast<int>(settings::emu_threads()),
          static_cast<uint64_t>(settings::emu_memory()), settings::emu_compiler(), settings::emu_flags()};
}

Emulator::Emulator(EmulatorOptions options)
    : options_(std::move(options)),
      memory_(options_.devices, options_.memory_bytes),
      crashed_(options_.devices),
      rooms_(options_.devices) {
  arm_fork_guard();
  for (int device = 0; device < options_.devices; ++device)
    null_streams_.push_back(new_stream(device, /*blocking=*/false));
}

Emulator::~Emulator() {
  std::lock_guard lock(mutex_);
  for (const auto& stream : null_streams_) stream->close();
  for (const auto& [handle, stream] : streams_) stream->close();
  for (const auto& [thread, stream] : thread_streams_) stream->close();
}

Status Emulator::check(int device) const {
  THESEUS_TRY(check_not_forked());
  if (device < 0 || device >= options_.devices) {
    return Status::argument("there is no device " + std::to_string(device) + "; the emulator has " +
                            std::to_string(options_.devices) + " (THESEUS_EMU_DEVICES)");
  }
  if (crashed_[device].load(std::memory_order_acquire))
    return cuda_error("a kernel crashed on device " + std::to_string(device) + "; nothing runs there any more");
  return {};
}

Result<DeviceInfo> Emulator::device_info(int device) {
  THESEUS_TRY(check(device));
  DeviceInfo info;
  info.ordinal = device;
  info.name = "Theseus emulator";
  info.multiprocessors = 32;
  info.memory_bytes = options_.memory_bytes;
  std::memcpy(info.uuid.data(), "theseus-emu", 11);
  info.uuid[15] = static_cast<uint8_t>(device);
  info.pci = "emu:" + std::to_string(device);
  info.max_threads = options_.max_threads;
  info.max_shared_bytes = 1 << 16;
  info.cooperative = true;
  return info;
}

Result<int> Emulator::current_device() {
  THESEUS_TRY(check_not_forked());
  return chosen_device < options_.devices ? chosen_device : 0;
}

Status Emulator::set_current_device(int device) {
  THESEUS_TRY(check(device));
  chosen_device = device;
  return {};
}

Result<bool> Emulator::can_access_peer(int device, int peer) {
  THESEUS_TRY(check(device));
  THESEUS_TRY(check(peer));
  return !faults_.peers_refused(device, peer);
}

Status Emulator::enable_peer(int device, int peer) {
  Result<bool> can = can_access_peer(device, peer);
  if (!can) return can.status();
  if (*can) return {};
  return cuda_error("peer access refused: device " + std::to_string(device) + " cannot reach the memory of device " +
                    std::to_string(peer) + "; choose devices that do");
}

Result<void*> Emulator::allocate(int device, size_t bytes) {
  THESEUS_TRY(check(device));
  if (faults_.takes_allocation())
    return cuda_error("out of memory: " + std::to_string(bytes) + " bytes asked for on device " +
                      std::to_string(device) + ", 0 free; THESEUS_EMU_MEMORY gives it more");
  return memory_.allocate(device, bytes);
}

Result<void*> Emulator::allocate_managed(int device, size_t bytes) {
  THESEUS_TRY(check(device));
  return memory_.allocate_managed(device, bytes);
}

Status Emulator::release(int device, void* memory) {
  THESEUS_TRY(check(device));
  if (memory == nullptr) return {};
  for (const auto& stream : streams_of(device))
    if (stream->graph() == nullptr) THESEUS_TRY(stream->synchronize());
  THESEUS_TRY(finish_closed(device));
  return memory_.release(device, memory);
}

Result<void*> Emulator::allocate_pinned(size_t bytes) {
  THESEUS_TRY(check_not_forked());
  if (faults_.takes_allocation())
    return cuda_error("out of memory: " + std::to_string(bytes) +
                      " bytes of pinned memory; the host's limit is 'ulimit -l'");
  return memory_.allocate_pinned(bytes);
}

Status Emulator::release_pinned(void* memory) {
  THESEUS_TRY(check_not_forked());
  return memory_.release_pinned(memory);
}

Status Emulator::register_host(void* memory, size_t bytes) {
  THESEUS_TRY(check_not_forked());
  return memory_.register_host(memory, bytes);
}

Status Emulator::unregister_host(void* memory) {
  THESEUS_TRY(check_not_forked());
  return memory_.unregister_host(memory);
}

Result<void*> Emulator::device_address(int device, void* pinned) {
  THESEUS_TRY(check(device));
  if (memory_.find(pinned).kind != PointerKind::Pinned)
    return Status::argument(
        "devices do not reach this host memory: it came neither from allocate_pinned() nor "
        "through register_host()");
  return pinned;
}

Result<PointerInfo> Emulator::pointer_info(const void* pointer) {
  THESEUS_TRY(check_not_forked());
  return memory_.find(pointer);
}

Result<IpcHandle> Emulator::export_memory(const void* pointer) {
  THESEUS_TRY(check_not_forked());
  return memory_.export_memory(pointer);
}

Result<void*> Emulator::import_memory(int device, const IpcHandle& handle) {
  THESEUS_TRY(check(device));
  Result<int> exporter = EmuMemory::exporter_device(handle);
  if (!exporter) return exporter.status();
  if (*exporter < options_.devices) THESEUS_TRY(enable_peer(device, *exporter));
  return memory_.import_memory(device, handle);
}

Status Emulator::release_import(int device, void* base) {
  THESEUS_TRY(check(device));
  return memory_.release_import(device, base);
}

Result<KernelCompiler*> Emulator::compiler() {
  THESEUS_TRY(check_not_forked());
  if (faults_.takes_compiler())
    return cuda_error("kernels need a compiler, and none was found; name one in THESEUS_EMU_COMPILER");
  std::lock_guard lock(mutex_);
  if (compiler_ == nullptr) {
    Result<std::unique_ptr<EmuCompiler>> made = EmuCompiler::make(options_.compiler, options_.compiler_flags);
    if (!made) return made.status();
    compiler_ = std::move(*made);
  }
  return static_cast<KernelCompiler*>(compiler_.get());
}

}  // namespace theseus::cuda
