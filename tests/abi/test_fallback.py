"""What another NCCL does for us: operations of THESEUS_FALLBACK, and on GPUs what only it has (nccl_api.def: forward).

A fake one tells what it was asked, and a fake driver stands for the GPUs; where NVIDIA's is installed (or named in
THESEUS_TEST_NCCL), its answers on a machine without a GPU are compared with ours.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) is installed")


def compile_fake(folder: Path, version: int = 23007) -> Path:
    """Build the fake libnccl.so.2 of some version."""
    folder.mkdir(exist_ok=True)
    library = folder / "libnccl.so.2"
    flags = ["-O1", "-fPIC", "-shared", "-Wl,-soname,libnccl.so.2", f"-DVERSION={version}"]
    subprocess.run(["cc", *flags, str(HERE / "fake_nccl.c"), "-pthread", "-ldl", "-o", str(library)], check=True)
    return library


def compile_driver(folder: Path) -> Path:
    """Build the fake libcuda.so.1; returns its folder."""
    folder.mkdir(exist_ok=True)
    flags = ["-O1", "-fPIC", "-shared", "-Wl,-soname,libcuda.so.1", "-pthread"]
    subprocess.run(["cc", *flags, str(HERE / "fake_driver.c"), "-o", str(folder / "libcuda.so.1")], check=True)
    return folder


class Runner:
    """Runs a case of fallback.py and returns what the fake was asked."""

    def __init__(self, ours: Path, folder: Path) -> None:
        """`ours` holds our libraries."""
        self.ours, self.folder, self.log = ours, folder, folder / "calls.txt"

    def __call__(self, case: str, *arguments: str, fallback: str = "AllReduce", **settings: str) -> list[str]:
        """`settings`: THESEUS_NCCL and others; by default a fresh fake."""
        self.log.write_text("")
        if "THESEUS_NCCL" not in settings and "LD_LIBRARY_PATH" not in settings:
            settings["THESEUS_NCCL"] = str(compile_fake(self.folder / "fake"))
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("THESEUS_", "NCCL_"))}
        environment |= {"THESEUS_FALLBACK": fallback, "FAKE_NCCL_LOG": str(self.log), "THESEUS_INIT_TIMEOUT": "30"}
        command = [sys.executable, str(HERE / "fallback.py"), str(self.ours), case, *arguments]
        done = subprocess.run(command, env=environment | settings, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        calls = self.log.read_text().splitlines()
        assert not [call for call in calls if call.startswith(("FOREIGN", "STUCK"))], calls
        return calls

    def on_gpus(self, case: str, *arguments: str, fallback: str = "", **settings: str) -> list[str]:
        """Run a case on fake GPUs."""
        settings.setdefault("THESEUS_NCCL", str(compile_fake(self.folder / "fake")))
        driver = str(compile_driver(self.folder / "driver"))
        given = {"THESEUS_DEVICE": "cuda", "LD_LIBRARY_PATH": driver} | settings
        return self(f"gpu_{case}", *arguments, fallback=fallback, **given)


@pytest.fixture
def run(folder: Path, tmp_path: Path) -> Runner:
    return Runner(folder, tmp_path)


def counted(calls: list[str]) -> dict[str, int]:
    """How often each function was called."""
    names = [call.split()[0] for call in calls]
    return {name: names.count(name) for name in names}


def test_one_operation(run: Runner) -> None:
    """It goes there, with a communicator made there when it first comes; nothing else does."""
    calls = run("one_operation")
    made = sorted(call for call in calls if call.startswith("ncclCommInitRank"))
    assert made == [f"ncclCommInitRank rank={rank} of 2 id=5 itself=1" for rank in range(2)]
    wanted = {"ncclGetUniqueId": 1, "ncclCommInitRank": 2, "ncclAllReduce": 4, "ncclCommDestroy": 2}
    assert counted([call for call in calls if not call.startswith("ncclGroup")]) == wanted
    assert "ncclAllReduce rank=0 count=40 type=1 what=0 stream=4096" in calls


def test_nothing_is_loaded_without_need(run: Runner) -> None:
    """Where no such operation comes, the other NCCL is not even asked for its version."""
    assert run("own_operators") == []


def test_everything(run: Runner) -> None:
    """`all` hands over each operation with its arguments, and makes the twins with the communicators, for ncclSend."""
    calls = run("everything", fallback="all")
    for rank in range(2):
        for name, what in (("AllReduce", 4), ("ReduceScatter", 0), ("Reduce", 1), ("Broadcast", 1), ("AllGather", 0)):
            assert f"nccl{name} rank={rank} count=40 type=1 what={what} stream=4096" in calls
        for name, what in (("AlltoAll", 0), ("Gather", 1), ("Scatter", 1), ("Send", 1 - rank), ("Recv", 1 - rank)):
            assert f"nccl{name} rank={rank} count=40 type=1 what={what} stream=4096" in calls


def test_groups(run: Runner) -> None:
    """The calls of a group are one group there, made after the communicator."""
    calls = run("group")
    assert counted(calls)["ncclAllReduce"] == 4
    opened = 0
    for call in calls:
        opened += {"ncclGroupStart": 1, "ncclGroupEnd": -1}.get(call.split()[0], 0)
        assert opened > 0 or not call.startswith("ncclAllReduce"), calls
    assert opened == 0


def test_the_network_is_the_other_ones(run: Runner) -> None:
    """THESEUS_NET=nccl: communicators of several hosts, and those alone, run there as a whole, which is said once."""
    hosts = {"fallback": "", "THESEUS_DEVICE": "cuda-emu", "THESEUS_SHM": "0", "THESEUS_HOST": "network"}
    log = run.folder / "log"
    calls = counted(run("network", THESEUS_NET="nccl", NCCL_DEBUG="WARN", NCCL_DEBUG_FILE=str(log), **hosts))
    assert {calls[name] for name in ("ncclCommInitRank", "ncclAllReduce", "ncclSend", "ncclRecv")} == {2}
    assert log.read_text().count("THESEUS_NET=tcp keeps them here") == 1
    assert run("own_network", THESEUS_NET="tcp", **hosts) == []
    assert run("own_network", **hosts) == []  # an emulated GPU has no use for RDMA
    assert run("own_network", THESEUS_NET="nccl", **(hosts | {"THESEUS_SHM": "1"})) == []


@pytest.mark.parametrize("case", ["init_all", "init_in_a_group"])
def test_one_thread_drives_all_ranks(run: Runner, case: str) -> None:
    """Communicators of one thread wait for each other; their twins end when they do."""
    calls = counted(run(case, fallback="AllReduce,SendRecv"))
    assert calls["ncclCommInitRank"] == 2
    assert calls.get("ncclCommAbort", 0) + calls.get("ncclCommDestroy", 0) == 2


def test_split(run: Runner) -> None:
    """The parent, on which nothing was handed over, has no twin."""
    calls = run("split")
    assert counted(calls)["ncclCommInitRank"] == counted(calls)["ncclCommDestroy"] == 2


def test_words_that_are_no_operation(run: Runner) -> None:
    """A warning that names the word; the others count."""
    calls = run("one_operation", fallback="Dance,allreduce", NCCL_DEBUG="WARN", NCCL_DEBUG_FILE=str(run.folder / "log"))
    assert counted(calls)["ncclAllReduce"] == 4
    warnings = [line for line in (run.folder / "log").read_text().splitlines() if "THESEUS_FALLBACK" in line]
    assert len(warnings) == 1 and "'Dance'" in warnings[0]


def test_non_blocking(run: Runner) -> None:
    """A refusal, not a hang."""
    assert run("non_blocking", fallback="SendRecv") == []


def test_found_without_being_named(run: Runner, tmp_path: Path) -> None:
    """In LD_LIBRARY_PATH; our own, which is loaded already and stands there first, is passed over."""
    library = compile_fake(tmp_path / "elsewhere")
    calls = run("one_operation", LD_LIBRARY_PATH=f"{run.ours}:{library.parent}")
    assert counted(calls)["ncclAllReduce"] == 4


def test_preloaded(run: Runner) -> None:
    """Ours stands first in the process, and still the other one's calls of its own functions are its own (itself=1)."""
    calls = run("one_operation", LD_PRELOAD=str(run.ours / "libnccl.so.2"))
    assert "ncclCommInitRank rank=0 of 2 id=5 itself=1" in calls


