// Files of the source tree that the library carries as text: kernel text and its headers, compiled at run time.
// cmake/Embed.cmake makes one function a layer, which that layer declares where it needs it:
//   std::span<const EmbeddedText> embedded_<layer>();
#pragma once

#include <span>
#include <string_view>

namespace theseus {

struct EmbeddedText {
  std::string_view name;  // relative to csrc: "drivers/cuda/emu_device.h"
  std::string_view text;
};

}  // namespace theseus
