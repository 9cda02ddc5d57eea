#include "bindings/buffer.h"

#include <optional>
#include <unordered_map>
#include <utility>

#include "bindings/dlpack.h"
#include "bindings/element.h"
#include "bindings/errors.h"

namespace py = pybind11;

namespace theseus::bindings {

namespace {

// C order over `dimensions`; dimensions of extent 1 may have any stride, and an empty array is contiguous.
template <class Extent, class Stride>
bool is_contiguous(int dimensions, const Extent* shape, const Stride* strides, int64_t unit) {
  if (strides == nullptr) return true;
  for (int i = 0; i < dimensions; ++i) {
    if (shape[i] == 0) return true;
  }
  int64_t expected = unit;
  for (int i = dimensions - 1; i >= 0; --i) {
    if (shape[i] != 1 && static_cast<int64_t>(strides[i]) != expected) return false;
    expected *= static_cast<int64_t>(shape[i]);
  }
  return true;
}

[[noreturn]] void refuse_layout(const Role& role) {
  refuse(role, "is not C-contiguous; pass a contiguous copy (numpy.ascontiguousarray, Tensor.contiguous)");
}

[[noreturn]] void refuse_type(const Role& role, const std::string& type) {
  refuse(role,
         "has elements of type " + type +
             ", which cannot be sent; NCCL's types can (8, 32, 64-bit integers, float16/32/64, bfloat16, float8), "
             "and bool and complex");
}

[[noreturn]] void refuse_read_only(const Role& role) { refuse(role, "is read-only, and the result goes there"); }

std::string class_name(py::handle object) { return Py_TYPE(object.ptr())->tp_name; }

// The torch.dtype objects live for ever, so their addresses are keys.
std::optional<ElementType> element_of_torch(py::handle dtype) {
  static auto* known = new std::unordered_map<PyObject*, ElementType>;
  if (auto found = known->find(dtype.ptr()); found != known->end()) return found->second;
  std::string name = py::str(dtype);
  constexpr std::string_view kPrefix = "torch.";
  if (name.starts_with(kPrefix)) name.erase(0, kPrefix.size());
  std::optional<ElementType> element = element_of_name(name);
  if (element) known->emplace(dtype.inc_ref().ptr(), *element);
  return element;
}

// Attribute names as Python keeps them, made once: this is on the path of every call on a tensor.
struct TorchNames {
  PyObject* is_cpu = PyUnicode_InternFromString("is_cpu");
  PyObject* is_cuda = PyUnicode_InternFromString("is_cuda");
  PyObject* layout = PyUnicode_InternFromString("layout");
  PyObject* dtype = PyUnicode_InternFromString("dtype");
  PyObject* is_contiguous = PyUnicode_InternFromString("is_contiguous");
  PyObject* is_neg = PyUnicode_InternFromString("is_neg");
  PyObject* is_conj = PyUnicode_InternFromString("is_conj");
  PyObject* data_ptr = PyUnicode_InternFromString("data_ptr");
  PyObject* numel = PyUnicode_InternFromString("numel");
  PyObject* strided = py::object(py::module_::import("torch").attr("strided")).release().ptr();
  PyObject* tensor = py::object(py::module_::import("torch").attr("Tensor")).release().ptr();
};

const TorchNames& torch_names() {
  static const auto* names = new TorchNames;
  return *names;
}

// Never imports torch: an object of a class called so can exist only where torch is loaded.
bool is_torch_tensor(py::handle object) {
  static bool loaded = false;
  if (!loaded) {
    PyObject* modules = PyImport_GetModuleDict();
    PyObject* torch = PyDict_GetItemString(modules, "torch");
    // While torch is still being imported it has no such class.
    loaded = torch != nullptr && PyObject_HasAttrString(torch, "Tensor") && PyObject_HasAttrString(torch, "strided");
    if (!loaded) return false;
  }
  const int is = PyObject_IsInstance(object.ptr(), torch_names().tensor);
  if (is < 0) throw py::error_already_set();
  return is == 1;
}

py::object attribute(py::handle object, PyObject* name) {
  PyObject* value = PyObject_GetAttr(object.ptr(), name);
  if (value == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(value);
}

py::object call(py::handle object, PyObject* method) {
  PyObject* value = PyObject_CallMethodNoArgs(object.ptr(), method);
  if (value == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(value);
}

size_t number(const py::object& value) {
  const size_t result = PyLong_AsSize_t(value.ptr());
  if (result == static_cast<size_t>(-1) && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return result;
}

}  // namespace

void refuse(const Role& role, const std::string& why) {
  throw StatusError(Status::argument(std::string(role.function) + ": " + role.argument + " " + why));
}

Buffer::Buffer(Buffer&& other) noexcept { *this = std::move(other); }

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  release();
  data_ = std::exchange(other.data_, nullptr);
  elements_ = std::exchange(other.elements_, 0);
  element_ = other.element_;
  on_device_ = other.on_device_;
  stream_ = other.stream_;
  view_ = other.view_;
  other.view_.obj = nullptr;
  owner_ = std::move(other.owner_);
  return *this;
}

void Buffer::release() {
  if (view_.obj != nullptr) PyBuffer_Release(&view_);
  view_.obj = nullptr;
  owner_ = py::object();
}

Buffer Buffer::borrow(PyObject* object, const Role& role) {
  Buffer buffer;
  if (PyObject_CheckBuffer(object) && buffer.borrow_protocol(object, role)) return buffer;
  py::handle handle(object);
  if (buffer.borrow_torch(handle, role)) return buffer;
  if (buffer.borrow_array_interface(handle, role)) return buffer;
  if (buffer.borrow_cuda_interface(handle, role)) return buffer;
  if (buffer.borrow_dlpack(handle, role)) return buffer;
  refuse(role, "is a " + class_name(handle) +
                   "; it must be a NumPy array, a torch tensor, or offer DLPack, __array_interface__, "
                   "__cuda_array_interface__ or a buffer");
}

bool Buffer::borrow_protocol(PyObject* object, const Role& role) {
  // Writability is checked by us: asking for it would only give a vaguer message.
  if (PyObject_GetBuffer(object, &view_, PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
    // ml_dtypes' arrays refuse the protocol for want of a format character; the array interface knows them.
    view_.obj = nullptr;
    PyErr_Clear();
    return false;
  }
  if (!PyBuffer_IsContiguous(&view_, 'C')) refuse_layout(role);
  if (role.output && view_.readonly) refuse_read_only(role);
  std::optional<ElementType> element = element_of_format(view_.format, static_cast<size_t>(view_.itemsize));
  if (!element) {
    // Not every array library gives its format a name we know; the array interface may.
    if (py::hasattr(py::handle(object), "__array_interface__")) {
      PyBuffer_Release(&view_);
      view_.obj = nullptr;
      return false;
    }
    refuse_type(role, std::string("'") + view_.format + "'");
  }
  element_ = *element;
  data_ = view_.buf;
  elements_ = view_.itemsize == 0 ? 0 : static_cast<size_t>(view_.len / view_.itemsize);
  return true;
}

bool Buffer::borrow_torch(py::handle object, const Role& role) {
  if (!is_torch_tensor(object)) return false;
  const TorchNames& names = torch_names();
  if (attribute(object, names.is_cpu).ptr() != Py_True) {
    if (attribute(object, names.is_cuda).ptr() != Py_True) {
      refuse(role, "lies on device '" + std::string(py::str(object.attr("device"))) +
                       "'; only host and CUDA memory are supported: pass a CPU or a CUDA tensor");
    }
    on_device_ = true;
  }
  if (attribute(object, names.layout).ptr() != names.strided) {
    refuse(role,
           "has layout " + std::string(py::str(object.attr("layout"))) + "; only dense (strided) tensors can be sent");
  }
  if (call(object, names.is_contiguous).ptr() != Py_True) refuse_layout(role);
  if (call(object, names.is_neg).ptr() == Py_True || call(object, names.is_conj).ptr() == Py_True) {
    refuse(role, "is a lazy negation or conjugate; call resolve_neg() or resolve_conj() first");
  }
  py::object dtype = attribute(object, names.dtype);
  std::optional<ElementType> element = element_of_torch(dtype);
  if (!element) refuse_type(role, py::str(dtype));
  element_ = *element;
  data_ = reinterpret_cast<void*>(number(call(object, names.data_ptr)));
  elements_ = number(call(object, names.numel));
  owner_ = py::reinterpret_borrow<py::object>(object);
  return true;
}

bool Buffer::borrow_array_interface(py::handle object, const Role& role) {
  if (!py::hasattr(object, "__array_interface__")) return false;
  take_interface(object, object.attr("__array_interface__"), "__array_interface__", role);
  return true;
}

bool Buffer::borrow_cuda_interface(py::handle object, const Role& role) {
  if (!py::hasattr(object, "__cuda_array_interface__")) return false;
  const py::dict interface = object.attr("__cuda_array_interface__");
  if (interface.contains("mask") && !interface["mask"].is_none()) {
    refuse(role, "is a masked array, whose elements are not all there");
  }
  take_interface(object, interface, "__cuda_array_interface__", role);
  on_device_ = true;
  if (interface.contains("stream") && !interface["stream"].is_none()) {
    stream_ = interface["stream"].cast<uintptr_t>();
  }
  return true;
}

void Buffer::take_interface(py::handle object, const py::dict& interface, const char* name, const Role& role) {
  std::string typestr = py::str(interface["typestr"]);
  std::optional<ElementType> element = element_of_typestr(typestr);
  // ml_dtypes' types are opaque bytes there ("<V2"); their dtype has the name.
  std::string type = typestr;
  if (!element && py::hasattr(object, "dtype")) {
    type = py::str(py::getattr(object.attr("dtype"), "name", py::str(typestr)));
    if (typestr[0] != '>') element = element_of_name(type);
  }
  if (!element) refuse_type(role, "'" + type + "'");
  const size_t item_size = size_of(element->type) * element->parts;
  std::vector<int64_t> shape;
  for (py::handle extent : interface["shape"]) shape.push_back(extent.cast<int64_t>());
  if (interface.contains("strides") && !interface["strides"].is_none()) {
    std::vector<int64_t> strides;
    for (py::handle stride : interface["strides"]) strides.push_back(stride.cast<int64_t>());
    if (strides.size() != shape.size() ||
        !is_contiguous(static_cast<int>(shape.size()), shape.data(), strides.data(), static_cast<int64_t>(item_size))) {
      refuse_layout(role);
    }
  }
  if (!interface.contains("data") || !py::isinstance<py::tuple>(interface["data"])) {
    refuse(role, std::string("has an ") + name + " without an address");
  }
  py::tuple data = interface["data"];
  if (role.output && data[1].cast<bool>()) refuse_read_only(role);
  element_ = *element;
  elements_ = 1;
  for (int64_t extent : shape) elements_ *= static_cast<size_t>(extent);
  data_ = reinterpret_cast<void*>(data[0].cast<uintptr_t>());
  owner_ = py::reinterpret_borrow<py::object>(object);
}

bool Buffer::borrow_dlpack(py::handle object, const Role& role) {
  if (!py::hasattr(object, "__dlpack__")) return false;
  if (py::hasattr(object, "__dlpack_device__")) {
    int kind = py::tuple(object.attr("__dlpack_device__")())[0].cast<int>();
    if (kind != dlpack::kCpu && kind != dlpack::kCudaHost && kind != dlpack::kCudaManaged) {
      refuse(role, "lies on DLPack device " + std::to_string(kind) +
                       "; by DLPack only host memory is taken, a GPU's by __cuda_array_interface__");
    }
  }
  py::object capsule;
  try {
    capsule = object.attr("__dlpack__")(py::arg("max_version") = py::make_tuple(1, 0));
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError)) throw;
    capsule = object.attr("__dlpack__")();  // written before DLPack had versions
  }
  const dlpack::Tensor* tensor = nullptr;
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    auto* managed = static_cast<dlpack::VersionedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (managed->major != 1)
      refuse(role, "speaks DLPack " + std::to_string(managed->major) + "; version 1 is supported");
    if (role.output && (managed->flags & dlpack::kReadOnly) != 0) refuse_read_only(role);
    tensor = &managed->tensor;
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    tensor = &static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))->tensor;
  } else {
    refuse(role, "returned no DLPack capsule");
  }
  std::optional<ElementType> element = element_of_dlpack(tensor->dtype.code, tensor->dtype.bits, tensor->dtype.lanes);
  if (!element) refuse_type(role, "DLPack code " + std::to_string(tensor->dtype.code));
  if (!is_contiguous(tensor->dimensions, tensor->shape, tensor->strides, 1)) refuse_layout(role);
  element_ = *element;
  elements_ = 1;
  for (int i = 0; i < tensor->dimensions; ++i) elements_ *= static_cast<size_t>(tensor->shape[i]);
  data_ = static_cast<char*>(tensor->data) + tensor->byte_offset;
  // The capsule is left unconsumed: it frees the tensor when we let go of it.
  owner_ = capsule;
  return true;
}

}  // namespace theseus::bindings
