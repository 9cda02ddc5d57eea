// _core.publish_*: what theseus_py/context.py writes to the job's context.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/errors.h"
#include "bindings/handle.h"
#include "bindings/module.h"
#include "runtime/publish.h"

namespace py = pybind11;

namespace theseus::bindings {
namespace {

std::unique_ptr<WorkHandle> publish_record(Record record, const std::string& plan = {}) {
  return std::make_unique<WorkHandle>(publish(std::move(record), plan), std::vector<Buffer>{});
}

std::unique_ptr<WorkHandle> publish_attribute(const std::string& name, int hook, uint32_t length, double initial,
                                              const std::string& source, double first, double second) {
  return publish_record(AttributeDefinition{name, static_cast<Hook>(hook), length, initial, source, first, second});
}

std::unique_ptr<WorkHandle> publish_values(const std::string& name, std::vector<std::pair<uint32_t, double>> elements) {
  return publish_record(ExogenousUpdate{name, std::move(elements)});
}

std::unique_ptr<WorkHandle> publish_schedule(const std::string& name, int collective, int root,
                                             const std::string& algorithm, const py::bytes& plan,
                                             const std::string& usable, const std::string& score,
                                             const std::string& replaces) {
  ScheduleDefinition schedule;
  schedule.name = name;
  schedule.collective = static_cast<Collective>(collective);
  schedule.root = root;
  schedule.algorithm = algorithm;
  schedule.usable = usable;
  schedule.score = score;
  schedule.replaces = replaces;
  return publish_record(std::move(schedule), plan);
}

void wait_for_publications(double seconds) {
  Status status;
  {
    py::gil_scoped_release release;
    status = publish_sync(seconds);
  }
  check(status);
}

}  // namespace

void bind_publish(py::module_& module) {
  module.def("publish_attribute", &publish_attribute);
  module.def("publish_values", &publish_values);
  module.def("publish_schedule", &publish_schedule);
  module.def("publish_removal", [](const std::string& name) { return publish_record(ScheduleRemoval{name}); });
  module.def("publish_sync", &wait_for_publications);
}

}  // namespace theseus::bindings
