// theseus_py._core: the Python face of the runtime. theseus_py/_core.pyi documents every name.
#include <pybind11/pybind11.h>

#include "bindings/module.h"

PYBIND11_MODULE(_core, module) {
  using namespace theseus::bindings;
  module.doc() = "Native core of theseus_py; use theseus_py.Communicator, not this module.";
  bind_errors(module);
  bind_work(module);
  bind_memory(module);
  bind_driver(module);
  bind_gpu_kernels(module);
  bind_group(module);
  bind_communicator(module);
  bind_collectives(module);
  bind_pointers(module);
  bind_inspect(module);
  bind_kernels(module);
  bind_policy(module);
  bind_publish(module);
  bind_agreement(module);
  bind_flows(module);
  bind_context(module);
}
