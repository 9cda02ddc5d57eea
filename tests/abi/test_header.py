"""Our nccl.h against the recorded layout of NCCL's: a program compiled with either runs with either library."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from abi.binding import HEADERS

RECORDED = Path(__file__).with_name("nccl_layout_2.32.3.txt")

LANGUAGES = {
    "c11": ["cc", "-x", "c", "-std=c11"],
    "c17": ["cc", "-x", "c", "-std=c17"],
    "c++17": ["c++", "-x", "c++", "-std=c++17"],
    "c++20": ["c++", "-x", "c++", "-std=c++20"],
}

# What a program does with the header besides calling it: initializers, the names of types, both null handles.
USES = """
ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
ncclCollConfig_t options = NCCL_COLLCONFIG_INITIALIZER;
ncclSimInfo_t simulation = NCCL_SIM_INFO_INITIALIZER;
ncclEncryptionConfig_t encryption = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
ncclComm_t comm = NCCL_COMM_NULL;
cudaStream_t stream = NULL;
ncclResult_t (*call)(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t) = ncclAllReduce;
"""


def assertions() -> str:
    """Return a static assertion for each recorded size, offset and value."""
    lines = []
    for line in RECORDED.read_text().splitlines():
        if line.startswith("#"):
            continue
        kind, name, number = line.split()
        expression = {"sizeof": f"sizeof({name})", "offsetof": f"offsetof({name.replace('.', ', ', 1)})", "value": name}
        lines.append(f'static_assert((long long)({expression[kind]}) == {number}LL, "{kind} {name}");')
    return "\n".join(lines)


def compile_source(language: str, source: Path, *flags: str) -> None:
    """Compile with every warning an error, or fail with what the compiler says."""
    command = [*LANGUAGES[language], "-Wall", "-Wextra", "-pedantic", "-Werror", *flags, f"-I{HEADERS}"]
    if shutil.which(command[0]) is None:
        pytest.skip(f"no compiler ({command[0]}) is installed")
    done = subprocess.run([*command, "-fsyntax-only", str(source)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("language", LANGUAGES)
def test_layout(language: str, tmp_path: Path) -> None:
    """Every size, offset and value is NCCL's, in C and in C++, without the CUDA toolkit and without a warning."""
    source = tmp_path / "layout.inc"
    source.write_text(f"#include <nccl_device.h>\n#include <assert.h>\n#include <stddef.h>\n{assertions()}\n{USES}")
    compile_source(language, source, "-Wno-missing-field-initializers")


@pytest.mark.parametrize("language", ["c11", "c++17"])
def test_with_the_toolkit(language: str, tmp_path: Path) -> None:
    """Where cuda_runtime.h is found, its stream type is used, and declared once."""
    (tmp_path / "cuda_runtime.h").write_text(
        "#pragma once\n#define FROM_TOOLKIT 1\n"
        "typedef struct CUstream_st* cudaStream_t;\ntypedef struct CUevent_st* cudaEvent_t;\n"
    )
    source = tmp_path / "toolkit.inc"
    source.write_text(f"#include <nccl.h>\n#ifndef FROM_TOOLKIT\n#error not included\n#endif\n{USES}")
    compile_source(language, source, f"-I{tmp_path}", "-Wno-missing-field-initializers")


def test_every_recorded_fact_is_asserted() -> None:
    """The record is not empty, and speaks of the structs whose layout callers depend on."""
    text = assertions()
    for name in ("ncclConfig_t", "ncclCollConfig_t", "ncclUniqueId", "ncclSimInfo_t", "ncclCommProperties_t"):
        assert f"sizeof({name})" in text
    assert text.count("static_assert") > 150
