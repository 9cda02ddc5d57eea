// Algorithms and topologies as dicts; transfers as an array, so that large ones cost no Python object each.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "bindings/resccl/fields.h"
#include "bindings/resccl/module.h"

namespace py = pybind11;

namespace theseus::resccl {
namespace {

constexpr py::ssize_t kColumns = 6;  // src, dst, step, chunk, op, rail

void read_transfers(py::handle value, const std::string& who, std::vector<Transfer>& transfers) {
  if (!py::isinstance<py::array>(value)) refuse(who, "transfers is no NumPy array");
  const auto given = py::reinterpret_borrow<py::array>(value);
  if (given.ndim() != 2 || given.shape(1) != kColumns) {
    refuse(who, "transfers must have the shape (n, 6): src, dst, step, chunk, op, rail");
  }
  if (given.dtype().kind() != 'i') refuse(who, "transfers must be signed integers");
  // Widened, never narrowed: a number too large for its field must not wrap around to a good one.
  const auto wide = py::array_t<int64_t, py::array::c_style | py::array::forcecast>::ensure(given);
  if (!wide) throw py::error_already_set();
  const int64_t* row = wide.data();
  transfers.reserve(static_cast<size_t>(wide.shape(0)));
  for (py::ssize_t i = 0; i < wide.shape(0); ++i, row += kColumns) {
    const char* fault = nullptr;
    for (int column = 0; column < 4; ++column) {
      if (row[column] != static_cast<int32_t>(row[column])) fault = "a number that 32 bits do not hold";
    }
    if (row[4] != 0 && row[4] != 1) fault = "an op that is neither 0 (copy) nor 1 (reduce)";
    if (row[5] != static_cast<int16_t>(row[5])) fault = "a rail that 16 bits do not hold";
    if (fault != nullptr) refuse(who, "transfer " + std::to_string(i) + " has " + fault);
    transfers.push_back({static_cast<int32_t>(row[0]), static_cast<int32_t>(row[1]), static_cast<int32_t>(row[2]),
                         static_cast<int32_t>(row[3]), static_cast<TransferOp>(row[4]), static_cast<int16_t>(row[5])});
  }
}

}  // namespace

Collective collective_of(const std::string& name) {
  for (int c = 0; c < kCollectives; ++c) {
    if (name == name_of(static_cast<Collective>(c))) return static_cast<Collective>(c);
  }
  throw StatusError(Status::argument("there is no collective '" + name + "'; one is called AllReduce"));
}

Algorithm algorithm_of(const py::dict& dict) {
  const Fields fields(dict, "algorithm", {"name", "collective", "ranks", "chunks", "root", "transfers"});
  Algorithm algorithm;
  algorithm.name = fields.text("name");
  algorithm.collective = collective_of(fields.text("collective"));
  algorithm.ranks = fields.integer<int32_t>("ranks");
  algorithm.chunks = fields.integer<int32_t>("chunks");
  algorithm.root = fields.integer<int32_t>("root", 0);
  read_transfers(fields.get("transfers"), "algorithm '" + algorithm.name + "'", algorithm.transfers);
  return algorithm;
}

py::array_t<int32_t> array_of_transfers(const std::vector<Transfer>& transfers) {
  py::array_t<int32_t> rows({static_cast<py::ssize_t>(transfers.size()), kColumns});
  int32_t* cell = rows.mutable_data();
  for (const Transfer& t : transfers) {
    for (const int32_t value : {t.src, t.dst, t.step, t.chunk, static_cast<int32_t>(t.op), int32_t{t.rail}}) {
      *cell++ = value;
    }
  }
  return rows;
}

py::dict dict_of(const Algorithm& algorithm) {
  py::dict dict;
  dict["name"] = algorithm.name;
  dict["collective"] = name_of(algorithm.collective);
  dict["ranks"] = algorithm.ranks;
  dict["chunks"] = algorithm.chunks;
  dict["root"] = algorithm.root;
  dict["transfers"] = array_of_transfers(algorithm.transfers);
  return dict;
}

Topology topology_of(const py::dict& dict) {
  const Fields fields(dict, "topology", {"host_of_rank", "rails"});
  Topology topology;
  topology.rails = fields.integer<int16_t>("rails", 1);
  if (topology.rails < 1) refuse("topology", "a host needs at least one rail");
  for (const py::handle host : list(fields.get("host_of_rank"), "topology", "host_of_rank")) {
    topology.host_of_rank.push_back(integer<int32_t>(host, "topology", "host_of_rank"));
  }
  if (topology.host_of_rank.empty()) refuse("topology", "host_of_rank is empty");
  return topology;
}

}  // namespace theseus::resccl
