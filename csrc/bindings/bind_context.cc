// What the agent (theseus_py/agent) keeps of a job: records as plain dicts, the job log, its shared-memory file.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/shared_log.h"
#include "bindings/errors.h"
#include "bindings/module.h"
#include "context/log.h"
#include "context/record.h"
#include "schedule/bytes.h"

namespace py = pybind11;
using namespace py::literals;

namespace theseus::bindings {

namespace {

constexpr std::array<const char*, kHooks> kHookNames = {"exogenous", "requests",   "agreements", "seconds",
                                                        "smooth",    "hysteresis", "dwell"};

py::dict to_dict(const AttributeDefinition& each) {
  return py::dict("kind"_a = "attribute", "name"_a = each.name, "hook"_a = kHookNames[static_cast<size_t>(each.hook)],
                  "length"_a = each.length, "initial"_a = each.initial, "source"_a = each.source,
                  "first"_a = each.first, "second"_a = each.second);
}
py::dict to_dict(const ExogenousUpdate& each) {
  return py::dict("kind"_a = "update", "name"_a = each.name, "elements"_a = each.elements);
}
py::dict to_dict(const ScheduleDefinition& each) {
  return py::dict("kind"_a = "schedule", "name"_a = each.name, "collective"_a = name_of(each.collective),
                  "root"_a = each.root, "algorithm"_a = each.algorithm, "plan_hash"_a = each.plan_hash,
                  "plan_bytes"_a = each.plan_bytes, "usable"_a = each.usable, "score"_a = each.score,
                  "replaces"_a = each.replaces);
}
py::dict to_dict(const ScheduleRemoval& each) { return py::dict("kind"_a = "removal", "name"_a = each.name); }

template <class T>
void read(const py::dict& from, const char* key, T& value) {
  if (!from.contains(key)) return;
  try {
    value = from[key].cast<T>();
  } catch (const py::cast_error&) {
    throw StatusError(Status::argument("'" + std::string(key) + "' of a record has a value that cannot be"));
  }
}

Hook hook_of(const std::string& name) {
  for (size_t i = 0; i < kHookNames.size(); ++i) {
    if (name == kHookNames[i]) return static_cast<Hook>(i);
  }
  throw StatusError(Status::argument("'" + name + "' is no hook of an attribute"));
}

Collective collective_of(const std::string& name) {
  for (int i = 0; i < kCollectives; ++i) {
    if (name == name_of(static_cast<Collective>(i))) return static_cast<Collective>(i);
  }
  throw StatusError(Status::argument("'" + name + "' is no collective"));
}

Record attribute_of(const py::dict& from) {
  AttributeDefinition attribute;
  std::string hook = kHookNames[0];
  read(from, "name", attribute.name);
  read(from, "hook", hook);
  read(from, "length", attribute.length);
  read(from, "initial", attribute.initial);
  read(from, "source", attribute.source);
  read(from, "first", attribute.first);
  read(from, "second", attribute.second);
  attribute.hook = hook_of(hook);
  return attribute;
}

Record schedule_of(const py::dict& from) {
  ScheduleDefinition schedule;
  std::string collective = name_of(schedule.collective);
  read(from, "name", schedule.name);
  read(from, "collective", collective);
  read(from, "root", schedule.root);
  read(from, "algorithm", schedule.algorithm);
  read(from, "plan_hash", schedule.plan_hash);
  read(from, "plan_bytes", schedule.plan_bytes);
  read(from, "usable", schedule.usable);
  read(from, "score", schedule.score);
  read(from, "replaces", schedule.replaces);
  schedule.collective = collective_of(collective);
  return schedule;
}

py::bytes encode_record(const py::dict& from) {
  std::string kind;
  read(from, "kind", kind);
  Record record;
  if (kind == "attribute") {
    record = attribute_of(from);
  } else if (kind == "schedule") {
    record = schedule_of(from);
  } else if (kind == "update") {
    ExogenousUpdate update;
    read(from, "name", update.name);
    read(from, "elements", update.elements);
    record = std::move(update);
  } else if (kind == "removal") {
    ScheduleRemoval removal;
    read(from, "name", removal.name);
    record = std::move(removal);
  } else {
    throw StatusError(Status::argument("'" + kind + "' is no kind of record"));
  }
  check(theseus::check(record));
  return py::bytes(encode(record));
}

py::dict decode_to_dict(std::string_view bytes) {
  return std::visit([](const auto& record) { return to_dict(record); }, take(decode_record(bytes)));
}

py::dict describe(const Attribute& attribute) {
  py::dict row = to_dict(attribute.definition);
  row["id"] = attribute.id;
  row["version"] = attribute.version;
  row["values"] = attribute.values;
  return row;
}

// A ContextLog, and the names of its attributes, which it can find but not list.
class JobLog {
 public:
  explicit JobLog(uint64_t id) : log_(id) {}

