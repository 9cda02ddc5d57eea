"""Training jobs on a virtual leaf-spine cluster, and LEVELLER's own processes beside them."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from theseus_py.testbed import Testbed
from theseus_py.testbed.bed import HostProcess
from theseus_py.testbed.job import rank_environments

__all__ = ["BedJob", "Cluster", "Shape"]

_ROOT = Path(__file__).resolve().parents[2]
_RANK = Path(__file__).with_name("leveller_rank.py")
_PORT = 7400
# Two ranks a job, and up to eight of them on few cores: whoever waits gives way.
_SETTINGS = {"THESEUS_SPIN": "0", "THESEUS_ADAPT": "off", "THESEUS_AGENT": "off"}


@dataclass(frozen=True)
class Shape:
    """What a job is to do: seconds of compute, and bytes to all-reduce, in each iteration."""

    compute: float
    size: int


class BedJob:
    """A job of two ranks, one at either leaf."""

    def __init__(self, bed: Testbed, folder: Path, number: int, shape: Shape, backend: str) -> None:
        self.name = f"job{number + 1}"
        self.shape = shape
        self.hosts = (2 * number, 2 * number + 1)
        self.ideal = 0.0
        self._times = folder / f"{self.name}.times"
        self._pause = folder / f"{self.name}.pause"
        self._times.touch()
        self.pause()
        extra = {**_SETTINGS, "LEVELLER_JOB": self.name}
        environments = rank_environments(bed.shape, self.hosts, 1, number + 1, extra)
        self._ranks = []
        for host, environment in zip(self.hosts, environments, strict=True):
            output = os.open(folder / f"{self.name}-{host}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            command = [sys.executable, str(_RANK), backend, str(shape.size), str(shape.compute)]
            command += [str(self._times), str(self._pause)]
            self._ranks.append(bed.start(host, command, environment=environment, stdout=output, stderr=output))
            os.close(output)

    def pause(self) -> None:
        """Lets no further iteration begin."""
        self._pause.touch()

    def go(self) -> None:
        """Lets iterations go on."""
        self._pause.unlink(missing_ok=True)

    def ends(self) -> list[float]:
        """When each iteration so far was complete (monotonic clock)."""
        return [float(line) for line in self._times.read_text().splitlines()]

    def check(self) -> None:
        """RuntimeError: a rank has ended."""
        for rank in self._ranks:
            if rank.poll() is not None:
                raise RuntimeError(f"a rank of {self.name} ended with {rank.poll()}")

    def measure_alone(self, iterations: int) -> None:
        """Measures the ideal time while every other job pauses."""
        self.go()
        deadline = time.monotonic() + 120
        before = len(self.ends())
        while len(self.ends()) < before + iterations + 2:
            self.check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} does not get on")
            time.sleep(0.05)
        self.pause()
        ends = self.ends()[before + 1 : before + iterations + 2]
        self.ideal = median(later - earlier for earlier, later in pairwise(ends))

    def rate(self, begin: float, end: float) -> float:
        """R between two moments: from the first iteration that ends there to the last, so that no part is lost."""
        ends = [each for each in self.ends() if begin <= each <= end]
        if len(ends) < 2:
            return len(ends) * self.ideal / (end - begin)
        return (len(ends) - 1) * self.ideal / (ends[-1] - ends[0])


class Cluster:
    """Two leaves and a spine, whose trunks are the bottleneck; jobs, all of which cross it."""

    def __init__(self, folder: Path, shapes: Sequence[Shape], backend: str, trunk: str) -> None:
        self.folder = folder
        self.bed = Testbed(2 * len(shapes), 1, "1gbit", priorities=True, leaves=2, spines=1, trunk=trunk)
        self.jobs = [BedJob(self.bed, folder, number, shape, backend) for number, shape in enumerate(shapes)]
        self._secret = folder / "secret"
        self._secret.write_text(secrets.token_hex(32))
        self._secret.chmod(0o600)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.bed.close()

    def measure_alone(self, iterations: int) -> None:
        """Measures every job's ideal time, one after the other."""
        for job in self.jobs:
            job.measure_alone(iterations)

    def run(self, policy: str, period: float, settle: float, window: float) -> dict[str, float]:
        """Lets all jobs run under a policy, LEVELLER's processes and all, and returns R of each in the window."""
        with self._leveller(policy, period):
            for job in self.jobs:
                job.go()
            time.sleep(settle)
            begin = time.monotonic()
            time.sleep(window)
            end = time.monotonic()
            for job in self.jobs:
                job.check()
                job.pause()
        time.sleep(0.2)
        return {job.name: job.rate(begin, end) for job in self.jobs}

    @contextmanager
    def _leveller(self, policy: str, period: float) -> Iterator[None]:
        address = self.bed.shape.management_address(0)
        controller = ["controller", "--listen", f"0.0.0.0:{_PORT}", "--policy", policy, "--period", str(period)]
        controller += ["--ask-every", str(max(0.1, period / 2)), "--no-profile"]
        jobs = self.folder / "jobs.toml"
        jobs.write_text("\n".join(self._entry(job) for job in self.jobs))
        started = [self._start(0, controller)]
        try:
            for host in range(self.bed.shape.hosts):
                agent = ["agent", "--controller", f"{address}:{_PORT}", "--host", f"host{host}", "--jobs", str(jobs)]
                started.append(self._start(host, agent))
            self._wait_for_marks(address)
            yield
            for each in started:
                if each.poll() is not None:
                    raise RuntimeError(f"a process of LEVELLER ended with {each.poll()}: see {self.folder}")
        finally:
            for each in started:
                each.kill()
                with suppress(TimeoutError):
                    each.wait(5)

    def _entry(self, job: BedJob) -> str:
        communicate = max(1e-3, job.ideal - job.shape.compute)
        return (
            f'[[job]]\nname = "{job.name}"\nideal = {job.ideal}\ncompute = {job.shape.compute}\n'
            f"communicate = {communicate}\n"
        )

    def _start(self, host: int, arguments: Sequence[str]) -> HostProcess:
        output = os.open(
            self.folder / f"leveller-{arguments[0]}-{host}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600
        )
        command = [sys.executable, "-m", "leveller", *arguments, "--secret", str(self._secret)]
        environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
        try:
            return self.bed.start(host, command, environment=environment, stdout=output, stderr=output)
        finally:
            os.close(output)

    def _wait_for_marks(self, address: str) -> None:
        """Until every agent has marked its job's flows and none was refused."""
        deadline = time.monotonic() + 30
        said = ""
        while time.monotonic() < deadline:
            said = self._status(address)
            with suppress(json.JSONDecodeError, KeyError):
                status = json.loads(said)
                hosts = status["hosts"]
                if any(host["refused"] for host in hosts):
                    raise RuntimeError(f"marks are refused: {hosts}")
                if len(hosts) == self.bed.shape.hosts and all(host["marked"] for host in hosts):
                    return
            time.sleep(0.1)
        raise RuntimeError(f"LEVELLER does not mark all flows: {said[-500:]}")

    def _status(self, address: str) -> str:
        reading, writing = os.pipe()
        command = [sys.executable, "-m", "leveller", "status", "--json", "--controller", f"{address}:{_PORT}"]
        command += ["--secret", str(self._secret)]
        environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
        nowhere = os.open(os.devnull, os.O_WRONLY)
        process = self.bed.start(0, command, environment=environment, stdout=writing, stderr=nowhere)
        os.close(writing)
        os.close(nowhere)
        with os.fdopen(reading) as pipe:
            said = pipe.read()
        process.wait(10)
        return said
