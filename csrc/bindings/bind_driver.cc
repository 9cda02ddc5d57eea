// _core.Driver: the seam to CUDA (drivers/cuda/api.h), call by call: devices, memory, streams and events. Python's
// device arrays stand on it, and benchmarks/gpu_check.py tries its promises on a real driver.
//
// Addresses and handles are ints. The GIL is released while a call runs.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <string_view>

#include "bindings/device_use.h"
#include "bindings/driver_call.h"
#include "bindings/module.h"

namespace py = pybind11;

namespace theseus::bindings {
namespace {

using cuda::Driver;

py::dict info_of(Driver& driver, int device) {
  const cuda::DeviceInfo info = call([&] { return driver.device_info(device); });
  py::dict row;
  row["ordinal"] = info.ordinal;
  row["name"] = info.name;
  row["sm"] = info.sm;
  row["multiprocessors"] = info.multiprocessors;
  row["memory_bytes"] = info.memory_bytes;
  row["uuid"] = py::bytes(reinterpret_cast<const char*>(info.uuid.data()), info.uuid.size());
  row["pci"] = info.pci;
  row["max_threads"] = info.max_threads;
  row["max_shared_bytes"] = info.max_shared_bytes;
  row["cooperative"] = info.cooperative;
  return row;
}

const char* name_of(cuda::PointerKind kind) {
  switch (kind) {
    case cuda::PointerKind::Unregistered: return "unregistered";
    case cuda::PointerKind::Pinned: return "pinned";
    case cuda::PointerKind::Device: return "device";
    case cuda::PointerKind::Managed: return "managed";
  }
  return "unknown";
}

py::dict pointer_info(Driver& driver, Address pointer) {
  const cuda::PointerInfo info = call([&] { return driver.pointer_info(at(pointer)); });
  py::dict row;
  row["kind"] = name_of(info.kind);
  row["ordinal"] = info.ordinal;
  row["base"] = address_of(info.base);
  row["bytes"] = info.bytes;
  row["exportable"] = info.exportable;
  return row;
}

py::bytes export_memory(Driver& driver, Address pointer) {
  const cuda::IpcHandle handle = call([&] { return driver.export_memory(at(pointer)); });
  return {reinterpret_cast<const char*>(handle.bytes.data()), handle.bytes.size()};
}

Address import_memory(Driver& driver, int device, const py::bytes& bytes) {
  const std::string_view text = bytes;
  cuda::IpcHandle handle;
  if (text.size() != handle.bytes.size()) {
    throw StatusError(Status::argument("import_memory: a handle has " + std::to_string(handle.bytes.size()) +
                                       " bytes, not " + std::to_string(text.size())));
  }
  std::memcpy(handle.bytes.data(), text.data(), text.size());
  return address_of(call([&] { return driver.import_memory(device, handle); }));
}

void bind_devices(py::class_<Driver, std::unique_ptr<Driver, py::nodelete>>& driver) {
  driver.def_property_readonly("emulated", &Driver::emulated)
      .def_property_readonly("device_count", &Driver::device_count)
      .def("device_info", &info_of)
      .def("current_device", [](Driver& d) { return call([&] { return d.current_device(); }); })
      .def("set_current_device", [](Driver& d, int device) { call([&] { return d.set_current_device(device); }); })
      .def("can_access_peer",
           [](Driver& d, int device, int peer) { return call([&] { return d.can_access_peer(device, peer); }); })
      .def("enable_peer", [](Driver& d, int device, int peer) { call([&] { return d.enable_peer(device, peer); }); });
}

void bind_memory_calls(py::class_<Driver, std::unique_ptr<Driver, py::nodelete>>& driver) {
  driver
      .def("allocate", [](Driver& d, int device,
                          size_t bytes) { return address_of(call([&] { return d.allocate(device, bytes); })); })
      .def("release",
           [](Driver& d, int device, Address memory) { call([&] { return d.release(device, at(memory)); }); })
      .def("allocate_pinned",
           [](Driver& d, size_t bytes) { return address_of(call([&] { return d.allocate_pinned(bytes); })); })
      .def("release_pinned", [](Driver& d, Address memory) { call([&] { return d.release_pinned(at(memory)); }); })
      .def("register_host",
           [](Driver& d, Address memory, size_t bytes) { call([&] { return d.register_host(at(memory), bytes); }); })
      .def("unregister_host", [](Driver& d, Address memory) { call([&] { return d.unregister_host(at(memory)); }); })
      .def("device_address",
           [](Driver& d, int device, Address pinned) {
             return address_of(call([&] { return d.device_address(device, at(pinned)); }));
           })
      .def("pointer_info", &pointer_info)
      .def("export_memory", &export_memory)
      .def("import_memory", &import_memory)
      .def("release_import",
           [](Driver& d, int device, Address base) { call([&] { return d.release_import(device, at(base)); }); })
      .def("copy",
           [](Driver& d, int device, Address to, Address from, size_t bytes, Address stream) {
             call([&] { return d.copy(device, at(to), at(from), bytes, stream_at(stream)); });
           })
      .def("fill", [](Driver& d, int device, Address memory, uint8_t value, size_t bytes, Address stream) {
        call([&] { return d.fill(device, at(memory), value, bytes, stream_at(stream)); });
      });
}

void bind_streams(py::class_<Driver, std::unique_ptr<Driver, py::nodelete>>& driver) {
  driver
      .def("create_stream",
           [](Driver& d, int device, bool urgent) {
             const auto priority = urgent ? Driver::Priority::High : Driver::Priority::Low;
             return address_of(call([&] { return d.create_stream(device, priority); }));
           })
      .def("destroy_stream", [](Driver& d, int device,
                                Address stream) { call([&] { return d.destroy_stream(device, stream_at(stream)); }); })
      .def("synchronize_stream", [](Driver& d, int device,
                                    Address stream) { call([&] { return d.synchronize(device, stream_at(stream)); }); })
      .def("query_stream", [](Driver& d, int device,
                              Address stream) { return call([&] { return d.query(device, stream_at(stream)); }); })
      // ("none" | "active" | "invalidated", id)
      .def("capture", [](Driver& d, int device, Address stream) {
        const cuda::Capture capture = call([&] { return d.capture(device, stream_at(stream)); });
        constexpr const char* kStates[] = {"none", "active", "invalidated"};
        return py::make_tuple(kStates[static_cast<int>(capture.state)], capture.id);
      });
}

void bind_events(py::class_<Driver, std::unique_ptr<Driver, py::nodelete>>& driver) {
  driver
      .def("create_event", [](Driver& d, int device,
                              bool timing) { return address_of(call([&] { return d.create_event(device, timing); })); })
      .def("destroy_event",
           [](Driver& d, int device, Address event) { call([&] { return d.destroy_event(device, event_at(event)); }); })
      .def("record", [](Driver& d, int device, Address event,
                        Address stream) { call([&] { return d.record(device, event_at(event), stream_at(stream)); }); })
      .def("wait", [](Driver& d, int device, Address stream,
                      Address event) { call([&] { return d.wait(device, stream_at(stream), event_at(event)); }); })
      .def("synchronize_event",
           [](Driver& d, int device, Address event) { call([&] { return d.synchronize(device, event_at(event)); }); })
      .def("query_event",
           [](Driver& d, int device, Address event) { return call([&] { return d.query(device, event_at(event)); }); })
      .def("elapsed", [](Driver& d, int device, Address from, Address to) {
        return call([&] { return d.elapsed(device, event_at(from), event_at(to)); });
      });
}

}  // namespace

void bind_driver(py::module_& module) {
  // It lives as long as the process.
  py::class_<Driver, std::unique_ptr<Driver, py::nodelete>> driver(module, "Driver");
  bind_devices(driver);
  bind_memory_calls(driver);
  bind_streams(driver);
  bind_events(driver);
  // The one that THESEUS_DEVICE asks for; None on host memory.
  module.def("gpu_driver", &gpu_driver, py::return_value_policy::reference);
}

}  // namespace theseus::bindings
