// The rest of _core.Driver: modules, launches, host calls and graphs; the library's own kernels; the real NCCL.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/driver_call.h"
#include "bindings/module.h"
#include "drivers/cuda/emu.h"
#include "drivers/nccl/library.h"
#include "executor/cuda_kernels.h"

namespace py = pybind11;

namespace theseus::bindings {
namespace {

using cuda::Driver;

cuda::Module module_at(Address handle) { return reinterpret_cast<cuda::Module>(handle); }
cuda::Function function_at(Address handle) { return reinterpret_cast<cuda::Function>(handle); }

py::bytes compile(Driver& driver, int device, const std::string& name, const std::string& text,
                  const std::map<std::string, std::string>& headers, const std::vector<std::string>& options) {
  cuda::KernelSource source{name, text, {}, options};
  for (const auto& [header, content] : headers) source.headers.push_back({header, content});
  const cuda::KernelImage image = call([&]() -> Result<cuda::KernelImage> {
    Result<cuda::KernelCompiler*> compiler = driver.compiler();
    if (!compiler.ok()) return compiler.status();
    const Result<cuda::DeviceInfo> info = driver.device_info(device);
    if (!info.ok()) return info.status();
    return (*compiler)->compile(source, *info);
  });
  return {reinterpret_cast<const char*>(image.data()), image.size()};
}

// Compiler, version and flags, as the keys of the kernel cache have them.
std::string compiler_identity(Driver& driver, int device) {
  return call([&]() -> Result<std::string> {
    Result<cuda::KernelCompiler*> compiler = driver.compiler();
    if (!compiler.ok()) return compiler.status();
    const Result<cuda::DeviceInfo> info = driver.device_info(device);
    if (!info.ok()) return info.status();
    return (*compiler)->identity(*info);
  });
}

void launch(Driver& driver, int device, Address function, uint32_t grid, uint32_t block, uint32_t shared_bytes,
            Address stream, const py::bytes& parameters, bool cooperative) {
  const std::string_view bytes = parameters;
  cuda::Launch launch;
  launch.function = function_at(function);
  launch.grid = grid;
  launch.block = block;
  launch.shared_bytes = shared_bytes;
  launch.stream = stream_at(stream);
  launch.parameters = bytes.data();
  launch.parameter_bytes = bytes.size();
  launch.cooperative = cooperative;
  call([&] { return driver.launch(device, launch); });
}

// Runs and forgets a Python function on one of the driver's threads.
void call_python(void* argument) {
  const py::gil_scoped_acquire acquire;
  const std::unique_ptr<py::function> function(static_cast<py::function*>(argument));
  try {
    (*function)();
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("theseus_py._core.Driver.call_host");
  }
}

void call_host(Driver& driver, int device, Address stream, const py::function& function) {
  auto argument = std::make_unique<py::function>(function);
  call([&] { return driver.call_host(device, stream_at(stream), &call_python, argument.get()); });
  (void)argument.release();  // call_python() has it now
}

py::dict function_info(Driver& driver, int device, Address function) {
  const cuda::FunctionInfo info = call([&] { return driver.function_info(device, function_at(function)); });
  py::dict row;
  row["registers"] = info.registers;
  row["local_bytes"] = info.local_bytes;
  row["static_shared_bytes"] = info.static_shared_bytes;
  row["max_threads"] = info.max_threads;
  return row;
}

// Users make graphs with CUDA's own calls; the emulator has no others than these.
cuda::Emulator& emulator_of(Driver& driver) {
  if (!driver.emulated()) throw StatusError(Status::usage("graphs of a real driver are made by CUDA's own calls"));
  return static_cast<cuda::Emulator&>(driver);
}

struct Graph {
  std::shared_ptr<cuda::EmuGraph> graph;
};

CudaKernels& kernels_of(Driver& driver, int device) {
  return CudaKernels::of(driver, call([&] { return driver.device_info(device); }));
}

using DriverClass = py::class_<Driver, std::unique_ptr<Driver, py::nodelete>>;

void bind_modules(DriverClass& driver) {
  driver.def("compile", &compile)
      .def("compiler_identity", &compiler_identity)
      .def("load",
           [](Driver& d, int device, const py::bytes& image) {
             const std::string_view bytes = image;
             const cuda::KernelImage copy(bytes.begin(), bytes.end());
             return address_of(call([&] { return d.load(device, copy); }));
           })
      .def("unload",
           [](Driver& d, int device, Address module) { call([&] { return d.unload(device, module_at(module)); }); })
      .def("function",
           [](Driver& d, int device, Address module, const std::string& name) {
             return address_of(call([&] { return d.function(device, module_at(module), name); }));
           })
      .def("function_info", &function_info)
      .def("set_dynamic_shared",
           [](Driver& d, int device, Address function, int bytes) {
             call([&] { return d.set_dynamic_shared(device, function_at(function), bytes); });
           })
      .def("occupancy",
           [](Driver& d, int device, Address function, int block, size_t shared_bytes) {
             return call([&] { return d.occupancy(device, function_at(function), block, shared_bytes); });
           })
      .def("launch", &launch)
      .def("call_host", &call_host);
}

void bind_graphs(DriverClass& driver) {
  driver
      .def("begin_capture",
           [](Driver& d, int device, Address stream) {
             cuda::Emulator& emulator = emulator_of(d);
             call([&] { return emulator.begin_capture(device, stream_at(stream)); });
           })
      .def("end_capture",
           [](Driver& d, int device, Address stream) {
             cuda::Emulator& emulator = emulator_of(d);
             return Graph{call([&] { return emulator.end_capture(device, stream_at(stream)); })};
           })
      .def("replay", [](Driver& d, int device, const Graph& graph, Address stream) {
        cuda::Emulator& emulator = emulator_of(d);
        call([&] { return emulator.replay(device, graph.graph, stream_at(stream)); });
      });
}

// Waits until no kernel of this device is left to make; those made so far.
py::dict settle_kernels(Driver& driver, int device) {
  CudaKernels& kernels = kernels_of(driver, device);
  {
    py::gil_scoped_release release;
    kernels.settle();
  }
  py::dict made;
  made["generated"] = kernels.generated();
  made["compiled"] = kernels.compiled();
  return made;
}

py::tuple find_nccl() {
  const nccl::Library library = call([] { return nccl::Library::find(); });
  return py::make_tuple(library.path(), nccl::version_text(library.version()));
}

}  // namespace

void bind_gpu_kernels(py::module_& module) {
  py::class_<Graph>(module, "Graph");
  auto driver = py::reinterpret_borrow<DriverClass>(module.attr("Driver"));
  bind_modules(driver);
  bind_graphs(driver);
  module.def("settle_kernels", &settle_kernels);
  module.def("find_nccl", &find_nccl);
}

}  // namespace theseus::bindings
