"""What the ranks of test_faults.py do: each function is the program of one rank.

Started as `bodies.py NAME RANK RANKS ARGUMENTS`. A rank reports with say() and waits for the test with hear().
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import theseus_py
from theseus_py import Communicator, create_unique_id


def say(kind: str, **values: Any) -> None:
    """Report to the test; from any thread, so in one write."""
    os.write(1, (json.dumps({"kind": kind, **values}) + "\n").encode())


def hear() -> dict[str, Any]:
    """Wait for the test's next message."""
    line = sys.stdin.readline()
    if not line:
        os._exit(3)  # the test is gone
    message: dict[str, Any] = json.loads(line)
    return message


def meet(rank: int) -> bytes:
    """The unique id that rank 0 makes."""
    if rank > 0:
        return bytes.fromhex(hear()["id"])
    unique_id = create_unique_id()
    say("id", id=unique_id.hex())
    return unique_id


def join(rank: int, ranks: int) -> Communicator:
    """Join the communicator of all ranks, and say so."""
    communicator = Communicator.init(meet(rank), ranks, rank)
    say("ready")
    return communicator


def attempt(call: Callable[[], Any], kind: str = "outcome") -> bool:
    """Report how a call ends: True if well."""
    try:
        call()
    except Exception as error:
        say(kind, error=type(error).__name__, message=str(error))
        return False
    say(kind, error=None, message="")
    return True


def until_it_fails(rank: int, ranks: int, elements: int, pause: float, shrink_by: list[int]) -> None:
    """All-reduce again and again; once that fails, go on with those that are left."""
    communicator = join(rank, ranks)
    if hear().get("use", True):
        communicator.all_reduce(np.ones(4, np.float32))
        say("used")
    data = np.ones(elements, np.float32)

    def loop() -> None:
        while True:
            communicator.all_reduce(data, op="max")
            time.sleep(pause)

    hear()
    say("looping")
    attempt(loop)
    go_on_without(communicator, ranks, shrink_by)


def go_on_without(communicator: Communicator, ranks: int, dead: list[int]) -> None:
    """Shrink, compute, and leave."""
    error = communicator.async_error
    say("async_error", error=type(error).__name__)
    left = communicator.shrink(dead, abort=True)
    communicator.abort()
    total = np.ones(3, np.float32)
    left.all_reduce(total)
    assert left.ranks == ranks - len(dead) and (total == left.ranks).all()
    left.destroy()
    say("shrunk")


def only_init(rank: int, ranks: int) -> None:
    """Join, once told to."""
    unique_id = meet(rank)
    hear()
    say("joining")
    attempt(lambda: Communicator.init(unique_id, ranks, rank).destroy())


def init_as(rank: int, ranks: int, claims: list[list[int]]) -> None:
    """Join as another rank, of another number of ranks, than all the others think."""
    unique_id = meet(rank)
    its_rank, its_ranks = claims[rank]
    attempt(lambda: Communicator.init(unique_id, its_ranks, its_rank).destroy())


def init_twice(rank: int, ranks: int) -> None:
    """Use a unique id for a second communicator, after the first is ready."""
    unique_id = meet(rank)
    first = Communicator.init(unique_id, ranks, rank)
    say("ready")
    attempt(lambda: Communicator.init(unique_id, ranks, rank).destroy())
    first.all_reduce(np.ones(2, np.float32))
    first.destroy()
    say("first_works")


def late(rank: int, ranks: int, seconds: float) -> None:
    """The last rank sleeps, alive, far longer than the heartbeat timeout."""
    communicator = join(rank, ranks)
    if rank == ranks - 1:
        time.sleep(seconds)
    data = np.ones(1000, np.float32)
    attempt(lambda: communicator.all_reduce(data))
    assert (data == ranks).all()
    communicator.destroy()


def abandoned(rank: int, ranks: int) -> None:
    """All but the last rank wait in a collective that it never calls."""
    communicator = join(rank, ranks)
    if rank < ranks - 1:
        attempt(communicator.barrier)
    hear()
    communicator.abort()
    say("left")


def abort_from_aside(rank: int, ranks: int) -> None:
    """Rank 0 aborts while its call hangs; the others, which hang too, see that it left."""
    communicator = join(rank, ranks)
    if rank == ranks - 1:
        hear()
        communicator.abort()
        say("left")
        return
    if rank == 0:
        threading.Timer(1.0, lambda: (communicator.abort(), say("aborted"))).start()
    attempt(communicator.barrier)
    if rank == 0:
        time.sleep(0.5)
    communicator.abort()
    say("left")


