// The emulator's streams, events, modules, and the work that goes on streams.
#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "base/fork.h"
#include "drivers/cuda/emu.h"
#include "drivers/cuda/emu_block.h"

namespace theseus::cuda {
namespace {

Status cuda_error(std::string message) { return {Code::UnhandledCudaError, std::move(message)}; }

struct Parameters {
  alignas(64) unsigned char bytes[kMaxParameterBytes];
};

}  // namespace

std::shared_ptr<EmuStream> Emulator::new_stream(int device, bool blocking) {
  auto stream = std::make_shared<EmuStream>(device, blocking, [this, device] {
    const auto delay = faults_.delay(device);
    if (delay.count() > 0) std::this_thread::sleep_for(delay);
  });
  stream->start(threads_);
  return stream;
}

Result<std::shared_ptr<EmuStream>> Emulator::find(int device, Stream stream) {
  THESEUS_TRY(check(device));
  std::lock_guard lock(mutex_);
  if (stream == nullptr || stream == legacy_stream()) return null_streams_[device];
  if (stream == per_thread_stream()) return stream_of_thread(device);
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return Status::argument("not a stream of the emulator, or destroyed before");
  if (found->second->device() != device) {
    return Status::argument("the stream belongs to device " + std::to_string(found->second->device()) + ", not to " +
                            std::to_string(device));
  }
  return found->second;
}

// The caller holds the lock.
std::shared_ptr<EmuStream> Emulator::stream_of_thread(int device) {
  std::shared_ptr<EmuStream>& stream = thread_streams_[{std::this_thread::get_id(), device}];
  if (stream == nullptr) stream = new_stream(device, /*blocking=*/true);
  return stream;
}

Result<std::shared_ptr<Emulator::TimedEvent>> Emulator::find(Event event) {
  THESEUS_TRY(check_not_forked());
  std::lock_guard lock(mutex_);
  const auto found = events_.find(event);
  if (found == events_.end()) return Status::argument("not an event of the emulator, or destroyed before");
  return found->second;
}

std::vector<std::shared_ptr<EmuStream>> Emulator::streams_of(int device) {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<EmuStream>> result{null_streams_[device]};
  for (const auto& [handle, stream] : streams_)
    if (stream->device() == device) result.push_back(stream);
  for (const auto& [thread, stream] : thread_streams_)
    if (stream->device() == device) result.push_back(stream);
  return result;
}

Status Emulator::submit(const std::shared_ptr<EmuStream>& on, EmuWork work) {
  const std::shared_ptr<EmuStream>& legacy = null_streams_[static_cast<size_t>(on->device())];
  const auto after = [&on](const std::shared_ptr<EmuStream>& other) {
    if (const uint64_t mark = other->mark(); mark > 0) on->submit([other, mark] { other->wait_for(mark); });
  };
  if (on == legacy) {
    for (const auto& stream : streams_of(on->device())) {
      if (!stream->blocking()) continue;
      THESEUS_TRY(stream->refuse_capture_of("make the default stream wait for"));
      after(stream);
    }
  } else if (on->blocking() && on->graph() == nullptr) {
    after(legacy);
  }
  on->submit(std::move(work));
  return {};
}

// --- streams

Result<Stream> Emulator::create_stream(int device, Priority) { return add_stream(device, /*blocking=*/false); }

Result<Stream> Emulator::create_blocking_stream(int device) { return add_stream(device, /*blocking=*/true); }

Result<Stream> Emulator::add_stream(int device, bool blocking) {
  THESEUS_TRY(check(device));
  std::shared_ptr<EmuStream> stream = new_stream(device, blocking);
  const auto handle = reinterpret_cast<Stream>(stream.get());
  std::lock_guard lock(mutex_);
  streams_.emplace(handle, std::move(stream));
  return handle;
}

Status Emulator::destroy_stream(int device, Stream stream) {
  if (stream == nullptr || stream == legacy_stream() || stream == per_thread_stream())
    return Status::argument("a default stream cannot be destroyed");
  Result<std::shared_ptr<EmuStream>> found = find(device, stream);
  if (!found) return found.status();
  (*found)->close();
  std::lock_guard lock(mutex_);
  streams_.erase(stream);
  std::erase_if(closing_, [](const auto& other) { return other.expired(); });
  closing_.push_back(*found);
  return {};
}

Status Emulator::finish_closed(int device) {
  std::vector<std::shared_ptr<EmuStream>> busy;
  {
    std::lock_guard lock(mutex_);
    for (const auto& stream : closing_)
      if (auto alive = stream.lock(); alive != nullptr && alive->device() == device) busy.push_back(std::move(alive));
  }
  for (const auto& stream : busy)
    if (stream->graph() == nullptr) THESEUS_TRY(stream->synchronize());
  return {};
}

Status Emulator::synchronize(int device, Stream stream) {
  Result<std::shared_ptr<EmuStream>> found = find(device, stream);
  if (!found) return found.status();
  THESEUS_TRY((*found)->synchronize());
  return check(device);  // a kernel may have crashed meanwhile
}

Result<bool> Emulator::query(int device, Stream stream) {
  Result<std::shared_ptr<EmuStream>> found = find(device, stream);
  if (!found) return found.status();
  return (*found)->query();
}

Result<Capture> Emulator::capture(int device, Stream stream) {
  Result<std::shared_ptr<EmuStream>> found = find(device, stream);
  if (!found) return found.status();
  const std::shared_ptr<EmuGraph> graph = (*found)->graph();
  if (graph == nullptr) return Capture{};
  std::lock_guard lock(graph->mutex);
  return Capture{graph->valid ? Capture::State::Active : Capture::State::Invalidated, graph->id};
}

Status Emulator::begin_capture(int device, Stream stream) {
  Result<std::shared_ptr<EmuStream>> found = find(device, stream);
  if (!found) return found.status();
  auto graph = std::make_shared<EmuGraph>();
  graph->id = next_capture_.fetch_add(1);
  return (*found)->begin_capture(std::move(graph));
}

Result<std::shared_ptr<EmuGraph>> Emulator::end_capture(int device, Stream stream) {
  Result<std::shared_ptr<EmuStream>> found = find(device, stream);
  if (!found) return found.status();
  const std::shared_ptr<EmuGraph> graph = (*found)->graph();
  if (graph == nullptr) return Status::usage("the stream is not being captured");
  for (int each = 0; each < options_.devices; ++each)
    for (const auto& member : streams_of(each))
      if (member->graph() == graph) member->leave_capture();
  if (!graph->valid) return Status::usage("the capture is invalid: one of its streams was waited for, or queried");
  return graph;
}

Status Emulator::replay(int device, const std::shared_ptr<EmuGraph>& graph, Stream stream) {
  Result<std::shared_ptr<EmuStream>> found = find(device, stream);
  if (!found) return found.status();
  return submit(*found, [graph] {
    for (const EmuWork& work : graph->work) work();
  });
}

// --- events

Result<Event> Emulator::create_event(int device, bool timing) {
  THESEUS_TRY(check(device));
  auto event = std::make_shared<TimedEvent>();
  event->device = device;
  event->timing = timing;
  const auto handle = reinterpret_cast<Event>(event.get());
  std::lock_guard lock(mutex_);
  events_.emplace(handle, std::move(event));
  return handle;
}

Status Emulator::destroy_event(int device, Event event) {
  THESEUS_TRY(check(device));
  std::lock_guard lock(mutex_);
  if (events_.erase(event) == 0) return Status::argument("not an event of the emulator, or destroyed before");
  return {};
}

Status Emulator::record(int device, Event event, Stream stream) {
  Result<std::shared_ptr<TimedEvent>> found = find(event);
  if (!found) return found.status();
  Result<std::shared_ptr<EmuStream>> on = find(device, stream);
  if (!on) return on.status();
  if ((*found)->device != device) {
    return Status::argument("the event belongs to device " + std::to_string((*found)->device) + ", the stream to " +
                            std::to_string(device));
  }
  const uint64_t record = (*found)->event.record((*on)->graph());
  return submit(*on, [event = *found, record] { event->event.reach(record); });
}

Status Emulator::wait(int device, Stream stream, Event event) {
  Result<std::shared_ptr<TimedEvent>> found = find(event);
  if (!found) return found.status();
  Result<std::shared_ptr<EmuStream>> on = find(device, stream);
  if (!on) return on.status();
  const EmuEvent::Last last = (*found)->event.last();
  if (last.graph != nullptr) return (*on)->begin_capture(last.graph);  // its order in the graph is the dependency
  if (last.captured) return Status::usage("cannot wait for an event that was recorded under a capture that is over");
  if (last.record == 0) return {};
  if ((*on)->graph() != nullptr)
    return Status::usage("a captured stream cannot wait for an event that was recorded outside of the capture");
  return submit(*on, [event = *found, record = last.record] { event->event.wait_for(record); });
}

Status Emulator::synchronize(int device, Event event) {
  THESEUS_TRY(check(device));
  Result<std::shared_ptr<TimedEvent>> found = find(event);
  if (!found) return found.status();
  const EmuEvent::Last last = (*found)->event.last();
  if (last.captured) return Status::usage("cannot wait for an event that was recorded under capture");
  (*found)->event.wait_for(last.record);
  return check(device);
}

Result<bool> Emulator::query(int device, Event event) {
  THESEUS_TRY(check(device));
  Result<std::shared_ptr<TimedEvent>> found = find(event);
  if (!found) return found.status();
  const EmuEvent::Last last = (*found)->event.last();
  if (last.captured) return Status::usage("cannot query an event that was recorded under capture");
  return last.reached;
}

Result<float> Emulator::elapsed(int device, Event from, Event to) {
  THESEUS_TRY(check(device));
  Result<std::shared_ptr<TimedEvent>> first = find(from);
  if (!first) return first.status();
  Result<std::shared_ptr<TimedEvent>> second = find(to);
  if (!second) return second.status();
  const EmuEvent::Last begin = (*first)->event.last();
  const EmuEvent::Last end = (*second)->event.last();
  if (!(*first)->timing || !(*second)->timing) return Status::usage("an event without timing has no time");
  if (begin.record == 0 || end.record == 0 || !begin.reached || !end.reached)
    return Status::usage("an event that was not recorded, or not reached yet, has no time");
  return static_cast<float>(static_cast<double>(end.reached_ns) - static_cast<double>(begin.reached_ns)) / 1e6F;
}

// --- work

Status Emulator::copy(int device, void* to, const void* from, size_t bytes, Stream stream) {
  Result<std::shared_ptr<EmuStream>> on = find(device, stream);
  if (!on) return on.status();
  THESEUS_TRY(memory_.check_range(to, bytes));
  THESEUS_TRY(memory_.check_range(from, bytes));
  THESEUS_TRY(submit(*on, [to, from, bytes] { std::memmove(to, from, bytes); }));
  const bool pageable =
      memory_.find(to).kind == PointerKind::Unregistered || memory_.find(from).kind == PointerKind::Unregistered;
  // The caller may free memory that is not pinned as soon as this returns.
  return pageable && (*on)->graph() == nullptr ? (*on)->synchronize() : Status();
}

Status Emulator::fill(int device, void* memory, uint8_t value, size_t bytes, Stream stream) {
  Result<std::shared_ptr<EmuStream>> on = find(device, stream);
  if (!on) return on.status();
  if (memory_.find(memory).kind == PointerKind::Unregistered)
    return Status::argument("cannot fill ordinary host memory on a device");
  THESEUS_TRY(memory_.check_range(memory, bytes));
  return submit(*on, [memory, value, bytes] { std::memset(memory, value, bytes); });
}

Status Emulator::call_host(int device, Stream stream, void (*call)(void*), void* argument) {
  Result<std::shared_ptr<EmuStream>> on = find(device, stream);
  if (!on) return on.status();
  return submit(*on, [call, argument] { call(argument); });
}

Status Emulator::check_launch(const EmuFunction& function, const Launch& launch) const {
  const std::string name = "cannot launch kernel '" + function.name + "': ";
  if (launch.grid == 0 || launch.block == 0) return Status::argument(name + "its grid is empty");
  if (launch.block > static_cast<uint32_t>(options_.max_threads)) {
    return Status::argument(name + std::to_string(launch.block) + " threads a TB, the device has " +
                            std::to_string(options_.max_threads) + " (THESEUS_EMU_THREADS)");
  }
  if (launch.shared_bytes > 1 << 16) return Status::argument(name + "too much shared memory");
  if (launch.parameter_bytes != function.parameter_bytes || launch.parameter_bytes > kMaxParameterBytes) {
    return Status::argument(name + std::to_string(launch.parameter_bytes) + " bytes of parameters, it takes " +
                            std::to_string(function.parameter_bytes));
  }
  return {};
}

Status Emulator::launch(int device, const Launch& launch) {
  Result<std::shared_ptr<EmuStream>> on = find(device, launch.stream);
  if (!on) return on.status();
  Result<std::shared_ptr<const EmuFunction>> found = find(device, launch.function);
  if (!found) return found.status();
  THESEUS_TRY(check_launch(**found, launch));
  if (faults_.takes_launch()) return cuda_error("the launch of kernel '" + (*found)->name + "' failed");
  if (faults_.takes_crash(device)) {
    return submit(*on, [this, device] { crashed_[device].store(true, std::memory_order_release); });
  }
  auto parameters = std::make_shared<Parameters>();
  std::memcpy(parameters->bytes, launch.parameters, launch.parameter_bytes);
  return submit(*on, [this, device, function = *found, parameters, launch] {
    EmuRoom& room = rooms_[static_cast<size_t>(device)];
    if (launch.cooperative) room.enter(launch.grid);
    run_grid(threads_, {function->entry, parameters->bytes, launch.grid, launch.block, launch.shared_bytes});
    if (launch.cooperative) room.leave(launch.grid);
  });
}

// --- modules

Result<Module> Emulator::load(int device, const KernelImage& image) {
  THESEUS_TRY(check(device));
  Result<std::shared_ptr<EmuModule>> module = EmuModule::load(device, image);
  if (!module) return module.status();
  const auto handle = reinterpret_cast<Module>(module->get());
  std::lock_guard lock(mutex_);
  modules_.emplace(handle, std::move(*module));
  return handle;
}

Status Emulator::unload(int device, Module module) {
  THESEUS_TRY(check(device));
  std::lock_guard lock(mutex_);
  const auto found = modules_.find(module);
  if (found == modules_.end()) return Status::argument("not a module of the emulator, or unloaded before");
  std::erase_if(functions_, [&](const auto& entry) { return entry.second->module == found->second; });
  modules_.erase(found);
  return {};
}

Result<Function> Emulator::function(int device, Module module, const std::string& name) {
  THESEUS_TRY(check(device));
  std::lock_guard lock(mutex_);
  const auto loaded = modules_.find(module);
  if (loaded == modules_.end()) return Status::argument("not a module of the emulator, or unloaded before");
  for (const auto& [handle, known] : functions_)
    if (known->module == loaded->second && known->name == name) return handle;
  Result<EmuFunction> found = EmuModule::find(loaded->second, name);
  if (!found) return found.status();
  auto function = std::make_shared<const EmuFunction>(std::move(*found));
  const auto handle = reinterpret_cast<Function>(const_cast<EmuFunction*>(function.get()));
  functions_.emplace(handle, std::move(function));
  return handle;
}

Result<std::shared_ptr<const EmuFunction>> Emulator::find(int device, Function function) {
  THESEUS_TRY(check(device));
  std::lock_guard lock(mutex_);
  const auto found = functions_.find(function);
  if (found == functions_.end()) return Status::argument("not a function of the emulator, or its module was unloaded");
  if (found->second->device != device) {
    return Status::argument("kernel '" + found->second->name + "' is loaded on device " +
                            std::to_string(found->second->device) + ", not on " + std::to_string(device));
  }
  return found->second;
}

Result<FunctionInfo> Emulator::function_info(int device, Function function) {
  if (Result<std::shared_ptr<const EmuFunction>> found = find(device, function); !found) return found.status();
  return FunctionInfo{0, 0, 0, options_.max_threads};
}

Status Emulator::set_dynamic_shared(int device, Function function, int bytes) {
  if (Result<std::shared_ptr<const EmuFunction>> found = find(device, function); !found) return found.status();
  if (bytes < 0 || bytes > 1 << 16)
    return Status::argument("a TB cannot have " + std::to_string(bytes) + " bytes of shared memory");
  return {};
}

Result<int> Emulator::occupancy(int device, Function function, int block, size_t shared_bytes) {
  if (Result<std::shared_ptr<const EmuFunction>> found = find(device, function); !found) return found.status();
  if (block < 1 || block > options_.max_threads || shared_bytes > 1 << 16) return 0;
  return 2;
}

}  // namespace theseus::cuda
