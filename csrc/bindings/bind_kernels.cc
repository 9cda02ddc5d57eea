// Kernels: their texts, the compiler of GPUs, and the folder of what it made. For tests and benchmarks of what
// compilers make of them.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>

#include "bindings/errors.h"
#include "bindings/module.h"
#include "compiler/kernel_text.h"
#include "drivers/cuda/nvrtc.h"
#include "executor/cuda_kernels.h"
#include "executor/kernel_files.h"
#include "schedule/plan.h"

namespace py = pybind11;

namespace theseus::bindings {
namespace {

PlanKernel kernel_of(const std::string& type, const std::string& op, bool low_latency, bool scales) {
  PlanKernel kernel;
  bool type_known = false, op_known = false;
  for (int i = 0; i < kDataTypes; ++i) {
    if (type != name_of(static_cast<DataType>(i))) continue;
    kernel.type = static_cast<DataType>(i);
    type_known = true;
  }
  for (const RedOp each : {RedOp::Sum, RedOp::Prod, RedOp::Max, RedOp::Min}) {
    if (op != name_of(each)) continue;
    kernel.op = each;
    op_known = true;
  }
  if (!type_known) throw StatusError(Status::argument("kernel: there is no type '" + type + "'"));
  if (!op_known) throw StatusError(Status::argument("kernel: '" + op + "' is none of sum, prod, max, min"));
  kernel.protocol = low_latency ? device::Protocol::LL : device::Protocol::Simple;
  kernel.scales = scales;
  return kernel;
}

std::optional<KernelText> plan_kernel(const std::string& bytes, int rank, const std::string& type,
                                      const std::string& op, bool low_latency, bool scales) {
  const PlanKernel kernel = kernel_of(type, op, low_latency, scales);
  const Plan plan = take(parse_plan_of_rank(bytes, rank));
  const RankPlan& part = plan.rank_plans.front();
  if (instructions_of(part) > kMostGeneratedInstructions) return std::nullopt;
  return plan_text(plan, part, kernel);
}

KernelText interpreting_kernel(const std::string& type, const std::string& op, bool low_latency) {
  const PlanKernel kernel = kernel_of(type, op, low_latency, true);
  return interpreter_text(kernel.type, kernel.op, kernel.protocol);
}

// For any driver: what is compiled here is not loaded.
constexpr int kAnyDriver = 1000000;

cuda::DeviceInfo device_of(int sm) {
  cuda::DeviceInfo device;
  device.name = "sm_" + std::to_string(sm);
  device.sm = sm;
  return device;
}

py::bytes compile_kernel(cuda::NvrtcCompiler& compiler, const KernelText& text, int sm) {
  std::optional<Result<cuda::KernelImage>> image;
  {
    const py::gil_scoped_release released;
    image = compiler.compile(source_of(text), device_of(sm));
  }
  const cuda::KernelImage made = take(std::move(*image));
  return {reinterpret_cast<const char*>(made.data()), made.size()};
}

// A kernel of the same headers that does nothing.
KernelText emptied(const KernelText& text) {
  KernelText empty = text;
  empty.text =
      "#include \"device/primitives.cuh\"\nusing namespace theseus::device;\n"
      "THESEUS_KERNEL(" +
      text.kernel + ", Request, request) {}\n";
  return empty;
}

void bind_texts(py::module_& module) {
  py::class_<KernelText>(module, "KernelText")
      .def_readonly("kernel", &KernelText::kernel)
      .def_readonly("text", &KernelText::text)
      .def("emptied", &emptied)
      .def_property_readonly("headers", [](const KernelText& text) {
        py::dict headers;
        for (const auto& [name, header] : text.headers) headers[py::str(name)] = header;
        return headers;
      });
  module.def("plan_kernel", &plan_kernel, py::arg("plan"), py::arg("rank"), py::arg("type"), py::arg("op"),
             py::arg("low_latency") = false, py::arg("scales") = false);
  module.def("interpreting_kernel", &interpreting_kernel, py::arg("type"), py::arg("op"),
             py::arg("low_latency") = false);
}

void bind_files(py::module_& module) {
  py::class_<KernelFiles>(module, "KernelFiles")
      .def(py::init<std::string>(), py::arg("folder"))
      .def("store", [](const KernelFiles& files, const std::string& key,
                       const std::string& image) { check(files.store(key, image)); })
      .def("load", [](const KernelFiles& files, const std::string& key) -> std::optional<py::bytes> {
        const std::optional<std::string> image = files.load(key);
        if (!image.has_value()) return std::nullopt;
        return py::bytes(*image);
      });
}

}  // namespace

void bind_kernels(py::module_& module) {
  bind_texts(module);
  bind_files(module);
  py::class_<cuda::NvrtcCompiler>(module, "KernelCompiler")
      .def(py::init([] { return take(cuda::NvrtcCompiler::find(kAnyDriver)); }))
      .def_property_readonly("path", &cuda::NvrtcCompiler::path)
      .def_property_readonly("version", &cuda::NvrtcCompiler::version)
      .def("compile", &compile_kernel, py::arg("text"), py::arg("sm"))
      .def("key", [](const cuda::NvrtcCompiler& compiler, const KernelText& text, int sm) {
        return py::bytes(key_of(text, compiler.identity(device_of(sm))));
      });
}

}  // namespace theseus::bindings
