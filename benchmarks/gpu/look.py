"""Says what GPUs this process sees, as JSON; ends with 1 and one sentence where there are none."""

from __future__ import annotations

import dataclasses
import json
import sys

from theseus_py import device
from theseus_py.errors import TheseusError


def main() -> None:
    """Print {"gpus": [...], "compiler": "..."}."""
    try:
        driver = device.driver()
        gpus = [dataclasses.asdict(device.describe(ordinal)) for ordinal in range(device.count())]
    except TheseusError as error:
        sys.exit(error.message)
    try:
        compiler = f"Kernels by {driver.compiler_identity(0)}."
    except TheseusError as error:
        compiler = f"No kernels: {error.message}"
    print(json.dumps({"gpus": gpus, "compiler": compiler}))


if __name__ == "__main__":
    main()
