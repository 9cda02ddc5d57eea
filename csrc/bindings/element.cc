#include "bindings/element.h"

#include <array>
#include <bit>
#include <charconv>

namespace theseus::bindings {

static_assert(std::endian::native == std::endian::little, "byte orders other than '<' and native are refused below");

namespace {

std::optional<ElementType> integer(bool is_signed, size_t bytes) {
  switch (bytes) {
    case 1: return ElementType{is_signed ? DataType::Int8 : DataType::Uint8};
    case 4: return ElementType{is_signed ? DataType::Int32 : DataType::Uint32};
    case 8: return ElementType{is_signed ? DataType::Int64 : DataType::Uint64};
    default: return std::nullopt;
  }
}

std::optional<ElementType> floating(size_t bytes) {
  switch (bytes) {
    case 2: return ElementType{DataType::Float16};
    case 4: return ElementType{DataType::Float32};
    case 8: return ElementType{DataType::Float64};
    default: return std::nullopt;
  }
}

std::optional<ElementType> complex(size_t bytes) {
  if (bytes != 8 && bytes != 16) return std::nullopt;
  return ElementType{bytes == 8 ? DataType::Float32 : DataType::Float64, 2};
}

constexpr ElementType kBool{DataType::Uint8, 1, true};

struct Name {
  std::string_view name;
  ElementType element;
};

constexpr std::array<Name, 18> kNames = {{
    {"float32", {DataType::Float32}},
    {"bfloat16", {DataType::Bfloat16}},
    {"float16", {DataType::Float16}},
    {"float64", {DataType::Float64}},
    {"int64", {DataType::Int64}},
    {"int32", {DataType::Int32}},
    {"uint8", {DataType::Uint8}},
    {"int8", {DataType::Int8}},
    {"uint32", {DataType::Uint32}},
    {"uint64", {DataType::Uint64}},
    {"bool", kBool},
    {"float8_e4m3fn", {DataType::Float8e4m3}},
    {"float8_e5m2", {DataType::Float8e5m2}},
    {"complex64", {DataType::Float32, 2}},
    {"complex128", {DataType::Float64, 2}},
    {"float8e4m3", {DataType::Float8e4m3}},
    {"float8e5m2", {DataType::Float8e5m2}},
    {"bool_", kBool},
}};

}  // namespace

std::optional<ElementType> element_of_format(const char* format, size_t item_size) {
  if (format == nullptr) return ElementType{DataType::Uint8};
  if (*format == '>' || *format == '!') return std::nullopt;
  if (*format == '<' || *format == '=' || *format == '@') ++format;
  if (format[0] == 'Z' && format[1] != 0 && format[2] == 0) return complex(item_size);
  if (format[0] == 0 || format[1] != 0) return std::nullopt;
  switch (format[0]) {
    case 'f':
    case 'd':
    case 'e': return floating(item_size);
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
    case 'n': return integer(true, item_size);
    case 'c':
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
    case 'N': return integer(false, item_size);
    case '?': return kBool;
    default: return std::nullopt;
  }
}

std::optional<ElementType> element_of_name(std::string_view name) {
  for (const Name& known : kNames) {
    if (known.name == name) return known.element;
  }
  return std::nullopt;
}

std::optional<ElementType> element_of_typestr(std::string_view typestr) {
  if (typestr.size() < 3 || typestr[0] == '>') return std::nullopt;
  size_t bytes = 0;
  const char* end = typestr.data() + typestr.size();
  auto [stop, error] = std::from_chars(typestr.data() + 2, end, bytes);
  if (error != std::errc() || stop != end) return std::nullopt;
  switch (typestr[1]) {
    case 'f': return floating(bytes);
    case 'i': return integer(true, bytes);
    case 'u': return integer(false, bytes);
    case 'c': return complex(bytes);
    case 'b': return bytes == 1 ? std::optional(kBool) : std::nullopt;
    default: return std::nullopt;
  }
}

std::optional<ElementType> element_of_dlpack(int code, int bits, int lanes) {
  // The codes are DLPack's own (dlpack.h, DLDataTypeCode).
  constexpr int kInt = 0, kUint = 1, kFloat = 2, kBfloat = 4, kComplex = 5, kBoolean = 6, kFloat8e4m3fn = 10,
                kFloat8e5m2 = 12;
  if (lanes != 1 || bits % 8 != 0) return std::nullopt;
  const size_t bytes = static_cast<size_t>(bits / 8);
  switch (code) {
    case kInt: return integer(true, bytes);
    case kUint: return integer(false, bytes);
    case kFloat: return floating(bytes);
    case kBfloat: return bytes == 2 ? std::optional(ElementType{DataType::Bfloat16}) : std::nullopt;
    case kComplex: return complex(bytes);
    case kBoolean: return bytes == 1 ? std::optional(kBool) : std::nullopt;
    case kFloat8e4m3fn: return bytes == 1 ? std::optional(ElementType{DataType::Float8e4m3}) : std::nullopt;
    case kFloat8e5m2: return bytes == 1 ? std::optional(ElementType{DataType::Float8e5m2}) : std::nullopt;
    default: return std::nullopt;
  }
}

std::string name_of(const ElementType& element) {
  if (element.boolean) return "bool";
  if (element.parts == 2) return element.type == DataType::Float32 ? "complex64" : "complex128";
  return theseus::name_of(element.type);
}

}  // namespace theseus::bindings
