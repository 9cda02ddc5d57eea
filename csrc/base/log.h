// The log, in NCCL's line format. Silent unless NCCL_DEBUG asks.
//
//   host:pid:tid [dev] NCCL INFO message
//
// Each line is one write(), so that lines of many threads and processes do not mix and no lock is held over fork.
#pragma once

#include <cstdint>
#include <string>

namespace theseus {

enum class LogLevel : int { None = 0, Version = 1, Warn = 2, Info = 3, Abort = 4, Trace = 5 };

// Parts of the library, NCCL's names; NCCL_DEBUG_SUBSYS picks among them at INFO and TRACE.
enum LogSubsystem : uint32_t {
  kLogInit = 0x1,
  kLogColl = 0x2,
  kLogP2p = 0x4,
  kLogShm = 0x8,
  kLogNet = 0x10,
  kLogGraph = 0x20,
  kLogTuning = 0x40,
  kLogEnv = 0x80,
  kLogAlloc = 0x100,
  kLogCall = 0x200,
  kLogProxy = 0x400,
  kLogNvls = 0x800,
  kLogBootstrap = 0x1000,
  kLogReg = 0x2000,
  kLogProfile = 0x4000,
  kLogRas = 0x8000,
  kLogAll = 0xffffffff,
};

// True where a line of this level (and, from Info on, subsystem) would be written.
bool log_enabled(LogLevel level, uint32_t subsystem);
void log_message(LogLevel level, uint32_t subsystem, const char* file, int line, const std::string& message);
void log_format(LogLevel level, uint32_t subsystem, const char* file, int line, const char* format, ...)
    __attribute__((format(printf, 5, 6)));
inline void log_format(LogLevel level, uint32_t subsystem, const char* file, int line, const std::string& message) {
  log_message(level, subsystem, file, line, message);
}

// The number in brackets on this thread's lines: the device (local rank) it works for.
void set_log_device(int device);
// Levels, subsystems and file are taken from the settings again (reload_settings() calls this).
void reload_log();

// Pure helpers, for tests. An unknown level is None; unknown subsystems are ignored.
LogLevel parse_log_level(const std::string& text);
uint32_t parse_log_subsystems(const std::string& text);
std::string expand_log_path(const std::string& pattern, const std::string& host, int pid);

}  // namespace theseus

// printf-like, or one std::string.
#define THESEUS_WARN(...)                                                                                    \
  do {                                                                                                       \
    if (::theseus::log_enabled(::theseus::LogLevel::Warn, ::theseus::kLogAll))                               \
      ::theseus::log_format(::theseus::LogLevel::Warn, ::theseus::kLogAll, __FILE__, __LINE__, __VA_ARGS__); \
  } while (0)
#define THESEUS_INFO(subsystem, ...)                                                                \
  do {                                                                                              \
    if (::theseus::log_enabled(::theseus::LogLevel::Info, subsystem))                               \
      ::theseus::log_format(::theseus::LogLevel::Info, subsystem, __FILE__, __LINE__, __VA_ARGS__); \
  } while (0)
#define THESEUS_TRACE(subsystem, ...)                                                                \
  do {                                                                                               \
    if (::theseus::log_enabled(::theseus::LogLevel::Trace, subsystem))                               \
      ::theseus::log_format(::theseus::LogLevel::Trace, subsystem, __FILE__, __LINE__, __VA_ARGS__); \
  } while (0)
