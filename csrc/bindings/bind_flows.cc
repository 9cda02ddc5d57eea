// What the host's agent and the demo need of the transport: flow pages, and the speed of virtual NICs.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "bindings/errors.h"
#include "bindings/module.h"
#include "transport/flow_page.h"
#include "transport/pacing.h"

namespace py = pybind11;

namespace theseus::bindings {

namespace {

py::dict row_of(const FlowSnapshot& flow) {
  py::dict row;
  row["identity"] = flow.identity;
  row["host"] = flow.host;
  row["rail"] = flow.rail;
  row["bytes"] = flow.bytes;
  row["acknowledged"] = flow.acknowledged;
  row["messages"] = flow.messages;
  row["backlogged_ns"] = flow.backlogged_ns;
  row["backlogged_bytes"] = flow.backlogged_bytes;
  row["backlogged_ports"] = flow.backlogged_ports;
  row["suspect"] = flow.suspect;
  row["rescued_messages"] = flow.rescued_messages;
  row["rescued_bytes"] = flow.rescued_bytes;
  return row;
}

py::list rows_of(const FlowPageReader& page) {
  py::list rows;
  for (const FlowSnapshot& flow : page.read().flows) rows.append(row_of(flow));
  return rows;
}

py::dict head_of(const FlowPageReader& page) {
  const FlowPageReader::Contents contents = page.read();
  py::dict head;
  head["pid"] = contents.pid;
  head["identity"] = contents.identity;
  head["host"] = contents.host;
  head["rates"] = contents.rates;
  return head;
}

Direction direction_named(const std::string& name) {
  if (name == "both") return Direction::Both;
  if (name == "egress") return Direction::Egress;
  if (name == "ingress") return Direction::Ingress;
  throw StatusError(Status::argument("direction is 'both', 'egress' or 'ingress', not '" + name + "'"));
}

// A bucket reads 0 as "no limit", so a dead NIC gets one byte a second.
uint64_t bucket_rate(const py::object& rate) {
  if (rate.is_none()) return 0;
  const auto value = rate.cast<double>();
  if (!(value >= 0) || value > 1e15) {
    throw StatusError(Status::argument("the speed of a NIC is bytes per second from 0 on, or None for no limit"));
  }
  return static_cast<uint64_t>(std::max(value, 1.0));
}

void set_nic_rate(const std::string& host, int rail, const py::object& rate, const std::string& direction) {
  const Direction which = direction_named(direction);
  const uint64_t bytes_per_second = bucket_rate(rate);
  Status status;
  {
    const py::gil_scoped_release unlocked;
    status = Pacing::set_rate_of(host, rail, bytes_per_second, which);
  }
  check(status);
}

}  // namespace

void bind_flows(py::module_& module) {
  py::class_<FlowPageReader>(module, "FlowPage")
      .def(py::init([](int fd) { return std::make_unique<FlowPageReader>(take(FlowPageReader::open(fd))); }),
           py::arg("fd"))
      .def("head", &head_of)
      .def("read", &rows_of);
  module.def("flow_page_fd", &flow_page_fd);
  module.def("set_nic_rate", &set_nic_rate, py::arg("host"), py::arg("rail"), py::arg("rate"),
             py::arg("direction") = "both");
}

}  // namespace theseus::bindings
