#include "base/log.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "base/env.h"

namespace theseus {
namespace {

std::atomic<int> level_limit{-1};  // -1: settings not read yet
std::atomic<uint32_t> subsystems{0};
std::atomic<int> output{STDOUT_FILENO};
thread_local int log_device = 0;

std::string upper(std::string text) {
  for (char& character : text) character = static_cast<char>(std::toupper(static_cast<unsigned char>(character)));
  return text;
}

std::string short_host() {
  char name[256] = "localhost";
  gethostname(name, sizeof name - 1);
  return std::string(name, std::strcspn(name, "."));
}

// The file of an earlier pattern stays open: another thread may be writing to it.
int open_log(const std::string& pattern) {
  static std::mutex* mutex = new std::mutex;
  static std::string* opened = new std::string;
  static int descriptor = STDOUT_FILENO;
  std::lock_guard lock(*mutex);
  if (pattern == *opened) return descriptor;
  *opened = pattern;
  descriptor = STDOUT_FILENO;
  if (pattern.empty()) return descriptor;
  const std::string path = expand_log_path(pattern, short_host(), getpid());
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file >= 0) descriptor = file;
  return descriptor;
}

const char* word_of(LogLevel level) {
  switch (level) {
    case LogLevel::Warn: return "WARN";
    case LogLevel::Trace: return "TRACE";
    case LogLevel::Version: return "VERSION";
    default: return "INFO";
  }
}

}  // namespace

LogLevel parse_log_level(const std::string& text) {
  const std::string word = upper(text);
  if (word == "VERSION") return LogLevel::Version;
  if (word == "WARN") return LogLevel::Warn;
  if (word == "INFO") return LogLevel::Info;
  if (word == "ABORT") return LogLevel::Abort;
  if (word == "TRACE") return LogLevel::Trace;
  return LogLevel::None;
}

uint32_t parse_log_subsystems(const std::string& text) {
  static constexpr struct {
    const char* name;
    uint32_t bit;
  } names[] = {{"INIT", kLogInit},
               {"COLL", kLogColl},
               {"P2P", kLogP2p},
               {"SHM", kLogShm},
               {"NET", kLogNet},
               {"GRAPH", kLogGraph},
               {"TUNING", kLogTuning},
               {"ENV", kLogEnv},
               {"ALLOC", kLogAlloc},
               {"CALL", kLogCall},
               {"PROXY", kLogProxy},
               {"NVLS", kLogNvls},
               {"BOOTSTRAP", kLogBootstrap},
               {"REG", kLogReg},
               {"PROFILE", kLogProfile},
               {"RAS", kLogRas},
               {"ALL", kLogAll}};
  std::string list = upper(text);
  const bool invert = !list.empty() && list[0] == '^';
  if (invert) list.erase(0, 1);
  uint32_t mask = 0;
  size_t start = 0;
  while (start < list.size()) {
    const size_t end = std::min(list.find(',', start), list.size());
    for (const auto& entry : names) {
      if (list.compare(start, end - start, entry.name) == 0) mask |= entry.bit;
    }
    start = end + 1;
  }
  return invert ? ~mask : mask;
}

std::string expand_log_path(const std::string& pattern, const std::string& host, int pid) {
  std::string path;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%' || i + 1 == pattern.size()) {
      path += pattern[i];
      continue;
    }
    switch (pattern[++i]) {
      case '%': path += '%'; break;
      case 'h': path += host; break;
      case 'p': path += std::to_string(pid); break;
      default: path += {'%', pattern[i]}; break;
    }
  }
  return path;
}

void reload_log() {
  const LogLevel level = parse_log_level(settings::debug());
  // NCCL writes to the file only above VERSION.
  output.store(open_log(level > LogLevel::Version ? settings::debug_file() : ""), std::memory_order_relaxed);
  subsystems.store(parse_log_subsystems(settings::debug_subsys()), std::memory_order_relaxed);
  level_limit.store(static_cast<int>(level), std::memory_order_release);
}

bool log_enabled(LogLevel level, uint32_t subsystem) {
  int limit = level_limit.load(std::memory_order_acquire);
  if (limit < 0) {
    static_cast<void>(settings::debug());  // reads the settings, which calls reload_log()
    limit = level_limit.load(std::memory_order_acquire);
  }
  if (static_cast<int>(level) > limit) return false;
  return level < LogLevel::Info || (subsystem & subsystems.load(std::memory_order_relaxed)) != 0;
}

void log_message(LogLevel level, uint32_t subsystem, const char* file, int line, const std::string& message) {
  if (!log_enabled(level, subsystem)) return;
  static const std::string* host = new std::string(short_host());
  std::string text = *host + ":" + std::to_string(getpid()) + ":" + std::to_string(syscall(SYS_gettid)) + " [" +
                     std::to_string(log_device) + "] ";
  if (level == LogLevel::Warn) {
    const char* slash = std::strrchr(file, '/');
    text = "\n" + text + (slash != nullptr ? slash + 1 : file) + ":" + std::to_string(line) + " ";
  }
  text += std::string("NCCL ") + word_of(level) + " " + message + "\n";
  [[maybe_unused]] const ssize_t written = write(output.load(std::memory_order_relaxed), text.data(), text.size());
}

void log_format(LogLevel level, uint32_t subsystem, const char* file, int line, const char* format, ...) {
  char text[2048];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  log_message(level, subsystem, file, line, text);
}

void set_log_device(int device) { log_device = device; }

}  // namespace theseus
