// _core.simulate_agreement: what benchmarks/agreement.py asks for sizes that no machine at hand has.
#include <pybind11/pybind11.h>

#include "bindings/errors.h"
#include "bindings/module.h"
#include "context/agreement_cost.h"

namespace py = pybind11;

namespace theseus::bindings {
namespace {

py::dict simulate_agreement(int ranks, int ranks_per_host, bool changes, double local, double remote, double handling) {
  const AgreementShape shape{.ranks = ranks, .ranks_per_host = ranks_per_host, .changes = changes};
  const AgreementCosts costs{
      .local_message = local, .remote_message = remote, .receiving = handling, .sending = handling};
  const AgreementRun run = take(run_agreement(shape, costs));
  py::dict result;
  result["latency"] = run.latency;
  result["mean_messages"] = run.mean_messages;
  result["most_messages"] = run.most_messages;
  result["remote_messages"] = run.remote_messages;
  return result;
}

}  // namespace

void bind_agreement(py::module_& module) {
  module.def("simulate_agreement", &simulate_agreement, py::arg("ranks"), py::arg("ranks_per_host"), py::arg("changes"),
             py::arg("local"), py::arg("remote"), py::arg("handling"));
}

}  // namespace theseus::bindings
