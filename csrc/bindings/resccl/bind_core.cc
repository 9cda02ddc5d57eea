// resccl._core: the Python face of the compiler. resccl/_core.pyi documents every name.
#include <pybind11/pybind11.h>

#include "bindings/resccl/module.h"

PYBIND11_MODULE(_core, module) {
  using namespace theseus::resccl;
  module.doc() = "Native core of resccl; use resccl.Algorithm and resccl.Plan, not this module.";
  bind_errors(module);
  bind_plans(module);
  bind_compiler(module);
  bind_verifier(module);
}
