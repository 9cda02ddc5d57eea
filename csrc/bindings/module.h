// What the files of this folder offer each other: one bind function per module, all called by bind_core.cc.
#pragma once

#include <pybind11/pybind11.h>

#include "base/result.h"

namespace theseus::bindings {

// The theseus_py.errors exception for a failing status; None for success.
pybind11::object error_of(const Status& status);

void bind_agreement(pybind11::module_& module);
void bind_context(pybind11::module_& module);
void bind_driver(pybind11::module_& module);
void bind_errors(pybind11::module_& module);
void bind_flows(pybind11::module_& module);
void bind_group(pybind11::module_& module);
void bind_gpu_kernels(pybind11::module_& module);
void bind_inspect(pybind11::module_& module);
void bind_kernels(pybind11::module_& module);
void bind_memory(pybind11::module_& module);
void bind_policy(pybind11::module_& module);
void bind_publish(pybind11::module_& module);
void bind_work(pybind11::module_& module);
// Each of these adds its methods to the class that bind_communicator makes, so bind_communicator comes first.
void bind_communicator(pybind11::module_& module);
void bind_collectives(pybind11::module_& module);
void bind_pointers(pybind11::module_& module);

}  // namespace theseus::bindings
