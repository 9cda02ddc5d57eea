"""The other process of the IPC check: adds one to each of 100 bytes behind a handle, at an offset."""

from __future__ import annotations

import sys

import numpy as np

from theseus_py import device


def main() -> None:
    """`python -m benchmarks.gpu.ipc_child HANDLE OFFSET`, the handle as hexadecimal digits."""
    driver = device.driver()
    handle, offset = bytes.fromhex(sys.argv[1]), int(sys.argv[2])
    base = driver.import_memory(0, handle)
    if driver.import_memory(0, handle) != base:
        sys.exit("importing a handle twice gave two addresses")
    values = np.empty(100, np.uint8)
    driver.copy(0, values.ctypes.data, base + offset, values.nbytes, 0)
    driver.synchronize_stream(0, 0)
    values += 1
    driver.copy(0, base + offset, values.ctypes.data, values.nbytes, 0)
    driver.synchronize_stream(0, 0)
    driver.release_import(0, base)
    driver.release_import(0, base)


if __name__ == "__main__":
    main()
