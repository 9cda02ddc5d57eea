#include "policy/forced.h"

#include <algorithm>
#include <cctype>

#include "compiler/registry.h"
#include "schedule/places.h"

namespace theseus {
namespace {

std::string lowered(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (!std::isspace(static_cast<unsigned char>(c))) {
      result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  return result;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end; (end = text.find(separator, begin)) != std::string::npos; begin = end + 1) {
    parts.push_back(text.substr(begin, end - begin));
  }
  parts.push_back(text.substr(begin));
  return parts;
}

Result<Collective> parse_collective(const std::string& name) {
  std::string known;
  for (int i = 0; i < kCollectives; ++i) {
    const auto collective = static_cast<Collective>(i);
    if (!has_plans(collective)) continue;
    if (name == lowered(name_of(collective))) return collective;
    known += (known.empty() ? "" : ", ") + lowered(name_of(collective));
  }
  return Status::argument("THESEUS_ALGO: '" + name + "' is no collective; there are: " + known);
}

Result<Forced::List> parse_list(std::string text) {
  Forced::List list;
  list.is_set = true;
  if (!text.empty() && text[0] == '^') {
    list.excludes = true;
    text.erase(0, 1);
  }
  for (const std::string& name : split(text, ',')) {
    if (find_built_in(name) == nullptr) {
      std::string known;
      for (const BuiltIn& entry : built_ins()) known += (known.empty() ? "" : ", ") + std::string(entry.name);
      return Status::argument("THESEUS_ALGO: there is no algorithm '" + name + "'; there are: " + known);
    }
    list.names.push_back(name);
  }
  return list;
}

}  // namespace

bool Forced::allows(Collective collective, const std::string& algorithm) const {
  const List& list = lists[static_cast<size_t>(collective)];
  if (!list.is_set) return true;
  const bool named = std::find(list.names.begin(), list.names.end(), algorithm) != list.names.end();
  return named != list.excludes;
}

Result<Forced> parse_algo(const std::string& value) {
  Forced forced;
  const std::string text = lowered(value);
  if (text.empty()) return forced;
  bool is_first = true;
  for (const std::string& group : split(text, ';')) {
    const size_t colon = group.find(':');
    if (colon == std::string::npos) {
      if (!is_first) {
        return Status::argument("THESEUS_ALGO: '" + group +
                                "' must name its collective, as in 'allreduce:ring'; "
                                "only the first group holds for all");
      }
      auto list = parse_list(group);
      if (!list.ok()) return list.status();
      forced.lists.fill(*list);
    } else {
      auto collective = parse_collective(group.substr(0, colon));
      if (!collective.ok()) return collective.status();
      auto list = parse_list(group.substr(colon + 1));
      if (!list.ok()) return list.status();
      forced.lists[static_cast<size_t>(*collective)] = *list;
    }
    is_first = false;
  }
  return forced;
}

}  // namespace theseus
