// RDMA devices as Linux lists them.
#include "net/rdma.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace theseus {
namespace {

class Rdma : public ::testing::Test {
 protected:
  Rdma() {
    char name[] = "/tmp/theseus-rdma-XXXXXX";
    folder_ = mkdtemp(name);
  }
  ~Rdma() override { std::filesystem::remove_all(folder_); }
  void add_port(const std::string& device, int port, const std::string& state) {
    const std::filesystem::path path = folder_ / device / "ports" / std::to_string(port);
    std::filesystem::create_directories(path);
    std::ofstream(path / "state") << state << "\n";
  }

  std::filesystem::path folder_;
};

// A host without such devices has no folder for them, or an empty one; a device whose cable is out does not count.
TEST_F(Rdma, CountsPortsThatAreUp) {
  EXPECT_FALSE(has_rdma((folder_ / "nothing").string()));
  EXPECT_FALSE(has_rdma(folder_.string()));
  std::filesystem::create_directories(folder_ / "mlx5_0");
  EXPECT_FALSE(has_rdma(folder_.string()));
  add_port("mlx5_0", 1, "1: DOWN");
  add_port("mlx5_1", 1, "2: INIT");
  EXPECT_FALSE(has_rdma(folder_.string()));
  add_port("mlx5_1", 2, "4: ACTIVE");
  EXPECT_TRUE(has_rdma(folder_.string()));
}

}  // namespace
}  // namespace theseus
