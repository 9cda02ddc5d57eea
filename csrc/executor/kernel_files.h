// Compiled kernels on disk, so that a process compiles what no process of this user has compiled before.
//
// A file is found by everything that its contents depend on: source, compiler, flags, architecture. It is written under
// a temporary name and renamed, so that readers see it whole or not at all, and checked when it is read: a file that is
// short, damaged, another user's, or of another key counts as missing.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace theseus {

class KernelFiles {
 public:
  // `folder` is made when it is first written to; empty: nothing is kept.
  explicit KernelFiles(std::string folder) : folder_(std::move(folder)) {}
  // THESEUS_KERNEL_CACHE, else $XDG_CACHE_HOME/theseus/kernels, else ~/.cache/theseus/kernels; "off", or no home:
  // nothing is kept.
  static KernelFiles of_settings();

  // `key`: the whole text that the image depends on.
  std::optional<std::string> load(std::string_view key) const;
  // Fails where the folder cannot be written; the kernel works all the same.
  Status store(std::string_view key, std::string_view image) const;

  const std::string& folder() const { return folder_; }

 private:
  std::string path_of(std::string_view key) const;
  std::string folder_;
};

}  // namespace theseus
