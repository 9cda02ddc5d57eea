#include "drivers/cuda/emu_module.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

namespace theseus::cuda {

EmuModule::~EmuModule() {
  if (library != nullptr) dlclose(library);
}

Result<std::shared_ptr<EmuModule>> EmuModule::load(int device, const KernelImage& image) {
  auto module = std::make_shared<EmuModule>();
  module->device = device;
  const int descriptor = memfd_create("theseus-kernel", MFD_CLOEXEC);
  if (descriptor < 0) return descriptor_error("the emulator cannot load a module", errno);
  module->file = Fd(descriptor);
  for (size_t done = 0; done < image.size();) {
    const ssize_t put = write(descriptor, image.data() + done, image.size() - done);
    if (put < 0 && errno != EINTR) return Status::from_errno("the emulator cannot load a module", errno);
    if (put > 0) done += static_cast<size_t>(put);
  }
  const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  module->library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module->library == nullptr) {
    const char* why = dlerror();
    return Status::argument(std::string("the emulator cannot load a module: ") + (why == nullptr ? "" : why));
  }
  return module;
}

Result<EmuFunction> EmuModule::find(const std::shared_ptr<EmuModule>& module, const std::string& name) {
  const auto symbol = [&](const std::string& wanted) { return dlsym(module->library, wanted.c_str()); };
  void* entry = symbol(name);
  const auto* abi = static_cast<const uint32_t*>(symbol(name + "_abi"));
  const auto* bytes = static_cast<const uint32_t*>(symbol(name + "_bytes"));
  if (entry == nullptr || abi == nullptr || bytes == nullptr)
    return Status::argument("the module has no kernel '" + name + "'");
  if (*abi != emu::kAbiVersion) {
    return Status::argument("kernel '" + name + "' was compiled for version " + std::to_string(*abi) +
                            " of the emulator, this is " + std::to_string(emu::kAbiVersion) + ": compile it again");
  }
  return EmuFunction{name, reinterpret_cast<emu::Entry>(entry), *bytes, module->device, module};
}

}  // namespace theseus::cuda
