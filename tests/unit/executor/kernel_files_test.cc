// Compiled kernels on disk: what was stored comes back, and nothing else does.
#include "executor/kernel_files.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace theseus {
namespace {

class Folder {
 public:
  Folder() {
    char name[] = "/tmp/theseus-kernels-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string inside(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::filesystem::path only_file(const std::string& folder) {
  std::filesystem::path found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    EXPECT_TRUE(found.empty());
    found = entry.path();
  }
  return found;
}

TEST(KernelFiles, GiveBackWhatWasStored) {
  const Folder folder;
  const KernelFiles files(folder.inside("a/b"));
  EXPECT_FALSE(files.load("key").has_value());
  const std::string image("\0image\n", 7);
  ASSERT_TRUE(files.store("key", image).ok());
  EXPECT_EQ(files.load("key"), image);
  EXPECT_FALSE(files.load("key ").has_value());
  ASSERT_TRUE(files.store("key", "another").ok());
  EXPECT_EQ(files.load("key"), "another");
}

// An image is code: one that was cut, changed, or may be written by others is not used.
TEST(KernelFiles, RefuseWhatIsDamagedOrNotOnesOwn) {
  const Folder folder;
  const KernelFiles files(folder.inside("kernels"));
  const std::string image(1000, 'x');
  const auto fresh = [&] {
    EXPECT_TRUE(files.store("key", image).ok());
    EXPECT_EQ(files.load("key"), image);
    return only_file(files.folder());
  };
  std::filesystem::resize_file(fresh(), 900);
  EXPECT_FALSE(files.load("key").has_value());
  {
    std::fstream file(fresh(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(500);
    file.put('y');
  }
  EXPECT_FALSE(files.load("key").has_value());
  ASSERT_EQ(chmod(fresh().c_str(), 0666), 0);
  EXPECT_FALSE(files.load("key").has_value());
}

// Where nothing can be kept, kernels are compiled again, and nothing else goes wrong.
TEST(KernelFiles, WorkWithoutAFolder) {
  const KernelFiles none("");
  EXPECT_TRUE(none.store("key", "image").ok());
  EXPECT_FALSE(none.load("key").has_value());
  const KernelFiles impossible("/proc/theseus");
  EXPECT_EQ(impossible.store("key", "image").code(), Code::SystemError);
  EXPECT_FALSE(impossible.load("key").has_value());
}

}  // namespace
}  // namespace theseus