def mismatched(rank: int, ranks: int, calls: list[str]) -> None:
    """Every rank makes the call that is written for it."""
    communicator = join(rank, ranks)
    a, b = np.ones(4096, np.float32), np.zeros(4096 * ranks, np.float32)
    known = {
        "sum": lambda: communicator.all_reduce(a),
        "short": lambda: communicator.all_reduce(a[:4090]),
        "int32": lambda: communicator.all_reduce(a.view(np.int32)),
        "max": lambda: communicator.all_reduce(a, op="max"),
        "gather": lambda: communicator.all_gather(a, b),
        "broadcast 0": lambda: communicator.broadcast(a, 0),
        "broadcast 1": lambda: communicator.broadcast(a, 1),
        "reduce 0": lambda: communicator.reduce(a, root=0),
        "reduce 1": lambda: communicator.reduce(a, root=1),
        "barrier": communicator.barrier,
        "large": lambda: communicator.all_reduce(np.ones(1 << 20, np.float32)),
    }

    def all_calls() -> None:
        for name in calls[rank].split(","):
            known[name]()
        communicator.barrier()

    attempt(all_calls)
    communicator.abort()
    say("left")


def forked(rank: int, ranks: int, way: str) -> None:
    """Fork once the library runs: the child may call, and end, without harm to the parent."""
    communicator = join(rank, ranks)
    communicator.barrier()
    if way == "subprocess":
        assert subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, check=True).stdout == b"1\n"
    else:
        _fork(communicator, way)
    data = np.ones(100_000, np.float32)
    communicator.all_reduce(data)
    assert (data == ranks).all()
    communicator.destroy()
    say("done")


def _fork(communicator: Communicator, way: str) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            communicator.barrier()
            answer = "no error"
        except theseus_py.TheseusError as error:
            answer = type(error).__name__
        os.write(writing, answer.encode())
        if way == "abort":
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.abort()
        if way == "destroy":
            communicator.destroy()
        if way == "_exit":
            os._exit(0)
        sys.stdout.flush()
        sys.exit(0)
    os.close(writing)
    answer = os.read(reading, 100).decode()
    assert answer == "InvalidUsage", answer
    status = os.waitpid(child, 0)[1]
    assert (os.WTERMSIG(status) == signal.SIGABRT) if way == "abort" else status == 0, status


def limited(rank: int, ranks: int, files: int, memory: int) -> None:
    """Join with few descriptors, or little memory: works, or says what is missing."""
    unique_id = meet(rank)
    hear()
    if files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    if memory:
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + memory, size + memory))
    attempt(lambda: Communicator.init(unique_id, ranks, rank).barrier())
    os._exit(0)


def no_destroy(rank: int, ranks: int, way: str) -> None:
    """End without destroying the communicator, in several ways."""
    communicator = join(rank, ranks)
    communicator.all_reduce(np.ones(10, np.float32))
    if way == "work":  # and with a call outstanding that can never end
        communicator.recv(np.ones(10, np.float32), (rank + 1) % ranks, async_op=True)
    if way == "thread":  # and with a thread inside such a call
        hanging = threading.Thread(target=lambda: attempt(communicator.barrier), daemon=True)
        if rank == 0:
            hanging.start()
            time.sleep(0.2)
    say("leaving")
    if way == "global":
        globals()["kept"] = communicator


def leave_early(rank: int, ranks: int) -> None:
    """Rank 0 has done its part of a broadcast, and its process ends, before rank 1 takes any part in it."""
    communicator = join(rank, ranks)
    data = np.full(200, 7.0 if rank == 0 else 0.0, np.float32)
    if rank == 1:
        hear()
        time.sleep(2)
    attempt(lambda: communicator.broadcast(data, 0))
    assert (data == 7).all()
    communicator.destroy()


