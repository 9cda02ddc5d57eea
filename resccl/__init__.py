"""ResCCL: write collective algorithms, compile them to plans, prove them, look at them.

    from resccl import Algorithm, Topology, compile
    plan = compile(algorithm, Topology.uniform(hosts=2, gpus=8))

The compiler itself is C++ (csrc/compiler); this is its face.
"""

from importlib import import_module

try:
    import_module("resccl._core")
except ImportError as _error:
    raise type(_error)(f"the native part of resccl cannot be loaded ({_error}); build it: pip install .") from _error

from resccl.compiler import Analysis, analyse, built_in, built_in_names, compile
from resccl.errors import AlgorithmError, LimitError, ResCCLError, VerificationError
from resccl.lang import Algorithm, Op, Phase, Transfer
from resccl.plan import Plan
from resccl.topology import Topology

__all__ = [
    "Algorithm",
    "AlgorithmError",
    "Analysis",
    "LimitError",
    "Op",
    "Phase",
    "Plan",
    "ResCCLError",
    "Topology",
    "Transfer",
    "VerificationError",
    "analyse",
    "built_in",
    "built_in_names",
    "compile",
]
