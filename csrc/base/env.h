// Settings: typed access to every environment variable the library honours.
//
// env.def is the one table. A value comes from the environment, else from the first settings file found
// (NCCL_CONF_FILE or ~/.nccl.conf, then /etc/nccl.conf), else from the table. A bad value gives a warning that names
// it, and the default. Values are read once, at first use.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace theseus {

namespace settings {

// One accessor per row of env.def: settings::timeout(), settings::algo()...
#define SETTING_INT(identifier, ...) int64_t identifier();
#define SETTING_DOUBLE(identifier, ...) double identifier();
#define SETTING_BOOL(identifier, ...) bool identifier();
#define SETTING_SIZE(identifier, ...) int64_t identifier();
#define SETTING_RATE(identifier, ...) double identifier();
#define SETTING_STRING(identifier, ...) std::string identifier();
#include "base/env.def"
#undef SETTING_INT
#undef SETTING_DOUBLE
#undef SETTING_BOOL
#undef SETTING_SIZE
#undef SETTING_RATE
#undef SETTING_STRING

}  // namespace settings

struct SettingDescription {
  std::string name;
  std::string value;
  std::string default_value;
  std::string source;  // "environment", "file" or "default"
  std::string documentation;
};

// All settings, in the table's order.
std::vector<SettingDescription> describe_settings();

// What was wrong with the settings when they were read: bad values, unknown THESEUS_* variables.
std::vector<std::string> settings_warnings();

// Reads environment and files again. For tests, and for a launcher that changes its own environment.
void reload_settings();

// "200Mbit" -> 25e6, "1Gbit", "25MB" -> 25e6, plain bytes per second; 0 for "0". Units of 1000. InvalidArgument else.
Result<double> parse_rate(const std::string& text);
// "4096", "64K", "1M", "1G", 0x1000. Units of 1024.
Result<int64_t> parse_size(const std::string& text);

}  // namespace theseus
