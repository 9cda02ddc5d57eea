"""Parts of the agent on their own: journal, job state, wire, members, Raft over a network that the test plays."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from theseus_py import _core
from theseus_py.agent.channel import Address
from theseus_py.agent.job import JobState, Outcome, beginning, entry_of
from theseus_py.agent.journal import Entry, FileJournal
from theseus_py.agent.members import Members
from theseus_py.agent.replica import Replica
from theseus_py.agent.state import StateFolder, start_time, state_root
from theseus_py.agent.wire import BadFrame, FrameReader, Kind, Packer, Unpacker, encode_frame, name_hash
from theseus_py.errors import InvalidUsage


def ticket(number: int) -> bytes:
    return number.to_bytes(16, "little")


def record(name: str) -> bytes:
    return _core.encode_record({"kind": "attribute", "name": name})


def update(name: str, value: float) -> bytes:
    return _core.encode_record({"kind": "update", "name": name, "elements": [(0, value)]})


# --- Journal.


def test_the_journal_forgets_only_what_is_contradicted(tmp_path: Path) -> None:
    """Any series of appends and cuts, opened again at any time: entries go where another one takes their place."""
    for seed in range(30):
        rng = random.Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        journal = FileJournal(folder)
        model: list[Entry] = []
        for step in range(60):
            if rng.random() < 0.2 and model:
                keep = rng.randrange(len(model) + 1)
                journal.deleteEntriesFrom(keep)
                again = rng.randrange(len(model) - keep + 1)
                for entry in model[keep : keep + again]:
                    journal.add(*entry)
                assert journal[:] == model[: keep + again]
                if rng.random() < 0.5:
                    entry = (b"another", step, 9)
                    journal.add(*entry)
                    model = [*model[: keep + again], entry]
                journal.settle()
            elif rng.random() < 0.2:
                journal._destroy()
                journal = FileJournal(folder)
            else:
                entry = (rng.randbytes(rng.randrange(100)), step, rng.randrange(5))
                journal.add(*entry)
                model.append(entry)
            assert journal[:] == model and len(journal) == len(model)
        journal._destroy()


def test_a_torn_journal_loses_its_end_alone(tmp_path: Path) -> None:
    """Cut anywhere, or with a wrong byte anywhere, what stands before is there and nothing else; it goes on."""
    journal = FileJournal(tmp_path)
    entries = [(bytes([i]) * i, i, 1) for i in range(1, 20)]
    for entry in entries:
        journal.add(*entry)
    journal._destroy()
    whole = (tmp_path / "journal").read_bytes()
    rng = random.Random(1)
    for _ in range(200):
        at = rng.randrange(len(whole))
        damaged = whole[:at] if rng.random() < 0.5 else whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        (tmp_path / "journal").write_bytes(damaged)
        journal = FileJournal(tmp_path)
        left = len(journal)
        assert journal[:] == entries[:left]
        journal.add(b"next", 99, 2)
        journal._destroy()
        journal = FileJournal(tmp_path)
        assert journal[:] == [*entries[:left], (b"next", 99, 2)]
        journal._destroy()


def test_votes_last_and_a_commit_beyond_the_end_does_not(tmp_path: Path) -> None:
    """Who voted may not vote again; entries that were lost with the end of the journal are not waited for."""
    journal = FileJournal(tmp_path)
    journal.add(b"a", 1, 1)
    journal.setCurrentTerm(7, "h3")
    journal.setRaftCommitIndex(5)
    journal.onOneSecondTimer()
    journal._destroy()
    journal = FileJournal(tmp_path)
    assert (journal.getCurrentTerm(), journal.getVotedForNodeId(), journal.getRaftCommitIndex()) == (7, "h3", 1)
    assert (tmp_path / "vote").stat().st_mode & 0o077 == 0
    journal._destroy()


# --- Job state.


def make_job(path: Path, capacity: int = 1 << 20) -> tuple[JobState, list[bytes]]:
    taken: list[bytes] = []
    return JobState(path, lambda: None, taken.append, capacity), taken


def test_records_apply_once_and_refusals_leave_nothing(tmp_path: Path) -> None:
    """By ticket: a record that is proposed twice counts once, and keeps its first outcome."""
    job, taken = make_job(tmp_path / "log")
    job.apply(entry_of(ticket(0), record("early")))  # before the log has begun
    job.apply(beginning(5))
    job.apply(beginning(6))
    for _ in range(3):
        job.apply(entry_of(ticket(1), record("x")))
        job.apply(entry_of(ticket(2), record("x")))
        job.apply(entry_of(ticket(3), b"noise"))
    outcomes: dict[int, Outcome] = {}
    for number in range(5):
        job.when_decided(ticket(number), lambda outcome, number=number: outcomes.update({number: outcome}))
    assert outcomes[1] == (0, "")
    assert all(outcomes[number][0] != 0 for number in (0, 2, 3))
    assert 4 not in outcomes
    job.apply(entry_of(ticket(4), update("x", 1)))
    assert outcomes[4] == (0, "")
    for strange in (b"", b"B", b"B123", b"R", b"Rshort", b"Z" + bytes(30)):
        job.apply(strange)
    assert (job.log_id, job.position, job.written, len(taken)) == (5, 2, 2, 2)


def test_a_replay_is_the_same_log(tmp_path: Path) -> None:
    """A restarted agent gets all entries again: ranks see the same file, and new records follow."""
    entries = [beginning(5)] + [entry_of(ticket(i), record(f"x{i}")) for i in range(10)]
    first, _ = make_job(tmp_path / "log")
    for entry in entries:
        first.apply(entry)
    reader = _core.SharedLogReader(str(tmp_path / "log"))
    first.replay()
    for entry in entries:
        first.apply(entry)
    assert first.frozen is None and reader.count == 10
    first.writer = None
    second, _ = make_job(tmp_path / "log")
    for entry in [*entries, entry_of(ticket(10), record("x10"))]:
        second.apply(entry)
    assert second.frozen is None and reader.count == 11


def test_a_fork_freezes_and_says_so(tmp_path: Path) -> None:
    """Another record in the place of one that ranks have read: they get nothing more, for good."""
    first, _ = make_job(tmp_path / "log")
    first.apply(beginning(5))
    first.apply(entry_of(ticket(1), record("x")))
    first.writer = None
    for _ in range(2):  # also after a restart
        other, _ = make_job(tmp_path / "log")
        other.apply(beginning(5))
        other.apply(entry_of(ticket(1), record("y")))
        other.apply(entry_of(ticket(2), record("z")))
        other.flush()
        assert other.frozen is not None
        other.writer = None
    reader = _core.SharedLogReader(str(tmp_path / "log"))
    assert reader.frozen and reader.count == 1


@pytest.mark.parametrize("remains", ["another log", "noise", "cut short", "nothing"])
def test_remains_of_another_log_make_room(tmp_path: Path, remains: str) -> None:
    """Whatever lies where the log goes, the ranks get the log that the agents agreed on."""
    path = tmp_path / "log"
    old, _ = make_job(path)
    old.apply(beginning(4))
    old.apply(entry_of(ticket(1), record("old")))
    old.writer = None
    if remains == "noise":
        path.write_bytes(b"noise" * 5000)
    elif remains == "cut short":
        os.truncate(path, 4100)
    elif remains == "nothing":
        path.write_bytes(b"")
    job, _ = make_job(path)
    job.apply(beginning(5))
    job.apply(entry_of(ticket(1), record("new")))
    assert job.frozen is None
    reader = _core.SharedLogReader(str(path))
    first = reader.next()
    assert reader.log_id == 5 and first is not None and _core.decode_record(first)["name"] == "new"


def test_a_full_log_is_told_and_stays_readable(tmp_path: Path) -> None:
    """The agents' agreement goes on; what ranks see stands still, and the reason is there."""
    job, _ = make_job(tmp_path / "log", 4096)
    job.apply(beginning(5))
    for number in range(200):
        job.apply(entry_of(ticket(number), record(f"attribute-{number}")))
    assert job.frozen is not None and "full" in job.frozen
    assert job.position == 200 and 0 < job.written < 200