def test_ours_is_refused(run: Runner, tmp_path: Path) -> None:
    """By its own path, and as a copy under another name."""
    run("refused", "5", "Theseus's own", "THESEUS_NCCL", THESEUS_NCCL=str(run.ours / "libnccl.so.2"))
    for name in ("libnccl.so.2", "libtheseus.so.0"):
        shutil.copy(run.ours / name, tmp_path / name.replace("libnccl", "libcopy"))
    run("refused", "5", "Theseus's own", THESEUS_NCCL=str(tmp_path / "libcopy.so.2"))


def test_unusable_libraries_are_refused(run: Runner, tmp_path: Path) -> None:
    """Missing, no library, no NCCL, too old, a bare name: every rank is told, and nobody hangs."""
    text = tmp_path / "text.so"
    text.write_text("no library")
    run("refused", "2", "THESEUS_NCCL", "nowhere.so", THESEUS_NCCL=str(tmp_path / "nowhere.so"))
    run("refused", "2", "text.so", THESEUS_NCCL=str(text))
    run("refused", "5", "no path", THESEUS_NCCL="libnccl.so.2")
    old = compile_fake(tmp_path / "old", 21504)
    run("refused", "5", "2.15.4", "2.16.2", THESEUS_NCCL=str(old))


def test_a_function_that_it_does_not_have(run: Runner, tmp_path: Path) -> None:
    """An older NCCL does what it can."""
    run("gather_refused", fallback="all", THESEUS_NCCL=str(compile_fake(tmp_path / "older", 22707)))


