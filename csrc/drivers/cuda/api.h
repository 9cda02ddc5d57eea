// What the library asks of a CUDA driver, as one abstract class with two implementations: the real one (libcuda.so.1
// and NVRTC, loaded at run time; no toolkit is needed to build) and an emulator in host memory.
//
// Conventions, for both:
// - Every method may be called from any thread. A device is named by its ordinal, never by a "current context" that
//   the caller would have to restore; each call leaves the calling thread's context as it was.
// - Work on a stream is asynchronous and in order; copies and fills included. A null Stream is the legacy default
//   stream of the device named: it and the streams that users make without cudaStreamNonBlocking wait for each other.
// - Pointers are unified: a device pointer is a void* that means the same to all devices of a process that may reach
//   each other. Only the emulator's may be followed by the host.
// - Failure is Code::UnhandledCudaError with the driver's own text where the driver failed, InvalidArgument or
//   InvalidUsage where the caller did. A failure of asynchronous work (a kernel that crashed) shows at a later call on
//   the device and stays.
// - In a forked child every call returns InvalidUsage (base/fork.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace theseus::cuda {

// The driver's own handles. With the real driver a Stream is a CUstream, so that a user's cudaStream_t is one.
using Stream = struct StreamObject*;
using Event = struct EventObject*;
using Module = struct ModuleObject*;
using Function = struct FunctionObject*;

// CUDA's names for two streams that nobody creates: the legacy default stream, which a null Stream is too, and the
// default stream of the calling thread, which is another one on each thread.
inline Stream legacy_stream() { return reinterpret_cast<Stream>(uintptr_t{1}); }
inline Stream per_thread_stream() { return reinterpret_cast<Stream>(uintptr_t{2}); }

struct DeviceInfo {
  int ordinal = 0;
  std::string name;
  int sm = 0;  // compute capability, major * 10 + minor: 80, 90, 100; of the emulator 0
  int multiprocessors = 0;
  uint64_t memory_bytes = 0;
  std::array<uint8_t, 16> uuid{};  // equal in all processes that see this device, whatever ordinal it has there
  std::string pci;                 // "0000:3b:00.0"; of the emulator "emu:<ordinal>"
  // Threads of a TB that one launch may ask for. The emulator's threads are OS threads, so its limit is small
  // (THESEUS_EMU_THREADS): a launch takes the smaller of this and what its kernel likes best.
  int max_threads = 0;
  int max_shared_bytes = 0;  // dynamic shared memory of a TB, after set_dynamic_shared()
  bool cooperative = false;  // Launch::cooperative is supported
};

enum class PointerKind {
  Unregistered,  // ordinary host memory, or nothing the driver knows
  Pinned,        // host memory that devices reach: allocate_pinned() or register_host()
  Device,
  Managed,
};

struct PointerInfo {
  PointerKind kind = PointerKind::Unregistered;
  int ordinal = -1;         // device that holds it, or whose context pinned it; -1: Unregistered
  void* base = nullptr;     // of the allocation that contains the pointer; null: Unregistered
  uint64_t bytes = 0;       // of the whole allocation; 0: Unregistered
  bool exportable = false;  // export_memory() would take it
};

// What import_memory() of another process on this machine needs. Plain bytes: may be sent as they are.
struct IpcHandle {
  std::array<uint8_t, 64> bytes{};
};

// Whether a CUDA graph is being captured on a stream. While it is, work is recorded, not run: it must not be waited
// for, and queries of the stream are errors.
struct Capture {
  enum class State { None, Active, Invalidated };
  State state = State::None;
  uint64_t id = 0;  // of the capture, unique in the process; 0: none
};

struct FunctionInfo {
  int registers = 0;    // a thread; of the emulator 0
  int local_bytes = 0;  // a thread: spills and arrays; of the emulator 0
  int static_shared_bytes = 0;
  int max_threads = 0;  // a TB
};

// One kernel launch. Every kernel of ours takes exactly one parameter, a trivially copyable struct by value
// (THESEUS_KERNEL in emu_device.h): `parameters` points at it, and it is copied before launch() returns.
struct Launch {
  Function function = nullptr;
  uint32_t grid = 1;          // TBs, one dimension
  uint32_t block = 1;         // threads of a TB, one dimension
  uint32_t shared_bytes = 0;  // dynamic shared memory of a TB
  Stream stream = nullptr;
  const void* parameters = nullptr;
  size_t parameter_bytes = 0;  // at most kMaxParameterBytes
  // All TBs run at once, or the launch fails: needed where a TB waits for another. The emulator always does so.
  bool cooperative = false;
};
inline constexpr size_t kMaxParameterBytes = 4096;

// A text of C++/CUDA and the headers that it includes by these very names; nothing else is on the include path but, for
// the real compiler, CUDA's own headers where they were found, and for the emulator "drivers/cuda/emu_device.h".
struct SourceText {
  std::string name;  // "device/primitives.cuh"
  std::string text;
};
struct KernelSource {
  std::string name;  // for messages and debuggers: "ring_allreduce.cu"
  std::string text;
  std::vector<SourceText> headers;
  std::vector<std::string> options;  // -D and the like, understood by NVRTC and g++ alike
};
// What Driver::load() takes: a cubin, or the emulator's shared object. Only for the device's architecture and the
// compiler it came from.
using KernelImage = std::vector<uint8_t>;

// Turns source text into images. Thread-safe, and slow (25 ms to seconds): for background threads. Holds no device.
class KernelCompiler {
 public:
  virtual ~KernelCompiler() = default;
  // InvalidArgument with the compiler's log where the text is at fault.
  virtual Result<KernelImage> compile(const KernelSource& source, const DeviceInfo& device) = 0;
  // Everything besides the source that an image depends on: compiler, version, flags, architecture. For cache keys.
  virtual std::string identity(const DeviceInfo& device) const = 0;
};