def many_small(rank: int, ranks: int, rounds: int) -> None:
    """All ranks on one core."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    communicator = join(rank, ranks)
    data = np.ones(256, np.float32)
    for _ in range(rounds):
        communicator.all_reduce(data, op="max")
    assert (data == 1).all()
    communicator.destroy()
    say("done")


def calls_of_seed(rank: int, ranks: int, seed: int, rounds: int) -> None:
    """Random collectives, checked against NumPy, with real processes' transports."""
    from process.calls import check_outcomes, run_case
    from process.reference import COLLECTIVES, OPS, REDUCING, TYPES, Case, draw_inputs, expected

    communicator = join(rank, ranks)
    random = np.random.default_rng(seed)
    for index in range(rounds):
        collective = COLLECTIVES[index % len(COLLECTIVES)]
        case = Case(
            collective,
            str(random.choice(list(TYPES))),
            int(random.choice([1, 33, 1000, 5000, 40_000])),
            op=str(random.choice(OPS)) if collective in REDUCING else "Sum",
            root=int(random.integers(ranks)),
            in_place=bool(random.integers(2)),
            send_shift=int(random.integers(4)),
            seed=index,
        )
        inputs = draw_inputs(case, ranks)
        outcome = run_case(communicator, case, inputs[rank])
        problems = check_outcomes(case, [outcome], [expected(case, inputs, ranks)[rank]])
        assert not problems, f"{case}: {problems}"
    communicator.destroy()
    say("done")


def plans_of_seed(rank: int, ranks: int, plans: list[list[str]], counts: list[int]) -> None:
    """Load plans (collective, path) and run each on random data, with real processes' transports."""
    from process.calls import check_outcomes, run_case
    from process.reference import Case, draw_inputs, expected

    communicator = join(rank, ranks)
    for index, (collective, file) in enumerate(plans):
        plan = communicator.load_plan(Path(file).read_bytes())
        for count in counts:
            for in_place in (False, True):
                case = Case(collective, "int32", count, in_place=in_place, seed=index)
                inputs = draw_inputs(case, ranks)
                outcome = run_case(communicator, case, inputs[rank], plan.id)
                problems = check_outcomes(case, [outcome], [expected(case, inputs, ranks)[rank]])
                assert not problems, f"{plan}, {case}: {problems}"
    communicator.destroy()
    say("done")


def follow_context(rank: int, ranks: int, seed: int, requests: int, until_told: bool = False) -> None:
    """Random collectives, the same on all ranks, on integers, checked each; on until the log's end is installed."""
    draw = np.random.default_rng(seed)
    communicator = join(rank, ranks)
    for _ in range(requests):
        _one_exact_call(communicator, draw)
    say("ran")
    end = _run_until_told(communicator, draw) if until_told else hear()["position"]
    while (communicator.context_state() or {})["installed"] < end:
        _one_exact_call(communicator, draw)
        time.sleep(0.001)
    for _ in range(20):
        _one_exact_call(communicator, draw)
    state = communicator.context_state()
    communicator.destroy()
    say("done", state=state)


def _run_until_told(communicator: Communicator, draw: np.random.Generator) -> int:
    """Goes on until the test has said where the log ends, on rank 0's word, so that all ranks stop together."""
    heard: list[int] = []
    threading.Thread(target=lambda: heard.append(hear()["position"]), daemon=True).start()
    end = np.zeros(1, np.int64)
    while end[0] == 0:
        _one_exact_call(communicator, draw)
        end[0] = heard[0] if heard else 0
        communicator.broadcast(end, 0)
    return int(end[0])


def _one_exact_call(communicator: Communicator, draw: np.random.Generator) -> None:
    rank, ranks = communicator.rank, communicator.ranks
    count = int(draw.choice([1, 7, 300, 5000, 40000]))
    base = draw.integers(-1000, 1000, count)
    mine, total = base + rank, base * ranks + ranks * (ranks - 1) // 2
    match int(draw.integers(4)):
        case 0:
            out = np.zeros_like(base)
            communicator.all_reduce(mine, out)
            assert np.array_equal(out, total)
        case 1:
            out = np.zeros(count * ranks, base.dtype)
            communicator.all_gather(mine, out)
            assert np.array_equal(out.reshape(ranks, count), base + np.arange(ranks)[:, None])
        case 2:
            out = np.zeros_like(base)
            communicator.reduce_scatter(np.tile(mine, ranks), out)
            assert np.array_equal(out, total)
        case 3:
            root = int(draw.integers(ranks))
            data = mine.copy()
            communicator.broadcast(data, root)
            assert np.array_equal(data, base + root)


def main() -> None:
    """Run one body."""
    name, rank, ranks, arguments = sys.argv[1:]
    try:
        globals()[name](int(rank), int(ranks), **json.loads(arguments))
    except BaseException as error:
        if not isinstance(error, SystemExit):
            with contextlib.suppress(OSError):
                say("crash", error=type(error).__name__, message="".join(traceback.format_exception(error))[-1500:])
        raise


if __name__ == "__main__":
    main()
