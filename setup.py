"""Packaging: CMake builds the native half, setuptools carries it into the wheel, or the tree if editable.

Settings (environment):
  THESEUS_BUILD_DIR   where CMake builds; default: build/ beside this file, so that a second build is incremental
  THESEUS_CMAKE_ARGS  further arguments for CMake's configuration, split as a shell would
  THESEUS_JOBS        compilers at once; default: the cores this process may use
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools.errors import ExecError

ROOT = Path(__file__).resolve().parent
# Those with native files: an extension `_core` each; theseus_py also holds the libraries and their headers.
PACKAGES = ("theseus_py", "resccl", "flowsim")


def find_tool(name: str) -> str | None:
    """Return the path of a build tool: from this interpreter's environment, else from PATH; None if missing."""
    beside = Path(sysconfig.get_path("scripts")) / name
    return str(beside) if beside.exists() else shutil.which(name)


def require_cmake() -> str:
    """Return the path of CMake, or fail with the way out."""
    cmake = find_tool("cmake")
    if cmake is None:
        raise ExecError("CMake is missing: 'pip install cmake ninja', or let pip build in isolation (the default)")
    return cmake


def cached_settings(build_dir: Path) -> dict[str, str]:
    """Return the settings that an earlier configuration of the build folder remembers; empty for a new folder."""
    cache = build_dir / "CMakeCache.txt"
    if not cache.exists():
        return {}
    return dict(re.findall(r"^([\w.-]+):[A-Z]+=(.*)$", cache.read_text(errors="replace"), re.MULTILINE))


def usable_cores() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class CMakeBuild(build_ext):
    """Build the native half with CMake and install its `wheel` component."""

    def run(self) -> None:
        """Configure, build and install; nothing is compiled again that did not change."""
        build_dir = Path(os.environ.get("THESEUS_BUILD_DIR", ROOT / "build")).resolve()
        build_dir.mkdir(parents=True, exist_ok=True)
        cmake = require_cmake()
        self._configure(cmake, build_dir)
        jobs = os.environ.get("THESEUS_JOBS", str(usable_cores()))
        self._call([cmake, "--build", str(build_dir), "--target", "theseus_wheel", "--parallel", jobs])
        self._call([cmake, "--install", str(build_dir), "--component", "wheel", "--prefix", str(self._destination())])

    def get_outputs(self) -> list[str]:
        """Return the installed native files; for an editable install they lie in the tree and are not recorded."""
        return [] if self._in_tree() else self._native_files(self._destination())

    def get_output_mapping(self) -> dict[str, str]:
        """Return no mapping: CMake installs straight to where the files belong."""
        return {}

    def _in_tree(self) -> bool:
        return bool(self.inplace or getattr(self, "editable_mode", False))

    def _destination(self) -> Path:
        return ROOT if self._in_tree() else Path(self.build_lib).resolve()

    def _native_files(self, root: Path) -> list[str]:
        found = [path for package in PACKAGES for path in root.glob(f"{package}/_core.*.so")]
        found += [path for folder in ("lib", "include") for path in root.glob(f"theseus_py/{folder}/**/*")]
        return sorted(str(path) for path in found if path.is_file())

    def _configure(self, cmake: str, build_dir: Path) -> None:
        """Configure; afresh where the folder is another tree's, generator's or Python's: CMake would refuse it."""
        arguments = [f"-DPython_EXECUTABLE={sys.executable}", f"-Dpybind11_DIR={self._pybind11()}"]
        if self.debug:
            arguments.append("-DCMAKE_BUILD_TYPE=Debug")
        generator = "Unix Makefiles"
        ninja = find_tool("ninja")
        if ninja is not None:
            generator = "Ninja"
            # Named each time: under build isolation the remembered one lies in a folder that is gone.
            arguments.append(f"-DCMAKE_MAKE_PROGRAM={ninja}")
        cached = cached_settings(build_dir)
        same = (
            cached.get("CMAKE_GENERATOR") == generator
            and cached.get("CMAKE_HOME_DIRECTORY") == str(ROOT)
            and cached.get("Python_EXECUTABLE", sys.executable) == sys.executable
        )
        fresh = [] if same or not cached else ["--fresh"]
        extra = shlex.split(os.environ.get("THESEUS_CMAKE_ARGS", ""))
        self._call([cmake, "-S", str(ROOT), "-B", str(build_dir), "-G", generator, *fresh, *arguments, *extra])

    def _pybind11(self) -> str:
        try:
            import pybind11
        except ImportError as error:
            raise ExecError("pybind11 is missing: 'pip install pybind11', or let pip build in isolation") from error
        return str(pybind11.get_cmake_dir())

    def _call(self, command: list[str]) -> None:
        try:
            subprocess.run(command, check=True)
        except subprocess.CalledProcessError as error:
            raise ExecError(
                f"the native build failed (exit status {error.returncode}): {shlex.join(command)}"
            ) from error


class CleanBuild(build):
    """Collect the wheel's files in an empty folder: a module deleted from the tree must not live on in a wheel."""

    def run(self) -> None:
        """Empty the collecting folder, then build; compiled objects lie elsewhere and stay."""
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


setup(
    ext_modules=[Extension(f"{package}._core", sources=[]) for package in PACKAGES],
    cmdclass={"build": CleanBuild, "build_ext": CMakeBuild},
    options={"build": {"build_base": "build/python-package"}},
)
