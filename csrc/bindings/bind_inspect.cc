// What the commands `theseus env`, `theseus info` and `theseus explain` show: settings, identity, coverage, the
// policy's choice.
#include <dlfcn.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "base/env.h"
#include "bindings/errors.h"
#include "bindings/module.h"
#include "net/interfaces.h"
#include "observe/counters.h"
#include "policy/choose.h"

namespace py = pybind11;

namespace theseus::bindings {

namespace {

py::list settings_list() {
  py::list rows;
  for (const SettingDescription& setting : describe_settings()) {
    rows.append(
        py::make_tuple(setting.name, setting.value, setting.default_value, setting.source, setting.documentation));
  }
  return rows;
}

// {"collectives": {name: {requests, bytes, failures}}, "flows": [{host, rail, bytes, messages, backlogged_seconds}]}
py::dict counters() {
  const CounterSnapshot snapshot = take_snapshot();
  py::dict collectives;
  for (const CollectiveSnapshot& each : snapshot.collectives) {
    py::dict row;
    row["requests"] = each.requests;
    row["bytes"] = each.bytes;
    row["failures"] = each.failures;
    collectives[name_of(each.collective)] = row;
  }
  py::list flows;
  for (const FlowSnapshot& each : snapshot.flows) {
    py::dict row;
    row["host"] = each.host;
    row["rail"] = each.rail;
    row["bytes"] = each.bytes;
    row["messages"] = each.messages;
    row["backlogged_seconds"] = static_cast<double>(each.backlogged_ns) * 1e-9;
    flows.append(row);
  }
  py::dict all;
  all["collectives"] = collectives;
  all["flows"] = flows;
  return all;
}

// (name, "native" | "unsupported" | "forward", NCCL release that brought it), from the table that makes the exports.
py::list api_functions() {
  py::list rows;
#define NCCL_FUNCTION(disposition, version, type, name, ...) rows.append(py::make_tuple(#name, #disposition, version));
#include "nccl_api/nccl_api.def"
  return rows;
}

std::vector<std::pair<std::string, std::vector<std::string>>> local_rails() {
  std::vector<std::pair<std::string, std::vector<std::string>>> rails;
  for (const Nic& nic : take(local_nics())) {
    std::vector<std::string> addresses;
    for (const Address& address : nic.addresses) addresses.push_back(address.to_string());
    rails.emplace_back(nic.name, std::move(addresses));
  }
  return rails;
}

py::dict choose_algorithm(int collective, uint64_t bytes, int ranks, int hosts, int rails, const std::string& algo) {
  if (collective < 0 || collective >= kCollectives) {
    throw StatusError(Status::argument("explain: " + std::to_string(collective) + " is no collective"));
  }
  RequestShape request;
  request.collective = static_cast<Collective>(collective);
  request.bytes = bytes;
  request.topology = {ranks, hosts, ranks % hosts == 0 ? ranks / hosts : 0, rails};
  const Choice choice = choose(request, take(parse_algo(algo)));
  py::list candidates;
  for (const Candidate& each : choice.candidates) {
    candidates.append(py::make_tuple(each.algorithm, each.usable, each.score, each.reason));
  }
  py::dict found;
  found["chosen"] = choice.algorithm;
  found["reason"] = choice.reason;
  found["candidates"] = candidates;
  return found;
}

// The shared library that holds the runtime, as the loader found it.
std::string runtime_path() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&describe_settings), &info) == 0 || info.dli_fname == nullptr) return "";
  return info.dli_fname;
}

}  // namespace

void bind_inspect(py::module_& module) {
  module.def("describe_settings", &settings_list);
  module.def("counters", &counters);
  module.def("settings_warnings", &settings_warnings);
  module.def("reload_settings", &reload_settings);
  module.def("api_functions", &api_functions);
  module.def("host_identity", &host_identity);
  module.def("host_name", &host_name);
  module.def("local_rails", &local_rails);
  module.def("explain", &choose_algorithm, py::arg("collective"), py::arg("bytes"), py::arg("ranks"), py::arg("hosts"),
             py::arg("rails"), py::arg("algo") = "");
  module.def("runtime_path", &runtime_path);
}

}  // namespace theseus::bindings
