// From the many ways to spell an element type to ElementType.
#pragma once

#include <optional>
#include <string_view>

#include "bindings/buffer.h"

namespace theseus::bindings {

// A format of the struct module as the buffer protocol uses it ("f", "<i", "Zd"); nothing for what cannot be sent.
std::optional<ElementType> element_of_format(const char* format, size_t item_size);
// A dtype's name in NumPy, ml_dtypes or torch, without a "torch." in front: "bfloat16", "float8_e4m3fn".
std::optional<ElementType> element_of_name(std::string_view name);
// The type string of the array interface: "<f4", "|u1".
std::optional<ElementType> element_of_typestr(std::string_view typestr);
// The type code, bits and lanes of DLPack.
std::optional<ElementType> element_of_dlpack(int code, int bits, int lanes);

}  // namespace theseus::bindings
