// What the files of this folder offer each other: one bind function a file, all called by bind_core.cc.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "base/result.h"
#include "schedule/algorithm.h"
#include "schedule/plan.h"
#include "schedule/topology.h"

namespace theseus::resccl {

void bind_errors(pybind11::module_& module);
void bind_plans(pybind11::module_& module);
void bind_compiler(pybind11::module_& module);
void bind_verifier(pybind11::module_& module);

// The dicts of _core.pyi. Each field is checked for presence, type and range; ValueError names the field.
Plan plan_of(const pybind11::dict& dict);
pybind11::dict dict_of(const Plan& plan);
Algorithm algorithm_of(const pybind11::dict& dict);
pybind11::dict dict_of(const Algorithm& algorithm);
// (n, 6): src, dst, step, chunk, op, rail.
pybind11::array_t<int32_t> array_of_transfers(const std::vector<Transfer>& transfers);
Topology topology_of(const pybind11::dict& dict);
Collective collective_of(const std::string& name);

}  // namespace theseus::resccl
