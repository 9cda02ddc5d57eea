"""Which rank this process is, and how the ranks of one launch agree on a unique id.

`discover` is a pure function of the environment. The order is: explicit arguments, torchrun (RANK, WORLD_SIZE), Open
MPI (OMPI_COMM_WORLD_*), PMI (MPICH, Intel MPI), SLURM.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from theseus_py.errors import InvalidArgument, InvalidUsage, SystemError_, Timeout

__all__ = ["Place", "discover", "exchange_unique_id"]

_UNIQUE_ID_BYTES = 128


@dataclass(frozen=True)
class Place:
    """Where a process stands in its launch. `address` and `port`, where known, say where rank 0 can be reached."""

    rank: int
    ranks: int
    local_rank: int
    local_ranks: int | None
    source: str
    job: str
    address: str | None = None
    port: int | None = None


@dataclass(frozen=True)
class _Launcher:
    source: str
    rank: str
    ranks: str
    local_rank: str
    local_ranks: str
    jobs: tuple[str, ...]


_LAUNCHERS = (
    _Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", ("TORCHELASTIC_RUN_ID",)),
    _Launcher(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    ),
    _Launcher("PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ("PMI_PORT", "HYDRA_LAUNCHER_ID")),
    _Launcher(
        "SLURM",
        "SLURM_PROCID",
        "SLURM_NTASKS",
        "SLURM_LOCALID",
        "SLURM_NTASKS_PER_NODE",
        ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ),
)


def discover(environ: Mapping[str, str], *, rank: int | None = None, ranks: int | None = None) -> Place:
    """Return this process's place. Explicit `rank` and `ranks` win over every launcher's variables.

    Raises InvalidUsage where nothing names a rank, InvalidArgument for values that make no sense.
    """
    if (rank is None) != (ranks is None):
        raise InvalidArgument("rank and ranks must be given together")
    if rank is not None and ranks is not None:
        local = _integer(environ, "LOCAL_RANK")
        place = Place(rank, ranks, rank if local is None else local, None, "arguments", _job(environ, ()))
        return _checked(place, environ)
    for launcher in _LAUNCHERS:
        found_rank = _integer(environ, launcher.rank)
        found_ranks = _integer(environ, launcher.ranks)
        if found_rank is None or found_ranks is None:
            continue
        local_rank = _integer(environ, launcher.local_rank)
        local_ranks = _local_ranks(environ, launcher)
        if local_rank is None:
            local_rank = found_rank if local_ranks is None else found_rank % max(1, local_ranks)
        job = _job(environ, launcher.jobs)
        return _checked(Place(found_rank, found_ranks, local_rank, local_ranks, launcher.source, job), environ)
    half = [name for each in _LAUNCHERS for name in (each.rank, each.ranks) if name in environ]
    hint = f" ({', '.join(half)} alone is not enough)" if half else ""
    raise InvalidUsage(
        f"no launcher's variables name a rank{hint}: start with torchrun, mpirun or srun, set RANK and WORLD_SIZE, "
        "or call Communicator.init with explicit ranks"
    )


def _checked(place: Place, environ: Mapping[str, str]) -> Place:
    if place.ranks < 1 or not 0 <= place.rank < place.ranks:
        raise InvalidArgument(f"{place.source} says rank {place.rank} of {place.ranks} ranks, which cannot be")
    address = environ.get("MASTER_ADDR") or None
    port = _integer(environ, "MASTER_PORT")
    if port is not None and not 0 < port < 65536:
        raise InvalidArgument(f"MASTER_PORT={port} is not a port")
    if address is None and place.source == "SLURM":
        address = _first_host(environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or "")
    if port is None and address is not None:
        # The same on every rank, and another one for another job.
        port = 20000 + int.from_bytes(hashlib.sha256(place.job.encode()).digest()[:2], "big") % 20000
    return Place(place.rank, place.ranks, place.local_rank, place.local_ranks, place.source, place.job, address, port)


def _integer(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name)
    if text is None or not text.strip():
        return None
    try:
        return int(text)
    except ValueError:
        raise InvalidArgument(f"{name}={text!r} is not a number") from None


def _local_ranks(environ: Mapping[str, str], launcher: _Launcher) -> int | None:
    if launcher.source != "SLURM":
        return _integer(environ, launcher.local_ranks)
    # "4", or "4(x2),3" over the nodes: only an even spread tells every rank the same number.
    text = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_NTASKS_PER_NODE") or ""
    match = re.fullmatch(r"(\d+)(\(x\d+\))?", text.strip())
    return int(match.group(1)) if match else None


def _job(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    parts = [environ["THESEUS_JOB_ID"]] if environ.get("THESEUS_JOB_ID") else [environ.get(name, "") for name in names]
    return "/".join([*parts, environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")])


def _first_host(nodes: str) -> str | None:
    """Return the first name of SLURM's compact list: "gpu[07-09,12],cpu1" gives gpu07."""
    match = re.match(r"([^\[,]+)(?:\[(\d+))?", nodes)
    return match.group(1) + (match.group(2) or "") if match else None


# --- The exchange: rank 0 listens, every other rank asks it for the id.

