"""Builds the fake CUDA libraries for one installation of PyTorch: python build.py TORCH_FOLDER OUT_FOLDER.

PyTorch's CUDA build links a dozen of NVIDIA's libraries. The runtime and the driver are ours (cudart.c, cuda.c). Those
of the others that are not installed become stubs, whose functions return 1, an error in all of them; so `pip install
--no-deps torch` is enough, a tenth of the whole.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent
NOT_SUPPORTED = 801  # cudaErrorNotSupported, and the driver's error of that number
STUB_ERROR = 1
DRIVER = "libcuda.so.1"

# Libraries whose symbols carry no version are told by their prefixes; NVSHMEM's version is not its file's name.
_PREFIXES = {"cuFile": "libcufile.so.0", "cusparseLt": "libcusparseLt.so.0", "nvshmem": "libnvshmem_host.so.3"}
_VERSIONS = {"NVSHMEM": "libnvshmem_host.so.3"}
_NVIDIA = re.compile(r"lib(cu|nv)\w+\.so\.\d+")
_NEEDED = re.compile(r"\(NEEDED\).*\[(.*)\]")


class Wanted:
    """What PyTorch's libraries want from NVIDIA's: names by library (soname), and the version of these names."""

    def __init__(self, folder: Path) -> None:
        """Read the libraries of torch/lib."""
        self.sonames: set[str] = set()
        self.names: dict[str, set[str]] = defaultdict(set)
        self.version: dict[str, str] = {}
        for library in sorted(folder.glob("*.so")):
            self.sonames |= {name for name in _NEEDED.findall(_run("readelf", "-dW", library)) if _NVIDIA.match(name)}
            for line in _run("nm", "-D", "--undefined-only", library).splitlines():
                self._add(line.split()[-1])
        # The driver's functions are asked for by name, at run time.
        texts = re.findall(rb"\0(cu[A-Z][A-Za-z0-9]+(?:_v\d)?)(?=\0)", (folder / "libc10_cuda.so").read_bytes())
        self.names[DRIVER] |= {text.decode() for text in texts}

    def _add(self, symbol: str) -> None:
        name, _, version = symbol.partition("@")
        version = version.lstrip("@")
        soname = _VERSIONS.get(version, version if _NVIDIA.fullmatch(version) else None)
        if soname is not None:
            self.version[soname] = version
        elif not version:
            soname = next((file for prefix, file in _PREFIXES.items() if name.startswith(prefix)), None)
            if soname is None and re.match(r"cu[A-Z]", name):
                soname = DRIVER
        if soname is not None:
            self.names[soname].add(name)

    @property
    def runtime(self) -> str:
        """The soname of the CUDA runtime."""
        return next(name for name in self.sonames if name.startswith("libcudart."))


def _run(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _compile(out: Path, soname: str, version: str | None, sources: Iterable[Path], *flags: str) -> None:
    script = out / f"{soname}.map"
    script.write_text(f"{version or ''} {{ global: *; }};\n")
    link = ["-shared", "-ldl", f"-Wl,-soname,{soname}", f"-Wl,--version-script={script}"]
    _run("cc", "-O1", "-fPIC", "-pthread", *flags, *sources, *link, "-o", out / soname)


def _stubs(out: Path, soname: str, names: Iterable[str], result: int) -> Path:
    source = out / f"{soname}.c"
    source.write_text("".join(f"int {name}(void) {{ return {result}; }}\n" for name in sorted(names)))
    return source


def _defined_in(source: Path) -> set[str]:
    return set(re.findall(r"\b(__cuda\w+|cu\w+)\(", source.read_text()))


def build(torch: Path, out: Path) -> dict[str, str]:
    """Build for the PyTorch in a folder; return what its environment needs besides our libnccl.so.2 at the end.

    Raises:
        OSError, subprocess.CalledProcessError: no compiler, no binutils, or a PyTorch without CUDA.

    """
    wanted = Wanted(torch / "lib")
    major = wanted.runtime.rpartition(".")[2]
    installed = {path.name for path in torch.parent.glob("nvidia/*/lib/*.so.*")}
    for soname, own in ((wanted.runtime, HERE / "cudart.c"), (DRIVER, HERE / "cuda.c")):
        rest = _stubs(out, soname, wanted.names[soname] - _defined_in(own), NOT_SUPPORTED)
        _compile(out, soname, wanted.version.get(soname), [own, rest], f"-DFAKE_CUDA_MAJOR={major}")
    for soname in wanted.sonames - installed - {wanted.runtime, DRIVER}:
        _compile(out, soname, wanted.version.get(soname), [_stubs(out, soname, wanted.names[soname], STUB_ERROR)])
    preload = f"{out / wanted.runtime}:{out / DRIVER}"
    return {"LD_PRELOAD": preload, "LD_LIBRARY_PATH": str(out)}


if __name__ == "__main__":
    Path(sys.argv[2]).mkdir(parents=True, exist_ok=True)
    for _name, _value in build(Path(sys.argv[1]), Path(sys.argv[2]).resolve()).items():
        print(f"export {_name}={_value}")
