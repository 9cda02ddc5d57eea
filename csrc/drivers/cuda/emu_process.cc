#include "drivers/cuda/emu_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <system_error>

extern char** environ;

namespace theseus::cuda {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kPrefix = "theseus-emu-";
// A folder so young may belong to somebody who is about to lock it.
constexpr auto kLeaveAlone = std::chrono::seconds(10);

fs::path temporary_root() {
  std::error_code error;
  fs::path root = fs::temp_directory_path(error);
  return error ? fs::path("/tmp") : root;
}

void remove_abandoned(const fs::path& root) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(root, error)) {
    if (!entry.path().filename().string().starts_with(kPrefix)) continue;
    std::error_code unknown;
    const auto changed = fs::last_write_time(entry.path(), unknown);
    if (unknown || fs::file_time_type::clock::now() - changed < kLeaveAlone) continue;
    const Fd folder(open(entry.path().c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat info{};
    if (!folder || fstat(folder.get(), &info) != 0 || info.st_uid != geteuid()) continue;
    if (flock(folder.get(), LOCK_EX | LOCK_NB) == 0) fs::remove_all(entry.path(), unknown);
  }
}

// The caller's environment, but for what would be loaded into the compiler as well, and where its own files go.
std::vector<std::string> child_environment(const std::string& folder) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (!text.starts_with("LD_PRELOAD=") && !text.starts_with("TMPDIR=") && !text.starts_with("LC_ALL="))
      variables.emplace_back(text);
  }
  variables.push_back("TMPDIR=" + folder);
  variables.push_back("LC_ALL=C");
  return variables;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::string read_all(int descriptor) {
  std::string text;
  char buffer[4096];
  while (true) {
    const ssize_t got = read(descriptor, buffer, sizeof buffer);
    if (got > 0) text.append(buffer, static_cast<size_t>(got));
    if (got == 0 || (got < 0 && errno != EINTR)) return text;
  }
}

// A host application that reaps every child may take ours: then the caller judges by what the program made.
bool ended_well(pid_t child) {
  int status = 0;
  pid_t reaped;
  do reaped = waitpid(child, &status, 0);
  while (reaped < 0 && errno == EINTR);
  return reaped < 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return access(name.c_str(), X_OK) == 0 ? name : "";
  const char* path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "/usr/bin:/bin" : path;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(':'), rest.size());
    const std::string candidate = std::string(rest.substr(0, end)) + "/" + name;
    if (end > 0 && access(candidate.c_str(), X_OK) == 0) return candidate;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return "";
}

Result<ProcessEnd> run_program(const std::vector<std::string>& arguments, const std::string& folder) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return descriptor_error("cannot make a pipe for " + arguments[0], errno);
  const Fd output(ends[0]);
  Fd input(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, input.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, input.get(), STDERR_FILENO);
  posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
  std::vector<std::string> words = arguments;
  std::vector<std::string> variables = child_environment(folder);
  pid_t child = 0;
  const int error =
      posix_spawn(&child, words[0].c_str(), &actions, nullptr, pointers(words).data(), pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return Status::from_errno("cannot start " + arguments[0], error);
  input.reset();
  std::string text = read_all(output.get());
  return ProcessEnd{ended_well(child), std::move(text)};
}

Result<TemporaryFolder> TemporaryFolder::make() {
  const fs::path root = temporary_root();
  remove_abandoned(root);
  std::string path = (root / (std::string(kPrefix) + "XXXXXX")).string();
  if (mkdtemp(path.data()) == nullptr) return Status::from_errno("cannot make a folder in " + root.string(), errno);
  Fd lock(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  TemporaryFolder folder(std::move(path), std::move(lock));
  if (!folder.lock_ || flock(folder.lock_.get(), LOCK_EX | LOCK_NB) != 0)
    return Status::from_errno("cannot lock " + folder.path_, errno);
  return folder;
}

TemporaryFolder::~TemporaryFolder() {
  if (!lock_) return;  // moved from, or never ours
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

Status TemporaryFolder::write(const std::string& name, const std::string& text) const {
  const fs::path relative(name);
  const fs::path file = fs::path(path_) / relative;
  if (name.empty() || relative.is_absolute() || relative.lexically_normal().string().starts_with(".."))
    return Status::argument("a kernel's text has the name '" + name + "', which is no path below its folder");
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  std::ofstream stream(file, std::ios::binary);
  stream << text;
  stream.close();
  if (!stream) return Status::from_errno("cannot write " + file.string(), errno);
  return {};
}

Result<std::vector<uint8_t>> TemporaryFolder::read(const std::string& name) const {
  std::ifstream stream(fs::path(path_) / name, std::ios::binary);
  if (!stream) return Status::from_errno("cannot read " + path_ + "/" + name, errno);
  return std::vector<uint8_t>{std::istreambuf_iterator<char>(stream), {}};
}

}  // namespace theseus::cuda
