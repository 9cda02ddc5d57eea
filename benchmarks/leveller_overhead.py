"""What LEVELLER costs: a question and its answer, a round of a large cluster, a change of marks on live connections.

The agent is a process of its own, over the authenticated channel on loopback. The round takes in reports of 1,000 jobs
with 20,000 flows over a fat tree, gives levels, and encodes what each host is told. Marks are changed by nftables in a
network namespace of their own, all 100 flows at once; the kernel has them when the call returns.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.harness import Result, describe, finish, in_words, parser
from benchmarks.harness.leveller_view import fat_tree_view
from leveller.controller.server import ControllerServer
from leveller.controller.state import ControllerState
from leveller.core.levels import LowestRateFirst
from leveller.wire import FlowReport, JobReport, Report, decode, encode

JOBS, FLOWS, HOSTS, LEVELS, MARKED = 1000, 20_000, 250, 6, 100
ROOT = Path(__file__).resolve().parents[1]
_CHANGE = """
import statistics, sys, time
from theseus_py.testbed import kernel
kernel.enter_own_network()
from leveller.core.model import FiveTuple
from leveller.enforce.nft import NftEnforcer
flows = [FiveTuple("tcp", "10.0.0.1", 1000 + i, "10.0.0.2", 2000 + i) for i in range(int(sys.argv[1]))]
enforcer = NftEnforcer()
seconds = []
for turn in range(int(sys.argv[2])):
    begin = time.perf_counter()
    found = enforcer.apply({flow: (8, 40)[turn % 2] for flow in flows})
    seconds.append(time.perf_counter() - begin)
    assert all(each.effective == each.requested for each in found.values())
print(statistics.median(seconds))
"""


def ask_and_answer(rounds: int) -> float:
    """Median seconds of a round with one agent that has nothing to say."""
    secret = secrets.token_hex(32)

    async def main() -> float:
        server = ControllerServer(ControllerState(LowestRateFirst(LEVELS)), secret.encode())
        port = await server.listen("127.0.0.1", 0)
        command = [sys.executable, "-m", "leveller", "agent", "--controller", f"127.0.0.1:{port}", "--no-mark"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "LEVELLER_SECRET": secret}
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as agent:
            try:
                while not server.state.hosts:
                    await asyncio.sleep(0.05)
                seconds = []
                for _ in range(rounds):
                    await server.round()
                    seconds.append(server.round_seconds)
                    await asyncio.sleep(0.002)
                return median(seconds)
            finally:
                agent.terminate()
                await server.close()

    return asyncio.run(main())


def large_round() -> float:
    """Seconds of a controller's round: decode the reports, rank, encode what is new."""
    view = fat_tree_view(JOBS, FLOWS)
    by_host: dict[int, dict[str, list[FlowReport]]] = {}
    for number, flow in enumerate(view.flows):
        address = f"10.{number % HOSTS // 250}.{number % HOSTS % 250}.1"
        report = FlowReport("tcp", address, 1024 + number // HOSTS, "10.9.9.9", 1 + number % 60000, flow.path)
        by_host.setdefault(number % HOSTS, {}).setdefault(flow.job, []).append(report)
    messages = {}
    for host, jobs in by_host.items():
        reports = []
        for name, flows in jobs.items():
            rate = view.jobs[name].rate or 0.5
            reports.append(JobReport(name, round(1000 * rate), 1000.0, 1.0, 5, flows=flows))
        messages[f"host{host}"] = encode(Report(1, 1, reports))
    state = ControllerState(LowestRateFirst(LEVELS))
    begin = time.perf_counter()
    for name, message in messages.items():
        state.join(name, 0.0)
        decoded = decode(message)
        assert isinstance(decoded, Report)
        state.report(name, decoded, 0.0)
    told = [encode(levels) for levels in state.rank(1.0).values()]
    seconds = time.perf_counter() - begin
    assert len(told) == HOSTS
    return seconds


def change_of_marks(turns: int) -> float:
    """Median seconds of a change of all marks. RuntimeError: this system lets us have none."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "change.py"
        script.write_text(_CHANGE)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(script), str(MARKED), str(turns)]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    if ended.returncode != 0:
        raise RuntimeError(ended.stderr.strip().splitlines()[-1])
    return float(ended.stdout)


def main() -> int:
    """Entry point: 0, 1 if --check and a target is missed."""
    given = parser(__doc__).parse_args()
    machine = describe()
    print(in_words(machine))
    results = [
        Result("controller to agent and back", ask_and_answer(50 if given.quick else 300) * 1e3, 1.0, "ms"),
        Result(f"a round of {JOBS:,} jobs and {FLOWS:,} flows", median(large_round() for _ in range(3)), 1.0, "s"),
    ]
    try:
        seconds = change_of_marks(20 if given.quick else 200)
        results.append(Result(f"other marks for {MARKED} live flows", seconds * 1e3, 5.0, "ms"))
    except RuntimeError as error:
        print(f"marks cannot be measured here: {error}")
    return finish(given, machine, results)


if __name__ == "__main__":
    sys.exit(main())
