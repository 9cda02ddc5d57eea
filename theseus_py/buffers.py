"""Memory that peers on the same host can read directly, as NumPy arrays."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from theseus_py import _core
from theseus_py.dtypes import numpy_dtype
from theseus_py.errors import InvalidArgument, InvalidUsage

if TYPE_CHECKING:
    import numpy as np

__all__ = ["empty"]


def empty(shape: int | tuple[int, ...], dtype: Any = "float32") -> np.ndarray[Any, Any]:
    """Return an uninitialised C-ordered NumPy array in memory that ranks of the same host share.

    Collectives on it need no copy between processes. `dtype` is anything NumPy takes, or a name such as "bfloat16"
    (needs ml_dtypes). The memory goes back when the last array over it is collected. Raises SystemError_ where there is
    not enough.
    """
    import numpy as np

    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    if any(extent < 0 for extent in extents):
        raise InvalidArgument(f"empty: shape {extents} has a negative extent")
    element = numpy_dtype(dtype)
    if element.hasobject:
        raise InvalidArgument(f"empty: dtype {element} holds Python objects, which no other process can read")
    if _core.gpu_driver() is not None:
        raise InvalidUsage("empty: THESEUS_DEVICE has buffers on a GPU, where NumPy cannot look: use device.empty()")
    memory = _core.Memory(math.prod(extents) * element.itemsize)
    raw = np.frombuffer(memoryview(memory), dtype=np.uint8)
    return raw.view(element).reshape(extents) if raw.size else np.empty(extents, element)