# --- Wire.


def test_frames_and_descriptors_come_apart_as_they_went_in(tmp_path: Path) -> None:
    """However the stream is cut, each descriptor stays with its frame."""
    rng = random.Random(3)
    left, right = socket.socketpair()
    right.setblocking(False)
    reader = FrameReader(1 << 20)
    received = []
    with left, right:
        for number in range(40):
            payload = rng.randbytes(rng.randrange(2000))
            file = tmp_path / str(number)
            file.write_text(str(number))
            descriptor = os.open(file, os.O_RDONLY) if rng.random() < 0.5 else None
            data = encode_frame(Kind.APPEND, payload, descriptor=descriptor is not None)
            if descriptor is not None:
                head = rng.randrange(1, 9)
                socket.send_fds(left, [data[:head]], [descriptor])
                os.close(descriptor)
                data = data[head:]
            left.sendall(data)
            if rng.random() < 0.3:
                received += reader.receive(right) or []
            received.append((number, payload, descriptor is not None))
        frames = [each for each in received if not isinstance(each, tuple)]
        sent = [each for each in received if isinstance(each, tuple)]
        while len(frames) < len(sent):
            frames += reader.receive(right) or []
    for frame, (number, payload, with_descriptor) in zip(frames, sent, strict=True):
        assert (frame.kind, frame.payload, frame.descriptor is not None) == (Kind.APPEND, payload, with_descriptor)
        if frame.descriptor is not None:
            assert os.read(frame.descriptor, 10) == str(number).encode()
            os.close(frame.descriptor)