def test_its_errors_are_reported(run: Runner) -> None:
    """With its code and its words."""
    words = ("fake cuda error", "the fake's last error", "2.30.7")
    run("refused", "1", "ncclAllReduce", *words, FAKE_NCCL_FAIL="ncclAllReduce")
    run("refused", "1", "ncclCommInitRank", *words, FAKE_NCCL_FAIL="ncclCommInitRank")
    run("async_error", FAKE_NCCL_FAIL="ncclCommGetAsyncError")


def test_grouped_here_and_not_there(run: Runner) -> None:
    """Twins are made communicator by communicator, in the order of the calls, whatever is grouped."""
    calls = counted(run("two_groupings"))
    assert calls["ncclCommInitRank"] == calls["ncclAllReduce"] == 4


def test_settings_differ(run: Runner) -> None:
    """THESEUS_FALLBACK is compared when ranks meet: otherwise one would wait for the other here, the other there."""
    assert run("settings_differ") == []


# ---- On GPUs


def test_gpu_operations(run: Runner) -> None:
    """Each rank's twin is made, used and ended on the rank's own device, whatever the thread works with."""
    calls = run.on_gpus("operations", fallback="AllReduce")
    for rank, device in ((0, 1), (1, 3)):
        for name in ("ncclCommInitRank", "ncclAllReduce", "ncclCommDestroy"):
            first = next(call for call in calls if call.startswith(f"{name} rank={rank}"))
            assert first.endswith(f" device={device}"), calls


def test_gpu_windows(run: Runner) -> None:
    """Device API, windows and one-sided transfers reach the other NCCL with their arguments, and what it made."""
    calls = run.on_gpus("windows")
    assert counted(calls)["ncclCommInitRank"] == 2
    for rank in range(2):
        assert f"ncclCommWindowRegister rank={rank} bytes=4096 flags=1 device={1 + 2 * rank}" in calls
        put = (
            f"ncclPutSignal rank={rank} count=8 type=1 peer={1 - rank} offset=64 signal=0 context=0 flags=0 stream=4096"
        )
        assert put in calls
        assert f"ncclDevCommDestroy rank={rank} its=1" in calls
    wanted = {"ncclMemAlloc": 2, "ncclMemFree": 2, "ncclCommWindowDeregister": 2, "ncclSignal": 2}
    assert {name: counted(calls)[name] for name in wanted} == wanted


