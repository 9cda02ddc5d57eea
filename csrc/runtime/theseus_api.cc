// The C API of theseus.h, exported by libtheseus.so.0.
#include "runtime/include/theseus.h"

#include "runtime/publish.h"

namespace theseus {
namespace {

thread_local std::string last_error;

int result_of(const Status& status) {
  if (!status.ok()) last_error = status.message();
  return static_cast<int>(status.code());
}

// Malformed records are refused at once; what only the job's log can know comes with theseusContextSync.
int publish_now(Record record, const std::string& plan = {}) {
  const std::shared_ptr<Work> work = publish(std::move(record), plan);
  const Status status = work->status();
  return status.code() == Code::InvalidArgument ? result_of(status) : 0;
}

std::string text_of(const char* text) { return text == nullptr ? "" : text; }

}  // namespace
}  // namespace theseus

#define THESEUS_C_API extern "C" __attribute__((visibility("default")))

THESEUS_C_API int theseusNewAttr(const char* name, theseusHook_t hook, uint32_t length, double initial,
                                 const char* source, double first, double second) {
  return theseus::publish_now(theseus::AttributeDefinition{.name = theseus::text_of(name),
                                                           .hook = static_cast<theseus::Hook>(hook),
                                                           .length = length,
                                                           .initial = initial,
                                                           .source = theseus::text_of(source),
                                                           .first = first,
                                                           .second = second});
}

THESEUS_C_API int theseusSetExo(const char* name, size_t count, const uint32_t* indices, const double* values) {
  if (count > theseus::kLongestArray || (count > 0 && values == nullptr)) {
    return theseus::result_of(theseus::Status::argument("theseusSetExo: values is NULL, or count is too large"));
  }
  theseus::ExogenousUpdate update;
  update.name = theseus::text_of(name);
  for (size_t i = 0; i < count; ++i) {
    update.elements.emplace_back(indices == nullptr ? static_cast<uint32_t>(i) : indices[i], values[i]);
  }
  return theseus::publish_now(std::move(update));
}

THESEUS_C_API int theseusNewSched(const theseusSched_t* schedule) {
  if (schedule == nullptr || schedule->collective < 0 || schedule->collective >= theseus::kCollectives) {
    return theseus::result_of(theseus::Status::argument("theseusNewSched: no schedule, or no such collective"));
  }
  theseus::ScheduleDefinition definition;
  definition.name = theseus::text_of(schedule->name);
  definition.collective = static_cast<theseus::Collective>(schedule->collective);
  definition.root = schedule->root;
  definition.algorithm = theseus::text_of(schedule->algorithm);
  definition.usable = theseus::text_of(schedule->usable);
  definition.score = theseus::text_of(schedule->score);
  definition.replaces = theseus::text_of(schedule->replaces);
  const bool has_plan = schedule->plan != nullptr && schedule->plan_bytes > 0;
  return theseus::publish_now(
      std::move(definition),
      has_plan ? std::string(static_cast<const char*>(schedule->plan), schedule->plan_bytes) : std::string());
}

THESEUS_C_API int theseusRemoveSched(const char* name) {
  return theseus::publish_now(theseus::ScheduleRemoval{theseus::text_of(name)});
}

THESEUS_C_API int theseusContextSync(double seconds) { return theseus::result_of(theseus::publish_sync(seconds)); }

THESEUS_C_API const char* theseusGetLastError(void) { return theseus::last_error.c_str(); }
