// Running the emulator's compiler: a child process, and a folder that does not outlive us.
#pragma once

#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace theseus::cuda {

// The executable file that `name` means: itself where it has a slash, else the first on PATH; empty: none.
std::string find_program(const std::string& name);

struct ProcessEnd {
  bool succeeded;
  std::string output;  // standard output and standard error
};
// Runs a program in `folder`, its temporary files there too, and waits for its end. SystemError where it cannot start.
Result<ProcessEnd> run_program(const std::vector<std::string>& arguments, const std::string& folder);

// A folder in the temporary folder, removed with all that is in it. What a killed process left is removed by the next
// one that makes such a folder: each holds a lock on its own.
class TemporaryFolder {
 public:
  static Result<TemporaryFolder> make();
  TemporaryFolder(TemporaryFolder&&) = default;
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder();

  const std::string& path() const { return path_; }
  // `name` may have folders, which are made; InvalidArgument where it would leave this one.
  Status write(const std::string& name, const std::string& text) const;
  Result<std::vector<uint8_t>> read(const std::string& name) const;

 private:
  TemporaryFolder(std::string path, Fd lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  std::string path_;
  Fd lock_;
};

}  // namespace theseus::cuda