def test_gpu_windows_of_one_thread(run: Runner) -> None:
    """Windows called for in a group are made in one group there, at its end."""
    calls = run.on_gpus("init_all")
    for rank, device in ((0, 2), (1, 1)):
        made = next(call for call in calls if call.startswith(f"ncclCommInitRank rank={rank}"))
        assert made.endswith(f" device={device}")
    registered = [number for number, call in enumerate(calls) if call.startswith("ncclCommWindowRegister")]
    between = calls[registered[0] : registered[1]]
    assert len(registered) == 2 and "ncclGroupEnd" not in between


def test_gpu_handles_are_not_mixed(run: Runner) -> None:
    """A window goes to the twin that made it, or nowhere."""
    assert "ncclPutSignal" not in counted(run.on_gpus("foreign_windows"))


def test_gpu_without_the_other(run: Runner, tmp_path: Path) -> None:
    """All ranks alike do without it."""
    assert run.on_gpus("without", THESEUS_NCCL=str(tmp_path / "nowhere.so")) == []


def test_gpu_errors(run: Runner) -> None:
    """What the other NCCL says is passed on."""
    run.on_gpus("errors", FAKE_NCCL_FAIL="ncclCommWindowRegister")


# ---- NVIDIA's own


@pytest.fixture(scope="session")
def real() -> Path:
    """NVIDIA's libnccl.so.2, or skip."""
    named = os.environ.get("THESEUS_TEST_NCCL")
    if named:
        return Path(named)
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        spec = None
    for place in (spec.submodule_search_locations or []) if spec else []:
        if (library := Path(place) / "lib" / "libnccl.so.2").exists():
            return library
    pytest.skip("NVIDIA's NCCL is not installed (pip install nvidia-nccl-cu12), and THESEUS_TEST_NCCL names none")


ANSWERS = """
import ctypes, sys
nccl = ctypes.CDLL(sys.argv[1])
nccl.ncclGetErrorString.restype = nccl.ncclGetLastError.restype = ctypes.c_char_p
number = ctypes.c_int()
version = ctypes.c_int()
answers = {f"text {code}": nccl.ncclGetErrorString(code) for code in (*range(8), 99, -1)}
answers["version"] = nccl.ncclGetVersion(ctypes.byref(version))
answers["version of NULL"] = nccl.ncclGetVersion(None)
answers["destroy NULL"] = nccl.ncclCommDestroy(None)
answers["abort NULL"] = nccl.ncclCommAbort(None)
answers["count of NULL"] = nccl.ncclCommCount(None, ctypes.byref(number))
answers["rank of NULL"] = nccl.ncclCommUserRank(None, ctypes.byref(number))
answers["end without start"] = nccl.ncclGroupEnd()
answers["start"] = nccl.ncclGroupStart()
answers["end"] = nccl.ncclGroupEnd()
answers["all reduce of NULL"] = nccl.ncclAllReduce(None, None, ctypes.c_size_t(0), 7, 0, None, None)
print(answers)
"""


def test_answers_are_nvidias(real: Path, folder: Path) -> None:
    """What NCCL answers without a GPU, we answer: texts, codes of bad handles and of groups."""

    def answers(library: Path) -> str:
        command = [sys.executable, "-c", ANSWERS, str(library)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout.splitlines()[-1]

    assert answers(folder / "libnccl.so.2") == answers(real)


def test_nvidias_is_called(run: Runner, real: Path) -> None:
    """It loads beside ours, and fails in its own words where there is no GPU."""
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a GPU here, and host memory is no place for NVIDIA's NCCL")
    run("refused", "1", "ncclCommInitRank", "unhandled cuda error", str(real), THESEUS_NCCL=str(real))
