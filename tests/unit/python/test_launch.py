"""Rank discovery follows its order, and refuses what makes no sense by name; the id exchange reaches every rank."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from theseus_py import launch
from theseus_py.errors import InvalidArgument, InvalidUsage, Timeout

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-7",
}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "6",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3)",
    "SLURM_JOB_ID": "11",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "gpu[07-09,12]",
}


@pytest.mark.parametrize(
    ("environ", "source", "rank", "ranks", "local_rank", "local_ranks"),
    [
        (TORCHRUN, "torchrun", 3, 8, 1, 2),
        (OPEN_MPI, "Open MPI", 2, 4, 0, 2),
        (PMI, "PMI", 1, 2, 1, 2),
        (SLURM, "SLURM", 5, 6, 1, 2),
        (TORCHRUN | OPEN_MPI | PMI | SLURM, "torchrun", 3, 8, 1, 2),
        (OPEN_MPI | PMI | SLURM, "Open MPI", 2, 4, 0, 2),
        (PMI | SLURM, "PMI", 1, 2, 1, 2),
    ],
)
def test_first_launcher_in_the_order_wins(
    environ: dict[str, str], source: str, rank: int, ranks: int, local_rank: int, local_ranks: int
) -> None:
    place = launch.discover(environ)
    assert (place.source, place.rank, place.ranks) == (source, rank, ranks)
    assert (place.local_rank, place.local_ranks) == (local_rank, local_ranks)


def test_explicit_arguments_win() -> None:
    place = launch.discover(TORCHRUN, rank=0, ranks=2)
    assert (place.source, place.rank, place.ranks) == ("arguments", 0, 2)


def test_address_comes_from_the_environment_or_from_slurm() -> None:
    torchrun = launch.discover(TORCHRUN)
    assert (torchrun.address, torchrun.port) == ("10.0.0.1", 29500)
    slurm = launch.discover(SLURM)
    assert slurm.address == "gpu07"
    assert slurm.port == launch.discover(SLURM | {"SLURM_PROCID": "0"}).port
    assert launch.discover(OPEN_MPI).address is None


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK='x'"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "rank 2 of 2"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "rank -1"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "of 0 ranks"),
        ({**TORCHRUN, "MASTER_PORT": "99999"}, "99999"),
    ],
)
def test_nonsense_is_named(environ: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        launch.discover(environ)


def test_no_launcher_says_what_to_do_and_what_half_was_there() -> None:
    with pytest.raises(InvalidUsage, match="torchrun, mpirun or srun"):
        launch.discover({})
    with pytest.raises(InvalidUsage, match="RANK alone"):
        launch.discover({"RANK": "0"})


def test_rank_and_ranks_go_together() -> None:
    with pytest.raises(InvalidArgument, match="together"):
        launch.discover({}, rank=0)


RANK_PROGRAM = """
import sys
from theseus_py import launch
place = launch.discover(dict(item.split("=", 1) for item in sys.argv[1:]))
for number in range(3):
    print(launch.exchange_unique_id(place, lambda: bytes([number]) * 128, timeout=30).hex())
"""


def run_exchange(environ: dict[str, str], rank_variable: str, ranks: int) -> list[list[str]]:
    """Start one process per rank; return the lines each printed: three ids, one per exchange."""
    processes = []
    for rank in range(ranks):
        arguments = [f"{name}={value}" for name, value in {**environ, rank_variable: str(rank)}.items()]
        command = [sys.executable, "-c", RANK_PROGRAM, *arguments]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate(timeout=60)[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0] * ranks
    return outputs


EXPECTED = [bytes([number]).hex() * 128 for number in range(3)]


def test_exchange_over_tcp_skips_a_port_that_is_taken_and_survives_strangers() -> None:
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        port = squatter.getsockname()[1] - 1
        environ = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        strangers = threading.Thread(target=knock, args=(port + 2,), daemon=True)
        strangers.start()
        assert run_exchange(environ, "RANK", 3) == [EXPECTED] * 3


def knock(port: int) -> None:
    """Connect again and again, say something else, and go."""
    for _ in range(200):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"GET / HTTP/1.0")
        time.sleep(0.01)


def test_exchange_on_one_host_needs_no_address() -> None:
    environ = {"PMI_SIZE": "3", "MPI_LOCALNRANKS": "3", "PMI_PORT": f"job-{os.getpid()}"}
    assert run_exchange(environ, "PMI_RANK", 3) == [EXPECTED] * 3


def test_exchange_over_several_hosts_without_address_says_what_to_set() -> None:
    place = launch.discover(OPEN_MPI)
    with pytest.raises(InvalidUsage, match="MASTER_ADDR"):
        launch.exchange_unique_id(place, lambda: b"")


def test_exchange_gives_up_in_time_when_rank_0_is_missing() -> None:
    place = launch.discover(
        {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "PMI_PORT": f"alone-{os.getpid()}"}
    )
    with pytest.raises(Timeout, match="rank 0 did not answer"):
        launch.exchange_unique_id(place, lambda: b"", timeout=0.3)


def test_one_rank_exchanges_nothing() -> None:
    place = launch.discover({"RANK": "0", "WORLD_SIZE": "1"})
    assert launch.exchange_unique_id(place, lambda: b"mine") == b"mine"
