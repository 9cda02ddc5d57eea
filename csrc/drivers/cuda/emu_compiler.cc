#include "drivers/cuda/emu_compiler.h"

#include <memory>
#include <sstream>
#include <utility>

#include "base/fork.h"
#include "drivers/cuda/emu_device.h"
#include "drivers/cuda/emu_process.h"
#include "drivers/cuda/texts.h"

namespace theseus::cuda {
namespace {

constexpr const char* kOutput = "kernel.so";
constexpr const char* kSource = "kernel.cc";

// A library under a sanitizer wants its modules under the same one.
std::vector<std::string> own_flags() {
  std::vector<std::string> flags{"-std=c++17", "-O1", "-g1", "-shared", "-fPIC", "-fvisibility=hidden",
                                 // Names that are unique in the process would keep a module loaded for ever.
                                 "-fno-gnu-unique", "-ffp-contract=off", "-pthread", "-I."};
#if defined(__SANITIZE_THREAD__)
  flags.insert(flags.end(), {"-fsanitize=thread", "-fno-omit-frame-pointer"});
#elif defined(__SANITIZE_ADDRESS__)
  flags.insert(flags.end(), {"-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"});
#endif
  return flags;
}

}  // namespace

Result<std::unique_ptr<EmuCompiler>> EmuCompiler::make(const std::string& program, const std::string& flags) {
  auto compiler = std::make_unique<EmuCompiler>();
  const std::vector<std::string> candidates =
      program.empty() ? std::vector<std::string>{"c++", "g++"} : std::vector<std::string>{program};
  for (const std::string& name : candidates)
    if (compiler->path_.empty()) compiler->path_ = find_program(name);
  if (compiler->path_.empty()) {
    return Status(Code::UnhandledCudaError,
                  "the emulator of CUDA needs a C++ compiler for kernels and found none as " +
                      (program.empty() ? std::string("c++ or g++ on PATH") : "'" + program + "'") +
                      "; install one (Debian, Ubuntu: apt-get install g++), or name it in THESEUS_EMU_COMPILER");
  }
  Result<ProcessEnd> version = run_program({compiler->path_, "--version"}, "/");
  if (!version) return version.status();
  compiler->version_ = version->output.substr(0, version->output.find('\n'));
  compiler->flags_ = own_flags();
  std::istringstream words(flags);
  for (std::string word; words >> word;) compiler->flags_.push_back(word);
  return compiler;
}

std::string EmuCompiler::identity(const DeviceInfo&) const {
  std::string text = "emulator " + std::to_string(emu::kAbiVersion) + ", " + version_;
  for (const std::string& flag : flags_) text += " " + flag;
  return text;
}

Result<KernelImage> EmuCompiler::compile(const KernelSource& source, const DeviceInfo&) {
  THESEUS_TRY(check_not_forked());
  Result<TemporaryFolder> folder = TemporaryFolder::make();
  if (!folder) return folder.status();
  THESEUS_TRY(folder->write(kSource, "#line 1 \"" + source.name + "\"\n" + source.text));
  for (const SourceText& header : source.headers) THESEUS_TRY(folder->write(header.name, header.text));
  for (const SourceText& header : emulator_headers()) THESEUS_TRY(folder->write(header.name, header.text));
  std::vector<std::string> command{path_};
  command.insert(command.end(), flags_.begin(), flags_.end());
  command.insert(command.end(), source.options.begin(), source.options.end());
  command.insert(command.end(), {"-x", "c++", kSource, "-o", kOutput});
  Result<ProcessEnd> end = run_program(command, folder->path());
  if (!end) return end.status();
  if (!end->succeeded) return Status::argument("cannot compile " + source.name + ":\n" + end->output);
  Result<KernelImage> image = folder->read(kOutput);
  if (!image) return Status::argument("cannot compile " + source.name + ":\n" + end->output);
  return image;
}

}  // namespace theseus::cuda