# Ports tried after MASTER_PORT, which torch's store or torchrun itself may hold.
_CANDIDATE_PORTS = 8
_MAGIC = b"THESEUS1"
_QUESTION = struct.Struct("!8s16sI")
_exchanges: dict[str, int] = {}


def exchange_unique_id(place: Place, create: Callable[[], bytes], timeout: float = 300.0) -> bytes:
    """Return the unique id that rank 0 made with `create`, on every rank. Call it equally often on each.

    Over a socket that only this machine sees where all ranks are local and nothing else is known, else over TCP at
    `address` and the ports above `port`. Raises Timeout when ranks are missing after `timeout` seconds.
    """
    if place.ranks == 1:
        return create()
    count = _exchanges[place.job] = _exchanges.get(place.job, 0) + 1
    local = place.address is None
    if local and place.local_ranks != place.ranks:
        raise InvalidUsage(
            f"{place.source} started ranks on several hosts, and nothing says where rank 0 is: set MASTER_ADDR and "
            "MASTER_PORT to an address and a free port of rank 0's host (mpirun -x MASTER_ADDR=... -x MASTER_PORT=...)"
        )
    # Ranks of one local launch have one parent, where the launcher gave the job no name.
    job = place.job if place.job.strip("/") or not local else f"parent {os.getppid()}"
    key = hashlib.sha256(f"{place.source}|{job}|{place.ranks}|{count}".encode()).digest()[:16]
    deadline = time.monotonic() + timeout
    if place.rank == 0:
        unique_id = create()
        with contextlib.closing(_listen(place, key)) as listener:
            _serve(listener, place, key, unique_id, deadline)
        return unique_id
    return _ask(place, key, deadline)


def _local_name(key: bytes) -> str:
    # Abstract: no file, so nothing is left behind.
    return f"\0theseus-{os.getuid()}-{key.hex()}"


def _listen(place: Place, key: bytes) -> socket.socket:
    if place.address is None:
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(_local_name(key))
        except OSError as error:
            listener.close()
            raise SystemError_(f"another process already serves the rendezvous of this launch: {error}") from None
        listener.listen(place.ranks)
        return listener
    reasons = []
    for address in _addresses(place):
        listener = socket.socket(address[0])
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address[1])
            listener.listen(place.ranks)
        except OSError as error:
            listener.close()
            reasons.append(f"{address[1][1]}: {error.strerror}")
            continue
        return listener
    raise SystemError_(
        f"rank 0 cannot listen at MASTER_ADDR={place.address} on any port after {place.port} ({'; '.join(reasons)})"
    )


def _addresses(place: Place) -> Iterator[tuple[int, tuple[str, int]]]:
    assert place.address is not None and place.port is not None
    try:
        found = socket.getaddrinfo(place.address, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InvalidArgument(f"MASTER_ADDR={place.address!r} cannot be resolved: {error}") from None
    for offset in range(1, _CANDIDATE_PORTS + 1):
        port = place.port + offset if place.port + offset < 65536 else place.port - offset
        for family, _, _, _, address in found:
            yield family, (str(address[0]), port)


def _serve(listener: socket.socket, place: Place, key: bytes, unique_id: bytes, deadline: float) -> None:
    missing = set(range(1, place.ranks))
    while missing:
        left = deadline - time.monotonic()
        if left <= 0:
            raise Timeout(f"ranks {sorted(missing)} did not ask rank 0 for the unique id in time")
        listener.settimeout(min(left, 1.0))
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        with connection:
            rank = _answer(connection, key, unique_id)
            missing.discard(rank)


def _answer(connection: socket.socket, key: bytes, unique_id: bytes) -> int:
    """Serve one connection; strangers get nothing. Returns the rank served, or 0."""
    # A peer asks at once; whoever is silent may not keep the others waiting.
    connection.settimeout(0.5)
    with contextlib.suppress(OSError):
        magic, asked, rank = _QUESTION.unpack(_read(connection, _QUESTION.size))
        if magic == _MAGIC and asked == key:
            connection.sendall(_MAGIC + unique_id)
            # The peer's last word: it has read the id.
            _read(connection, 1)
            return int(rank)
    return 0


def _ask(place: Place, key: bytes, deadline: float) -> bytes:
    pause = 0.005
    while time.monotonic() < deadline:
        targets: list[tuple[int, str | tuple[str, int]]] = (
            [(socket.AF_UNIX, _local_name(key))] if place.address is None else [*_addresses(place)]
        )
        for family, address in targets:
            with contextlib.suppress(OSError), socket.socket(family) as connection:
                connection.settimeout(2.0)
                connection.connect(address)
                connection.sendall(_QUESTION.pack(_MAGIC, key, place.rank))
                answer = _read(connection, len(_MAGIC) + _UNIQUE_ID_BYTES)
                if answer.startswith(_MAGIC):
                    connection.sendall(b"!")
                    return answer[len(_MAGIC) :]
        time.sleep(pause)
        pause = min(pause * 1.5, 0.2)
    where = "on this machine" if place.address is None else f"at {place.address}, ports after {place.port}"
    raise Timeout(f"rank 0 did not answer {where}; is it running?")


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionError("the other side closed the connection")
        data += more
    return data