def test_no_bytes_make_a_reader_do_more_than_refuse() -> None:
    """Noise, long frames and missing descriptors are BadFrame, at the latest when a payload is read."""
    rng = random.Random(4)
    for _ in range(300):
        left, right = socket.socketpair()
        reader = FrameReader(4096)
        with left, right:
            left.sendall(rng.randbytes(rng.randrange(1, 200)))
            try:
                for frame in reader.receive(right) or []:
                    unpacker = Unpacker(frame.payload)
                    unpacker.u64()
                    unpacker.text()
                    unpacker.end()
            except BadFrame:
                continue
    with pytest.raises(BadFrame):
        Unpacker(Packer().u32(5).take()).text()
    with pytest.raises(BadFrame):
        Unpacker(Packer().text(b"\xff").take()).text()


def test_names_are_those_of_the_native_client() -> None:
    """tests/unit/net/agent_client_test.cc has the same number."""
    assert name_hash("job", "host") == 0x9E3F6179450B8C06
    assert name_hash("ab", "c") != name_hash("a", "bc")


# --- Folder, members.


def test_a_process_number_alone_is_no_sign_of_life(tmp_path: Path) -> None:
    """Numbers are used again: it counts with the time at which the process started."""
    folder = StateFolder(tmp_path / "state", "job", "host")
    assert not folder.belongs_to_living()
    folder.save_ranks([os.getpid()])
    assert folder.belongs_to_living()
    folder.save("ranks.json", {str(os.getpid()): start_time(os.getpid()) + 1})
    assert not folder.belongs_to_living()
    for strange in (None, [1], {"x": 1}, {"1": "y"}, {"-1": 0}):
        folder.save("ranks.json", strange)
        assert not folder.belongs_to_living()
    folder.remove()
    assert not (tmp_path / "state").exists()


def test_folders_of_different_names_never_meet(tmp_path: Path) -> None:
    """Names may hold anything, a path among it; they stay inside."""
    names = ["a", "a/b", "..", "../a", "", "a" * 300, "ä", "a\n", "-", "A"]
    paths = {StateFolder(tmp_path / "state", job, host).path for job in names for host in names}
    assert len(paths) == len(names) ** 2
    assert all(path.resolve().is_relative_to(tmp_path / "state") for path in paths)


def test_the_state_is_where_the_user_alone_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The setting first, then the session's folder, then one that carries the user's number; links are not followed."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert state_root("/x") == Path("/x")
    assert state_root() == tmp_path / "theseus"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert str(os.getuid()) in state_root().name
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidUsage):
        StateFolder(tmp_path / "link", "job", "host")


def test_members_are_checked_and_dial_the_voters_before_them() -> None:
    """Every pair with a voter has exactly one connection, and each knows who opens it."""
    rows = [(f"h{i}", f"10.0.0.{i},10.1.0.{i}:{4000 + i}") for i in range(8)]
    members = Members.of(b"s" * 16, rows)
    assert members.voters == [f"h{i}" for i in range(5)]
    pairs = {frozenset((host, other)) for host, _ in rows for other in members.to_dial(host)}
    assert pairs == {
        frozenset((a, b)) for a, _ in rows for b, _ in rows if a != b and (a in members.voters or b in members.voters)
    }
    assert sum(len(members.to_dial(host)) for host, _ in rows) == len(pairs)
    assert Members.from_saved(members.to_save()) == members
    assert Address.parse("::1,10.0.0.1:80").addresses == ["::1", "10.0.0.1"]
    for secret, wrong in ((b"short", rows), (b"s" * 16, [*rows, rows[0]]), (b"s" * 16, [("h", "nowhere")])):
        with pytest.raises(ValueError, match=r"\w"):
            Members.of(secret, wrong)
    for strange in (None, {}, {"secret": "zz", "rows": []}, {"secret": "00" * 16, "rows": [[1]]}):
        assert Members.from_saved(strange) is None


# --- Raft.