class Driver {
 public:
  virtual ~Driver() = default;

  // --- devices
  virtual bool emulated() const = 0;
  virtual int device_count() const = 0;
  virtual Result<DeviceInfo> device_info(int device) = 0;
  // The device that the calling thread works with, as cudaSetDevice left it; 0 where it chose none.
  virtual Result<int> current_device() = 0;
  virtual Status set_current_device(int device) = 0;
  // Whether kernels of `device` may follow pointers into `peer`'s memory. A device reaches itself.
  virtual Result<bool> can_access_peer(int device, int peer) = 0;
  // Idempotent. UnhandledCudaError where can_access_peer() is false, naming both devices and the way out.
  virtual Status enable_peer(int device, int peer) = 0;

  // --- memory
  // At least one byte, 256-byte aligned, not cleared. Out of memory says how much was asked for and how much is free.
  virtual Result<void*> allocate(int device, size_t bytes) = 0;
  // Waits for all work of the device first. Null is nothing; else the very pointer that allocate() gave.
  virtual Status release(int device, void* memory) = 0;
  // Host memory that all devices reach at the same address; page-aligned.
  virtual Result<void*> allocate_pinned(size_t bytes) = 0;
  virtual Status release_pinned(void* memory) = 0;
  // Pins memory that exists (page-aligned; a shared segment, say), and lets it go. device_address() then tells where
  // devices see it.
  virtual Status register_host(void* memory, size_t bytes) = 0;
  virtual Status unregister_host(void* memory) = 0;
  virtual Result<void*> device_address(int device, void* pinned) = 0;
  // Unregistered for whatever the driver does not know, never an error for that.
  virtual Result<PointerInfo> pointer_info(const void* pointer) = 0;

  // --- memory of other processes on this machine
  // Names the whole allocation that holds `pointer`: send pointer - base along. InvalidArgument for memory that cannot
  // be exported (pinned, managed, made by cuMemMap).
  virtual Result<IpcHandle> export_memory(const void* pointer) = 0;
  // Where `device` sees the base of the exported allocation. InvalidUsage in the process that exported it: take the
  // pointer itself there. Importing one handle twice gives one pointer, to be released twice. The exporter must keep
  // the memory until every importer released it.
  virtual Result<void*> import_memory(int device, const IpcHandle& handle) = 0;
  virtual Status release_import(int device, void* base) = 0;

  // --- streams and events. Objects belong to the device that they were made for. Streams made here do not wait for the
  // default stream, nor it for them.
  enum class Priority { Low, High };
  virtual Result<Stream> create_stream(int device, Priority priority = Priority::Low) = 0;
  // Work that is queued still runs.
  virtual Status destroy_stream(int device, Stream stream) = 0;
  virtual Status synchronize(int device, Stream stream) = 0;
  // Whether all work queued so far is done.
  virtual Result<bool> query(int device, Stream stream) = 0;
  virtual Result<Capture> capture(int device, Stream stream) = 0;

  virtual Result<Event> create_event(int device, bool timing = false) = 0;
  virtual Status destroy_event(int device, Event event) = 0;
  virtual Status record(int device, Event event, Stream stream) = 0;
  // Work queued on `stream` from now on waits for the last record of `event`; for nothing where there was none. The
  // event may be of another device.
  virtual Status wait(int device, Stream stream, Event event) = 0;
  // As for streams; an event that was never recorded is done.
  virtual Status synchronize(int device, Event event) = 0;
  virtual Result<bool> query(int device, Event event) = 0;
  // Milliseconds between two recorded events with timing.
  virtual Result<float> elapsed(int device, Event from, Event to) = 0;

  // --- work. Each may be captured into a graph.
  // Between any two kinds of memory. Host memory that is not pinned may make the call wait for the copy.
  virtual Status copy(int device, void* to, const void* from, size_t bytes, Stream stream) = 0;
  virtual Status fill(int device, void* memory, uint8_t value, size_t bytes, Stream stream) = 0;
  virtual Status launch(int device, const Launch& launch) = 0;
  // Calls call(argument) on some thread once all earlier work is done; later work waits for it. It must not call the
  // driver.
  virtual Status call_host(int device, Stream stream, void (*call)(void*), void* argument) = 0;

  // --- modules
  virtual Result<Module> load(int device, const KernelImage& image) = 0;
  // Functions of it must not be running.
  virtual Status unload(int device, Module module) = 0;
  // InvalidArgument where the module has no kernel of that name.
  virtual Result<Function> function(int device, Module module, const std::string& name) = 0;
  virtual Result<FunctionInfo> function_info(int device, Function function) = 0;
  // Lets launches ask for up to so much dynamic shared memory (more than 48 KB must be asked for first).
  virtual Status set_dynamic_shared(int device, Function function, int bytes) = 0;
  // TBs of one multiprocessor that can run at once.
  virtual Result<int> occupancy(int device, Function function, int block, size_t shared_bytes) = 0;

  // --- the compiler that makes images for this driver. It lives as long as the driver. UnhandledCudaError where NVRTC
  // (or, for the emulator, a C++ compiler) is not there, naming where it was looked for and what to install.
  virtual Result<KernelCompiler*> compiler() = 0;
};

// The driver of this process, by THESEUS_DEVICE:
//   host      null: buffers are host memory, and nothing is loaded
//   cuda      the real one, or why not: no driver, driver too old, no device; each with the way out
//   cuda-emu  the emulator
//   auto      the real one where it can be used, else null
// Chosen once, at the first call. It lives as long as the process.
Result<Driver*> driver();

}  // namespace theseus::cuda