  uint64_t id() const { return log_.id(); }
  uint64_t position() const { return log_.position(); }
  void check(std::string_view bytes) const { bindings::check(log_.check(take(decode_record(bytes)))); }
  void apply(std::string_view bytes) {
    const Record record = take(decode_record(bytes));
    bindings::check(log_.apply(record));
    if (const auto* attribute = std::get_if<AttributeDefinition>(&record)) attributes_.push_back(attribute->name);
  }
  py::list schedules() const {
    py::list rows;
    for (uint32_t id = 0; id < log_.schedules(); ++id) {
      const Schedule* schedule = log_.schedule(id);
      if (schedule == nullptr) continue;
      py::dict row = to_dict(schedule->definition);
      row["id"] = id;
      row["removed"] = log_.removed(id, log_.position());
      rows.append(row);
    }
    return rows;
  }
  std::optional<uint32_t> find_schedule(std::string_view name) const { return log_.find_schedule(name); }
  py::object find_attribute(std::string_view name) const {
    const Attribute* attribute = log_.find_attribute(name);
    return attribute == nullptr ? py::object(py::none()) : py::object(describe(*attribute));
  }
  py::list attributes() const {
    py::list rows;
    for (const std::string& name : attributes_) {
      if (const Attribute* attribute = log_.find_attribute(name)) rows.append(describe(*attribute));
    }
    return rows;
  }
  void forget_before(uint64_t position) { log_.forget_before(position); }

 private:
  ContextLog log_;
  std::vector<std::string> attributes_;
};

py::object next_record(SharedLogReader& reader) {
  std::string bytes;
  return take(reader.next(bytes)) ? py::object(py::bytes(bytes)) : py::object(py::none());
}

std::unique_ptr<SharedLogReader> reader_of(int fd) { return take(SharedLogReader::from_fd(Fd(fd))); }

}  // namespace

void bind_context(py::module_& module) {
  module.def("encode_record", &encode_record);
  module.def("decode_record", &decode_to_dict);
  module.def("hash_plan", [](std::string_view bytes) { return hash_bytes(bytes.data(), bytes.size()); });

  py::class_<JobLog>(module, "ContextLog")
      .def(py::init<uint64_t>(), py::arg("id"))
      .def_property_readonly("id", &JobLog::id)
      .def_property_readonly("position", &JobLog::position)
      .def("check", &JobLog::check)
      .def("apply", &JobLog::apply)
      .def("schedules", &JobLog::schedules)
      .def("attributes", &JobLog::attributes)
      .def("find_schedule", &JobLog::find_schedule)
      .def("find_attribute", &JobLog::find_attribute)
      .def("forget_before", &JobLog::forget_before);

  py::class_<SharedLogWriter>(module, "SharedLogWriter")
      .def(py::init([](const std::string& path, uint64_t log_id, uint64_t capacity) {
             return take(SharedLogWriter::open(path, log_id, capacity));
           }),
           py::arg("path"), py::arg("log_id"), py::arg("capacity") = uint64_t{64} << 20)
      .def_property_readonly("log_id", &SharedLogWriter::log_id)
      .def_property_readonly("count", &SharedLogWriter::count)
      .def_property_readonly("frozen", &SharedLogWriter::frozen)
      .def("append",
           [](SharedLogWriter& log, uint64_t index, std::string_view bytes) { check(log.append(index, bytes)); })
      .def("freeze", &SharedLogWriter::freeze)
      .def("fileno", &SharedLogWriter::fd);

  py::class_<SharedLogReader>(module, "SharedLogReader")
      .def(py::init([](const std::string& path) { return take(SharedLogReader::open(path)); }), py::arg("path"))
      .def_static("from_fd", &reader_of, py::arg("fd"))
      .def_property_readonly("log_id", &SharedLogReader::log_id)
      .def_property_readonly("count", &SharedLogReader::count)
      .def_property_readonly("position", &SharedLogReader::position)
      .def_property_readonly("frozen", &SharedLogReader::frozen)
      .def("next", &next_record);
}

}  // namespace theseus::bindings