class Network:
    """Carries messages between replicas; the test loses them, cuts hosts off, and kills and restarts replicas."""

    def __init__(self, folder: Path, voters: int, followers: int, seed: int) -> None:
        self.folder = folder
        self.rng = random.Random(seed)
        self.voters = [f"v{i}" for i in range(voters)]
        self.hosts = self.voters + [f"f{i}" for i in range(followers)]
        self.replicas: dict[str, Replica] = {}
        self.applied: dict[str, list[bytes]] = {}
        self.links: set[frozenset[str]] = set()
        self.soon: list[Callable[[], None]] = []
        for host in self.hosts:
            (folder / host).mkdir()
            self.start(host)

    def start(self, host: str) -> None:
        self.applied[host] = []
        self.replicas[host] = Replica(
            host, self.voters, self.folder / host, self._sender(host), self.applied[host].append, self.soon.append
        )

    def _sender(self, host: str) -> Callable[[str, bytes], bool]:
        def send(to: str, payload: bytes) -> bool:
            if frozenset((host, to)) not in self.links:
                return False
            self.replicas[to].received(host, payload)
            return True

        return send

    def connect(self, a: str, b: str) -> None:
        if a == b or frozenset((a, b)) in self.links or not {a, b} & set(self.voters):
            return
        if a in self.replicas and b in self.replicas:
            self.links.add(frozenset((a, b)))
            self.replicas[a].connected(b)
            self.replicas[b].connected(a)

    def cut(self, a: str, b: str) -> None:
        if frozenset((a, b)) in self.links:
            self.links.discard(frozenset((a, b)))
            for one, other in ((a, b), (b, a)):
                if one in self.replicas:
                    self.replicas[one].lost(other)

    def kill(self, host: str) -> None:
        for other in self.hosts:
            self.cut(host, other)
        self.replicas.pop(host).close()

    def connect_all(self) -> None:
        for a in self.hosts:
            for b in self.hosts:
                self.connect(a, b)

    def tick(self) -> None:
        for replica in list(self.replicas.values()):
            replica.tick()

    def hurry(self, most: int) -> None:
        """Calls back, in turn, what wanted to be; not all, as on a machine that is busy."""
        for _ in range(most):
            if self.soon:
                self.soon.pop(0)()


@pytest.mark.parametrize("seed", range(4))
def test_agreed_entries_are_the_same_everywhere_and_for_good(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under cuts, kills and restarts, with the journal on disk: one order, nothing that was agreed is lost.

    The clock is the test's, so that the machine's load has no part in it.
    """
    import pysyncobj.syncobj

    now = [1000.0]
    monkeypatch.setattr(pysyncobj.syncobj, "monotonicTime", lambda: now[0])
    random.seed(seed)
    network = Network(tmp_path, 3, 1, seed)
    network.connect_all()
    agreed: list[bytes] = []
    number = 0
    for step in range(3000):
        now[0] += 0.015
        network.tick()
        network.hurry(network.rng.randrange(8))
        dice = network.rng.random()
        if dice < 0.3:
            host = network.rng.choice(list(network.replicas))
            network.replicas[host].propose(b"%d" % number, lambda _: None)
            number += 1
        elif dice < 0.31:
            network.cut(*network.rng.sample(network.hosts, 2))
        elif dice < 0.315 and len(network.replicas) == len(network.hosts):
            network.kill(network.rng.choice(network.hosts))
        elif dice < 0.34 and len(network.replicas) < len(network.hosts):
            network.start(next(host for host in network.hosts if host not in network.replicas))
        elif dice < 0.40:
            network.connect(*network.rng.sample(network.hosts, 2))
        longest = max(network.applied.values(), key=len)
        if len(longest) > len(agreed):
            assert longest[: len(agreed)] == agreed, f"step {step}: what was agreed has changed"
            agreed = list(longest)
    for host in network.hosts:
        if host not in network.replicas:
            network.start(host)
    network.connect_all()
    for _ in range(400):
        now[0] += 0.015
        network.tick()
        network.hurry(100)
    logs = list(network.applied.values())
    assert all(log == logs[0] for log in logs)
    assert logs[0][: len(agreed)] == agreed
    assert len(agreed) > 100
    assert all(replica.has_quorum for replica in network.replicas.values())


@pytest.mark.parametrize("proposer", ["v0", "v1", "v2", "f0"])
def test_a_proposal_waits_for_no_tick(tmp_path: Path, proposer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a leader, an entry is applied everywhere while the clock stands still."""
    import pysyncobj.syncobj

    now = [1000.0]
    monkeypatch.setattr(pysyncobj.syncobj, "monotonicTime", lambda: now[0])
    network = Network(tmp_path, 3, 1, seed=0)
    network.connect_all()
    for _ in range(400):
        now[0] += 0.015
        network.tick()
    before = [len(applied) for applied in network.applied.values()]
    network.replicas[proposer].propose(b"entry", lambda _: None)
    network.hurry(100)
    assert [len(applied) for applied in network.applied.values()] == [count + 1 for count in before]
    assert not network.soon, "an agent without work would never rest"
