#include "base/env.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>

#include "base/log.h"

extern char** environ;

namespace theseus {
namespace {

enum class Kind { Int, Double, Bool, Size, Rate, String };

struct Row {
  const char* name;
  const char* aliases;
  Kind kind;
  const char* default_text;
  double minimum;
  double maximum;
  const char* documentation;
};

// The names of the rows, as indices into kRows.
enum Index {
#define SETTING_INT(identifier, ...) k_##identifier,
#define SETTING_DOUBLE(identifier, ...) k_##identifier,
#define SETTING_BOOL(identifier, ...) k_##identifier,
#define SETTING_SIZE(identifier, ...) k_##identifier,
#define SETTING_RATE(identifier, ...) k_##identifier,
#define SETTING_STRING(identifier, ...) k_##identifier,
#include "base/env.def"
#undef SETTING_INT
#undef SETTING_DOUBLE
#undef SETTING_BOOL
#undef SETTING_SIZE
#undef SETTING_RATE
#undef SETTING_STRING
  kSettings
};

constexpr double kNoLimit = 9.2e18;
const Row kRows[kSettings] = {
#define SETTING_INT(id, name, aliases, value, low, high, doc) {name, aliases, Kind::Int, #value, low, high, doc},
#define SETTING_DOUBLE(id, name, aliases, value, low, high, doc) {name, aliases, Kind::Double, #value, low, high, doc},
#define SETTING_BOOL(id, name, aliases, value, doc) {name, aliases, Kind::Bool, (value) ? "1" : "0", 0, 1, doc},
#define SETTING_SIZE(id, name, aliases, value, doc) {name, aliases, Kind::Size, #value, 0, kNoLimit, doc},
#define SETTING_RATE(id, name, aliases, doc) {name, aliases, Kind::Rate, "0", 0, kNoLimit, doc},
#define SETTING_STRING(id, name, aliases, value, doc) {name, aliases, Kind::String, value, 0, 0, doc},
#include "base/env.def"
#undef SETTING_INT
#undef SETTING_DOUBLE
#undef SETTING_BOOL
#undef SETTING_SIZE
#undef SETTING_RATE
#undef SETTING_STRING
};

// Names that are no settings and yet nobody's mistake.
const char* const kToolVariables[] = {
#define SETTING_INT(...)
#define SETTING_DOUBLE(...)
#define SETTING_BOOL(...)
#define SETTING_SIZE(...)
#define SETTING_RATE(...)
#define SETTING_STRING(...)
#define TOOL_VARIABLE(name, doc) name,
#include "base/env.def"
#undef SETTING_INT
#undef SETTING_DOUBLE
#undef SETTING_BOOL
#undef SETTING_SIZE
#undef SETTING_RATE
#undef SETTING_STRING
};

bool belongs_to_tool(std::string_view name) {
  for (const std::string_view known : kToolVariables) {
    if (known.ends_with('*') ? name.starts_with(known.substr(0, known.size() - 1)) : name == known) return true;
  }
  return false;
}

struct Value {
  std::string text;
  const char* source = "default";
  int64_t integer = 0;
  double real = 0;
};

// One reading of everything. Immutable once published, never freed: accessors hold no lock.
struct Table {
  Value values[kSettings];
  std::vector<std::string> warnings;
};

std::string trim(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

std::string lower(std::string text) {
  for (char& character : text) character = static_cast<char>(std::tolower(static_cast<unsigned char>(character)));
  return text;
}

Result<int64_t> parse_integer(const std::string& text) {
  errno = 0;
  char* end = nullptr;
  const long long value = std::strtoll(text.c_str(), &end, 0);
  if (end == text.c_str() || *end != '\0' || errno == ERANGE) return Status::argument("not an integer");
  return int64_t{value};
}

Result<double> parse_double(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || *end != '\0' || !std::isfinite(value)) return Status::argument("not a number");
  return value;
}

Result<int64_t> parse_bool(const std::string& text) {
  const std::string word = lower(text);
  if (word == "1" || word == "true" || word == "yes" || word == "on") return int64_t{1};
  if (word == "0" || word == "false" || word == "no" || word == "off") return int64_t{0};
  // NCCL's switches are integers: anything but 0 is on.
  if (const auto number = parse_integer(text); number.ok()) return int64_t{number.value() != 0};
  return Status::argument("neither 0 nor 1");
}

// Fills value.integer and value.real from `text`; says why not.
Status parse(const Row& row, const std::string& text, Value* value) {
  if (row.kind == Kind::String) return {};
  if (row.kind == Kind::Double || row.kind == Kind::Rate) {
    auto real = row.kind == Kind::Double ? parse_double(text) : parse_rate(text);
    if (!real.ok()) return real.status();
    value->real = real.value();
  } else {
    auto integer = row.kind == Kind::Int    ? parse_integer(text)
                   : row.kind == Kind::Bool ? parse_bool(text)
                                            : parse_size(text);
    if (!integer.ok()) return integer.status();
    value->integer = integer.value();
    value->real = static_cast<double>(integer.value());
  }
  if (value->real >= row.minimum && value->real <= row.maximum) return {};
  char range[80];
  std::snprintf(range, sizeof range, "not between %.15g and %.15g", row.minimum, row.maximum);
  return Status::argument(range);
}

using Variables = std::map<std::string, std::string>;

// NAME=value lines; # starts a comment. Later lines win, as in NCCL.
bool read_file(const std::string& path, Variables* variables) {
  std::ifstream file(path);
  if (!file) return false;
  for (std::string line; std::getline(file, line);) {
    line = trim(line.substr(0, line.find('#')));
    const size_t equal = line.find('=');
    if (equal == std::string::npos || equal == 0) continue;
    (*variables)[trim(line.substr(0, equal))] = trim(line.substr(equal + 1));
  }
  return true;
}

Variables read_files(std::vector<std::string>* warnings) {
  Variables variables;
  read_file("/etc/nccl.conf", &variables);
  if (const char* chosen = std::getenv("NCCL_CONF_FILE"); chosen != nullptr && *chosen != '\0') {
    std::string path = chosen;
    if (const char* home = std::getenv("HOME"); path.rfind("~/", 0) == 0 && home != nullptr)
      path = home + path.substr(1);
    if (!read_file(path, &variables)) warnings->push_back("NCCL_CONF_FILE=" + path + " cannot be read; it is ignored");
  } else if (const char* home = std::getenv("HOME"); home != nullptr) {
    read_file(std::string(home) + "/.nccl.conf", &variables);
  }
  return variables;
}

struct Found {
  std::string name;
  std::string text;
  const char* source;
  bool negated;
};

std::optional<Found> find_name(const std::string& name, const Variables& files) {
  const bool negated = name[0] == '!';
  const std::string plain = negated ? name.substr(1) : name;
  if (const char* text = std::getenv(plain.c_str())) return Found{plain, trim(text), "environment", negated};
  if (const auto found = files.find(plain); found != files.end()) return Found{plain, found->second, "file", negated};
  return std::nullopt;
}

std::optional<Found> find(const Row& row, const Variables& files) {
  std::string names = std::string(row.name) + " " + row.aliases;
  size_t start = 0;
  while (start < names.size()) {
    const size_t end = std::min(names.find(' ', start), names.size());
    // An empty string counts as unset, except for strings, where it is a value.
    auto found = end == start ? std::nullopt : find_name(names.substr(start, end - start), files);
    if (found && (row.kind == Kind::String || !found->text.empty())) return found;
    start = end + 1;
  }
  return std::nullopt;
}

Value read_setting(const Row& row, const Variables& files, std::vector<std::string>* warnings) {
  Value value;
  value.text = row.default_text;
  static_cast<void>(parse(row, value.text, &value));
  const auto found = find(row, files);
  if (!found) return value;
  Value given;
  given.source = found->source;
  given.text = found->text;
  if (const Status status = parse(row, found->text, &given); !status.ok()) {
    warnings->push_back(found->name + "=" + found->text + " is " + status.message() + "; using " + row.name + "=" +
                        row.default_text);
    return value;
  }
  if (found->negated) {
    given.integer = !given.integer;
    given.text = given.integer ? "1" : "0";
  }
  return given;
}

void warn_of_unknown(std::vector<std::string>* warnings) {
  std::set<std::string> known;
  for (const Row& row : kRows) known.insert(row.name);
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string name(*variable, std::strcspn(*variable, "="));
    if (name.rfind("THESEUS_", 0) == 0 && known.count(name) == 0 && !belongs_to_tool(name)) {
      warnings->push_back(name + " is no setting of Theseus and has no effect ('theseus env' lists them all)");
    }
  }
}

std::mutex& table_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}
std::atomic<const Table*> current{nullptr};

