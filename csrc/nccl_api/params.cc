// Settings by name: NCCL's parameter functions over the table in base/env.def.
//
// Values are kept as text and read as what the caller asks for, where it fits; aliases are not keys.
#include <charconv>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/env.h"
#include "base/log.h"
#include "nccl_api/api.h"
#include "nccl_api/errors.h"

namespace theseus::nccl_api {
namespace {

// A handle is the address of one of these; names never change, so the table is made once and kept.
struct Parameter {
  std::string name;
  size_t index;  // in describe_settings()
};

const std::vector<Parameter>& parameters() {
  static const auto* const all = [] {
    auto* made = new std::vector<Parameter>;
    for (const SettingDescription& setting : describe_settings()) made->push_back({setting.name, made->size()});
    return made;
  }();
  return *all;
}

const Parameter* parameter_named(const char* key) {
  for (const Parameter& parameter : parameters()) {
    if (parameter.name == key) return &parameter;
  }
  return nullptr;
}

// Null for anything that ncclParamBind did not give out.
const Parameter* parameter_of(ncclParamHandle_t handle) {
  const std::vector<Parameter>& all = parameters();
  const uintptr_t offset = reinterpret_cast<uintptr_t>(handle) - reinterpret_cast<uintptr_t>(all.data());
  if (handle == nullptr || offset >= all.size() * sizeof(Parameter) || offset % sizeof(Parameter) != 0) return nullptr;
  return &all[offset / sizeof(Parameter)];
}

std::string value_of(const Parameter& parameter) { return describe_settings()[parameter.index].value; }

// The strings handed out stay valid until the same thread asks again.
thread_local std::string string_by_handle;
thread_local std::string string_by_key;
thread_local std::vector<const char*> keys;

template <class Integer>
ncclResult_t read_integer(const char* function, ncclParamHandle_t handle, Integer* out) {
  const Parameter* parameter = parameter_of(handle);
  if (parameter == nullptr) return invalid_argument(function, "h is not a handle of ncclParamBind");
  if (out == nullptr) return invalid_argument(function, "out is NULL");
  const std::string text = value_of(*parameter);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    const Result<int64_t> size = parse_size(text);  // 64K, 0x10
    if (!size.ok()) return invalid_argument(function, parameter->name + "=\"" + text + "\" is not an integer");
    value = size.value();
  }
  if (!std::in_range<Integer>(value)) {
    return invalid_argument(function, parameter->name + "=" + text + " does not fit the type asked for");
  }
  *out = static_cast<Integer>(value);
  return ncclSuccess;
}

}  // namespace

ncclResult_t ncclParamBind(ncclParamHandle_t* out, const char* key) noexcept {
  constexpr const char* kFunction = "ncclParamBind";
  if (out == nullptr) return invalid_argument(kFunction, "out is NULL");
  *out = nullptr;
  if (key == nullptr) return invalid_argument(kFunction, "key is NULL");
  const Parameter* parameter = parameter_named(key);
  if (parameter == nullptr) return invalid_argument(kFunction, std::string(key) + " is not a setting");
  *out = reinterpret_cast<ncclParamHandle_t>(const_cast<Parameter*>(parameter));
  return ncclSuccess;
}

ncclResult_t ncclParamGetI8(ncclParamHandle_t h, int8_t* out) noexcept {
  return read_integer("ncclParamGetI8", h, out);
}
ncclResult_t ncclParamGetI16(ncclParamHandle_t h, int16_t* out) noexcept {
  return read_integer("ncclParamGetI16", h, out);
}
ncclResult_t ncclParamGetI32(ncclParamHandle_t h, int32_t* out) noexcept {
  return read_integer("ncclParamGetI32", h, out);
}
ncclResult_t ncclParamGetI64(ncclParamHandle_t h, int64_t* out) noexcept {
  return read_integer("ncclParamGetI64", h, out);
}
ncclResult_t ncclParamGetU8(ncclParamHandle_t h, uint8_t* out) noexcept {
  return read_integer("ncclParamGetU8", h, out);
}
ncclResult_t ncclParamGetU16(ncclParamHandle_t h, uint16_t* out) noexcept {
  return read_integer("ncclParamGetU16", h, out);
}
ncclResult_t ncclParamGetU32(ncclParamHandle_t h, uint32_t* out) noexcept {
  return read_integer("ncclParamGetU32", h, out);
}
ncclResult_t ncclParamGetU64(ncclParamHandle_t h, uint64_t* out) noexcept {
  return read_integer("ncclParamGetU64", h, out);
}

ncclResult_t ncclParamGetStr(ncclParamHandle_t h, const char** out) noexcept {
  constexpr const char* kFunction = "ncclParamGetStr";
  if (out == nullptr) return invalid_argument(kFunction, "out is NULL");
  const Parameter* parameter = parameter_of(h);
  if (parameter == nullptr) return invalid_argument(kFunction, "h is not a handle of ncclParamBind");
  string_by_handle = value_of(*parameter);
  *out = string_by_handle.c_str();
  return ncclSuccess;
}

// The bytes of the value's text, without an end mark; *len receives their number.
ncclResult_t ncclParamGet(ncclParamHandle_t h, void* out, int maxLen, int* len) noexcept {
  constexpr const char* kFunction = "ncclParamGet";
  const Parameter* parameter = parameter_of(h);
  if (parameter == nullptr) return invalid_argument(kFunction, "h is not a handle of ncclParamBind");
  if (out == nullptr || len == nullptr) return invalid_argument(kFunction, "out or len is NULL");
  const std::string text = value_of(*parameter);
  if (maxLen < 0 || text.size() > static_cast<size_t>(maxLen)) {
    return invalid_argument(kFunction, parameter->name + " has " + std::to_string(text.size()) + " bytes, maxLen is " +
                                           std::to_string(maxLen));
  }
  std::memcpy(out, text.data(), text.size());
  *len = static_cast<int>(text.size());
  return ncclSuccess;
}

ncclResult_t ncclParamGetParameter(const char* key, const char** value, int* valueLen) noexcept {
  constexpr const char* kFunction = "ncclParamGetParameter";
  if (key == nullptr || value == nullptr) return invalid_argument(kFunction, "key or value is NULL");
  *value = nullptr;
  if (valueLen != nullptr) *valueLen = 0;
  const Parameter* parameter = parameter_named(key);
  if (parameter == nullptr) return invalid_argument(kFunction, std::string(key) + " is not a setting");
  string_by_key = value_of(*parameter);
  *value = string_by_key.c_str();
  if (valueLen != nullptr) *valueLen = static_cast<int>(string_by_key.size());
  return ncclSuccess;
}

ncclResult_t ncclParamGetAllParameterKeys(const char*** table, int* tableLen) noexcept {
  if (table == nullptr || tableLen == nullptr) {
    return invalid_argument("ncclParamGetAllParameterKeys", "table or tableLen is NULL");
  }
  keys.clear();
  for (const Parameter& parameter : parameters()) keys.push_back(parameter.name.c_str());
  *table = keys.data();
  *tableLen = static_cast<int>(keys.size());
  return ncclSuccess;
}

void ncclParamDumpAll() noexcept {
  for (const SettingDescription& setting : describe_settings()) {
    THESEUS_INFO(kLogEnv, setting.name + "=" + setting.value + " (" + setting.source + ")");
  }
}

}  // namespace theseus::nccl_api
