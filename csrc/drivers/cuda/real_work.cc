// The real driver's streams, events, work and modules.
#include <cstring>
#include <string>

#include "drivers/cuda/real_scope.h"

namespace theseus::cuda {
namespace {

constexpr unsigned kNonBlocking = 1;  // a stream that does not wait for the default one
constexpr unsigned kNoTiming = 2;     // an event
constexpr uint16_t kElfMachineCuda = 190;

CUstream raw(Stream stream) { return reinterpret_cast<CUstream>(stream); }
CUevent raw(Event event) { return reinterpret_cast<CUevent>(event); }
CUmodule raw(Module module) { return reinterpret_cast<CUmodule>(module); }
CUfunction raw(Function function) { return reinterpret_cast<CUfunction>(function); }

// The driver is told no length, so an image has to hold what it claims: a whole ELF file of CUDA, or PTX that ends.
Status check_image(const KernelImage& image) {
  struct ElfHeader {
    char ident[16];
    uint16_t type, machine;
    uint32_t version;
    uint64_t entry, programs, sections;
    uint32_t flags;
    uint16_t header_size, program_size, program_count, section_size, section_count, names;
  } header;
  static_assert(sizeof header == 64);
  if (image.size() >= sizeof header && std::memcmp(image.data(),
                                                   "\x7f"
                                                   "ELF",
                                                   4) == 0) {
    std::memcpy(&header, image.data(), sizeof header);
    const auto fits = [&](uint64_t start, uint64_t bytes) {
      return start <= image.size() && bytes <= image.size() - start;
    };
    if (header.machine == kElfMachineCuda &&
        fits(header.sections, uint64_t{header.section_size} * header.section_count) &&
        fits(header.programs, uint64_t{header.program_size} * header.program_count))
      return {};
  } else if (!image.empty() && image.back() == 0 && std::memchr(image.data(), '.', image.size()) != nullptr) {
    return {};
  }
  return Status::argument("not an image that a CUDA device can load: no whole cubin, and no PTX");
}

}  // namespace

Result<Stream> RealDriver::create_stream(int device, Priority priority) {
  CUstream stream = nullptr;
  THESEUS_TRY(call(device, "create a stream", [&] {
    int lowest = 0, highest = 0;
    const CUresult ranged = table_.cuCtxGetStreamPriorityRange(&lowest, &highest);
    if (ranged != kCudaSuccess) return ranged;
    return table_.cuStreamCreateWithPriority(&stream, kNonBlocking, priority == Priority::High ? highest : lowest);
  }));
  return reinterpret_cast<Stream>(stream);
}

Status RealDriver::destroy_stream(int device, Stream stream) {
  if (stream == nullptr) return Status::argument("the default stream cannot be destroyed");
  return call(device, "destroy a stream", table_.cuStreamDestroy, raw(stream));
}

Status RealDriver::synchronize(int device, Stream stream) {
  return call(device, "wait for a stream", table_.cuStreamSynchronize, raw(stream));
}

Result<bool> RealDriver::query(int device, Stream stream) {
  return done(device, "query a stream", table_.cuStreamQuery, raw(stream));
}

Result<Capture> RealDriver::capture(int device, Stream stream) {
  int status = 0;
  unsigned long long id = 0;
  THESEUS_TRY(call(device, "ask whether a stream is captured", [&] {
    return table_.cuStreamGetCaptureInfo(raw(stream), &status, &id, nullptr, nullptr, nullptr);
  }));
  if (status == 0) return Capture{};
  return Capture{status == 1 ? Capture::State::Active : Capture::State::Invalidated, id};
}

Result<Event> RealDriver::create_event(int device, bool timing) {
  CUevent event = nullptr;
  THESEUS_TRY(call(device, "create an event", table_.cuEventCreate, &event, timing ? 0U : kNoTiming));
  return reinterpret_cast<Event>(event);
}

Status RealDriver::destroy_event(int device, Event event) {
  return call(device, "destroy an event", table_.cuEventDestroy, raw(event));
}

Status RealDriver::record(int device, Event event, Stream stream) {
  return call(device, "record an event", table_.cuEventRecord, raw(event), raw(stream));
}

Status RealDriver::wait(int device, Stream stream, Event event) {
  return call(device, "make a stream wait for an event", table_.cuStreamWaitEvent, raw(stream), raw(event), 0U);
}

Status RealDriver::synchronize(int device, Event event) {
  return call(device, "wait for an event", table_.cuEventSynchronize, raw(event));
}

Result<bool> RealDriver::query(int device, Event event) {
  return done(device, "query an event", table_.cuEventQuery, raw(event));
}

Result<float> RealDriver::elapsed(int device, Event from, Event to) {
  float milliseconds = 0;
  THESEUS_TRY(call(device, "measure the time between two events", table_.cuEventElapsedTime, &milliseconds, raw(from),
                   raw(to)));
  return milliseconds;
}

Status RealDriver::copy(int device, void* to, const void* from, size_t bytes, Stream stream) {
  if (bytes == 0) return check(device);
  return call(device, "copy memory", table_.cuMemcpyAsync, address(to), address(from), bytes, raw(stream));
}

Status RealDriver::fill(int device, void* memory, uint8_t value, size_t bytes, Stream stream) {
  if (bytes == 0) return check(device);
  return call(device, "fill memory", table_.cuMemsetD8Async, address(memory), value, bytes, raw(stream));
}

Status RealDriver::launch(int device, const Launch& launch) {
  if (launch.parameter_bytes > kMaxParameterBytes || launch.parameters == nullptr) {
    return Status::argument("cannot launch a kernel with " + std::to_string(launch.parameter_bytes) +
                            " bytes of parameters: 1 to " + std::to_string(kMaxParameterBytes) + " can be passed");
  }
  void* parameters[] = {const_cast<void*>(launch.parameters)};
  return call(device, "launch a kernel", [&] {
    if (launch.cooperative) {
      return table_.cuLaunchCooperativeKernel(raw(launch.function), launch.grid, 1, 1, launch.block, 1, 1,
                                              launch.shared_bytes, raw(launch.stream), parameters);
    }
    return table_.cuLaunchKernel(raw(launch.function), launch.grid, 1, 1, launch.block, 1, 1, launch.shared_bytes,
                                 raw(launch.stream), parameters, nullptr);
  });
}

Status RealDriver::call_host(int device, Stream stream, void (*function)(void*), void* argument) {
  return call(device, "queue a call of the host", table_.cuLaunchHostFunc, raw(stream), function, argument);
}

Result<Module> RealDriver::load(int device, const KernelImage& image) {
  THESEUS_TRY(check(device));
  THESEUS_TRY(check_image(image));
  CUmodule module = nullptr;
  CUresult answer = kCudaSuccess;
  THESEUS_TRY(call(device, "load a module", [&] {
    answer = table_.cuModuleLoadData(&module, static_cast<const void*>(image.data()));
    return answer == kCudaNoBinaryForGpu || answer == kCudaUnsupportedPtx ? kCudaSuccess : answer;
  }));
  if (answer != kCudaSuccess) {
    const std::string version = std::to_string(table_.version / 1000);
    return table_.error("device " + std::to_string(device) + " does not load a kernel: it was compiled by an NVRTC " +
                            "of another CUDA than the driver's " + version +
                            "; update the driver, or name an NVRTC of CUDA " + version + " in THESEUS_NVRTC",
                        answer);
  }
  return reinterpret_cast<Module>(module);
}

Status RealDriver::unload(int device, Module module) {
  return call(device, "unload a module", table_.cuModuleUnload, raw(module));
}

Result<Function> RealDriver::function(int device, Module module, const std::string& name) {
  CUfunction function = nullptr;
  CUresult answer = kCudaSuccess;
  THESEUS_TRY(call(device, "find a kernel", [&] {
    answer = table_.cuModuleGetFunction(&function, raw(module), name.c_str());
    return answer == kCudaNotFound ? kCudaSuccess : answer;
  }));
  if (answer == kCudaNotFound) return Status::argument("the module has no kernel '" + name + "'");
  return reinterpret_cast<Function>(function);
}

Result<FunctionInfo> RealDriver::function_info(int device, Function function) {
  FunctionInfo info;
  // CUfunction_attribute
  for (const auto& [number, value] :
       {std::pair{0, &info.max_threads}, {1, &info.static_shared_bytes}, {3, &info.local_bytes}, {4, &info.registers}})
    THESEUS_TRY(call(device, "ask for a kernel's needs", table_.cuFuncGetAttribute, value, number, raw(function)));
  return info;
}

Status RealDriver::set_dynamic_shared(int device, Function function, int bytes) {
  constexpr int max_dynamic_shared = 8;
  return call(device, "give a kernel more shared memory", table_.cuFuncSetAttribute, raw(function), max_dynamic_shared,
              bytes);
}

Result<int> RealDriver::occupancy(int device, Function function, int block, size_t shared_bytes) {
  int blocks = 0;
  THESEUS_TRY(call(device, "ask how many TBs fit", table_.cuOccupancyMaxActiveBlocksPerMultiprocessor, &blocks,
                   raw(function), block, shared_bytes));
  return blocks;
}

}  // namespace theseus::cuda