const Table* read_table() {
  static auto* tables = new std::vector<const Table*>;  // keeps old tables reachable; under table_mutex()
  static auto* warned = new std::set<std::string>;
  auto* table = new Table;
  const Variables files = read_files(&table->warnings);
  for (int i = 0; i < kSettings; ++i) table->values[i] = read_setting(kRows[i], files, &table->warnings);
  warn_of_unknown(&table->warnings);
  tables->push_back(table);
  current.store(table, std::memory_order_release);
  reload_log();
  for (const std::string& warning : table->warnings) {
    if (warned->insert(warning).second) THESEUS_WARN(warning);
  }
  return table;
}

const Table& table() {
  const Table* now = current.load(std::memory_order_acquire);
  if (now == nullptr) {
    std::lock_guard lock(table_mutex());
    now = current.load(std::memory_order_acquire);
    if (now == nullptr) now = read_table();
  }
  return *now;
}

}  // namespace

namespace settings {

#define SETTING_INT(identifier, ...) \
  int64_t identifier() { return table().values[k_##identifier].integer; }
#define SETTING_DOUBLE(identifier, ...) \
  double identifier() { return table().values[k_##identifier].real; }
#define SETTING_BOOL(identifier, ...) \
  bool identifier() { return table().values[k_##identifier].integer != 0; }
#define SETTING_SIZE(identifier, ...) SETTING_INT(identifier)
#define SETTING_RATE(identifier, ...) SETTING_DOUBLE(identifier)
#define SETTING_STRING(identifier, ...) \
  std::string identifier() { return table().values[k_##identifier].text; }
#include "base/env.def"
#undef SETTING_INT
#undef SETTING_DOUBLE
#undef SETTING_BOOL
#undef SETTING_SIZE
#undef SETTING_RATE
#undef SETTING_STRING

}  // namespace settings

std::vector<SettingDescription> describe_settings() {
  std::vector<SettingDescription> all;
  for (int i = 0; i < kSettings; ++i) {
    const Value& value = table().values[i];
    all.push_back({kRows[i].name, value.text, kRows[i].default_text, value.source, kRows[i].documentation});
  }
  return all;
}

std::vector<std::string> settings_warnings() { return table().warnings; }

void reload_settings() {
  std::lock_guard lock(table_mutex());
  read_table();
}

Result<double> parse_rate(const std::string& text) {
  const std::string word = lower(trim(text));
  char* end = nullptr;
  const double number = std::strtod(word.c_str(), &end);
  if (end == word.c_str() || !std::isfinite(number) || number < 0)
    return Status::argument("not a rate such as 200Mbit or 25MB");
  static const std::map<std::string, double> units = {
      {"", 1},         {"b", 1},          {"kb", 1e3},       {"mb", 1e6},     {"gb", 1e9},
      {"bit", 0.125},  {"kbit", 125.0},   {"mbit", 125e3},   {"gbit", 125e6}, {"bit/s", 0.125},
      {"kbit/s", 125}, {"mbit/s", 125e3}, {"gbit/s", 125e6}, {"kb/s", 1e3},   {"mb/s", 1e6},
      {"gb/s", 1e9},   {"bps", 0.125},    {"kbps", 125},     {"mbps", 125e3}, {"gbps", 125e6}};
  const auto unit = units.find(trim(end));
  if (unit == units.end()) return Status::argument("not a rate such as 200Mbit or 25MB");
  return number * unit->second;
}

Result<int64_t> parse_size(const std::string& text) {
  std::string word = lower(trim(text));
  if (word.size() > 1 && word.back() == 'b' && word.rfind("0x", 0) != 0) word.pop_back();
  int shift = 0;
  if (!word.empty() && word.rfind("0x", 0) != 0) {
    const char* suffixes = "kmg";
    if (const char* suffix = std::strchr(suffixes, word.back()); suffix != nullptr) {
      shift = 10 * static_cast<int>(suffix - suffixes + 1);
      word.pop_back();
    }
  }
  const auto number = parse_integer(word);
  if (!number.ok() || number.value() < 0 || number.value() > (INT64_MAX >> shift)) {
    return Status::argument("not a size such as 65536, 64K or 1M");
  }
  return number.value() << shift;
}

}  // namespace theseus
