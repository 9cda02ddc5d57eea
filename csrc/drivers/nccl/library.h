// The real NCCL, beside ours: found by path, since by name the loader would give our own libnccl.so.2 again.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace theseus::nccl {

// A loaded NCCL. It stays loaded until the process ends: its threads and its kernels cannot be taken back.
class Library {
 public:
  // Opens one file and checks that it is an NCCL that we know how to call, and not ours. SystemError where it does not
  // load, InvalidUsage where it is not.
  static Result<Library> open(const std::string& path);
  // THESEUS_NCCL, else the first of nccl_places() that opens. SystemError that says where was looked, and what to do.
  static Result<Library> find();

  // The function of that name, "ncclAllReduce"; null where this version has none.
  void* function(const char* name) const;
  int version() const { return version_; }  // as NCCL_VERSION_CODE: 23007 is 2.30.7
  const std::string& path() const { return path_; }

 private:
  Library(void* handle, std::string path, int version) : handle_(handle), path_(std::move(path)), version_(version) {}

  void* handle_;
  std::string path_;
  int version_;
};

// "2.30.7" of 23007.
std::string version_text(int version);

// Files that may be an NCCL, the likeliest first: those loaded in this process (PyTorch loads its own by path even
// where ours comes first), in the Python packages of this process, in LD_LIBRARY_PATH, in the system's folders.
// Nothing is loaded; ours may be among them.
std::vector<std::string> nccl_places();

}  // namespace theseus::nccl
