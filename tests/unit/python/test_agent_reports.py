"""What ranks report: read with every size checked, kept without end of nothing, shown by status and to Prometheus."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from theseus_py.agent.metrics import families_of
from theseus_py.agent.reports import RankReport, Reports, Selection, communicators_of, read_report
from theseus_py.agent.wire import BadFrame, Packer

_ORIGINS = {"built-in": 0, "context": 1, "loaded": 2}

REPORT = RankReport(
    communicator="0123456789abcdef" * 2, name="world", rank=1, ranks=4, epoch=3, installed=7, read=9, agreements=40,
    next_k=100, held_back_by=None, resource_bytes=1 << 20, resource_nodes=12, samples=500, p50_ns=800, p99_ns=12_000,
    selections=(
        Selection("AllGather", 20, "ring", "built-in", True, 5),
        Selection("AllReduce", 10, "even", "context", False, 2**40),
    ),
)  # fmt: skip


def head(report: RankReport, what: int) -> Packer:
    return Packer().u32(1).u32(what).text(report.communicator).u32(report.rank).u32(report.ranks)


def encode(report: RankReport) -> bytes:
    """Write a report as csrc/runtime/rank_report.cc does."""
    out = head(report, 0).text(report.name)
    out.u64(report.epoch).u64(report.installed).u64(report.read).u64(report.agreements)
    out.u32(report.next_k).u32(2**32 - 1 if report.held_back_by is None else report.held_back_by)
    out.u64(report.resource_bytes).u64(report.resource_nodes)
    out.u64(report.samples).u32(report.p50_ns).u32(report.p99_ns).u32(len(report.selections))
    for each in report.selections:
        out.text(each.collective).u32(each.size_class).u32(_ORIGINS[each.origin]).u32(each.may_share)
        out.u64(each.since).text(each.schedule)
    return out.take()


def end(report: RankReport) -> bytes:
    return head(report, 1).take()


def test_a_report_is_read_as_it_was_written() -> None:
    assert read_report(encode(REPORT)) == REPORT
    held = replace(REPORT, held_back_by=3, name="", selections=())
    assert read_report(encode(held)) == held
    assert read_report(end(REPORT)) == (REPORT.communicator, REPORT.rank)


def test_what_cannot_be_is_refused() -> None:
    """Cut anywhere or longer: refused. Any byte wrong: refused or read, and nothing else is raised."""
    whole = encode(REPORT)
    for size in range(len(whole)):
        with pytest.raises(BadFrame):
            read_report(whole[:size])
    with pytest.raises(BadFrame):
        read_report(whole + b"\0")
    with pytest.raises(BadFrame):
        read_report(end(REPORT) + b"\0")
    rng = random.Random(1)
    for _ in range(2000):
        wrong = bytearray(whole)
        wrong[rng.randrange(len(wrong))] = rng.randrange(256)
        try:
            read_report(bytes(wrong))
        except BadFrame:
            continue


@pytest.mark.parametrize(
    "wrong",
    [
        replace(REPORT, rank=4),
        replace(REPORT, rank=0, ranks=0),
        replace(REPORT, selections=(replace(REPORT.selections[0], size_class=64),)),
        replace(REPORT, selections=REPORT.selections * 600),
        replace(REPORT, name="x" * (1 << 18)),
    ],
)
def test_numbers_that_cannot_be_are_refused(wrong: RankReport) -> None:
    with pytest.raises(BadFrame):
        read_report(encode(wrong))


def test_another_version_is_passed_over() -> None:
    reports = Reports()
    reports.take(Packer().u32(2).text("whatever").take(), 1.0)
    assert reports.newest() == []


def test_a_name_cut_inside_a_letter_is_read() -> None:
    payload = encode(replace(REPORT, name="wörld")).replace("wörld".encode(), b"w\xc3rld!")
    read = read_report(payload)
    assert isinstance(read, RankReport) and read.name == "w\ufffdrld!"


def test_the_newest_report_counts_until_the_end() -> None:
    reports = Reports()
    reports.take(encode(REPORT), 1.0)
    reports.take(encode(replace(REPORT, rank=2)), 1.5)
    reports.take(encode(replace(REPORT, epoch=4)), 2.0)
    assert {(at, each.rank, each.epoch) for at, each in reports.newest()} == {(1.5, 2, 3), (2.0, 1, 4)}
    reports.take(end(REPORT), 3.0)
    reports.take(end(REPORT), 3.0)
    assert [each.rank for _, each in reports.newest()] == [2]


def test_one_process_cannot_fill_the_agent() -> None:
    """Of more communicators than are kept, those that reported last stay."""
    reports = Reports()
    for number in range(1000):
        reports.take(encode(replace(REPORT, communicator=f"{number:032x}")), float(number))
    kept = reports.newest()
    assert [at for at, _ in kept] == [float(number) for number in range(1000 - len(kept), 1000)]
    assert 0 < len(kept) < 1000


def test_status_groups_ranks_and_joins_size_classes() -> None:
    """One entry a communicator; neighbouring classes of one schedule are one row, a gap or another schedule ends it."""
    classes = [(10, "a", 1), (11, "a", 4), (12, "b", 2), (13, "a", 3), (15, "a", 5)]
    selections = tuple(Selection("AllReduce", size, name, "built-in", False, since) for size, name, since in classes)
    reports = [
        (5.0, replace(REPORT, rank=1, selections=selections)),
        (4.0, replace(REPORT, rank=0, selections=())),
        (5.0, replace(REPORT, communicator="f" * 32, ranks=8)),
    ]
    large, small = communicators_of(reports, 6.0)
    assert (large["id"], large["ranks"]) == ("f" * 32, 8)
    assert [(rank["rank"], rank["age"]) for rank in small["local"]] == [(0, 2.0), (1, 1.0)]
    rows = [(row["from_bytes"], row["to_bytes"], row["schedule"], row["since"]) for row in small["schedules"]]
    assert rows == [
        (1024, 4095, "a", 4), (4096, 8191, "b", 2), (8192, 16383, "a", 3), (32768, 65535, "a", 5)
    ]  # fmt: skip


def test_prometheus_has_each_rank_and_schedule_once() -> None:
    reports = [(5.0, REPORT), (5.0, replace(REPORT, rank=0, samples=0)), (5.0, replace(REPORT, communicator="f" * 32))]
    status: dict[str, Any] = {
        "job": "train", "host": "a", "position": 7, "readable": 7, "frozen": None, "attributes": [], "members": [],
        "has_quorum": True, "leader": "a", "ranks": [], "schedules": [], "missing_plans": [],
        "communicators": communicators_of(reports, 6.0),
    }  # fmt: skip
    families = families_of(status)
    assert len({family.name for family in families}) == len(families)
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value for family in families for sample in family.samples
    }
    assert len(samples) == sum(len(family.samples) for family in families)

    def value(name: str, **labels: str) -> list[float]:
        wanted = {"job": "train", "host": "a", "communicator": REPORT.communicator, **labels}.items()
        return [found for (named, *pairs), found in samples.items() if named == name and set(wanted) <= set(pairs)]

    assert value("theseus_context_epoch", rank="1") == [3]
    assert value("theseus_context_installed_records", rank="1") == [7]
    assert value("theseus_context_read_records", rank="1") == [9]
    assert value("theseus_agreements_total", rank="1") == [40]
    assert value("theseus_agreement_interval_requests", rank="1") == [100]
    assert value("theseus_resource_bytes", rank="1") == [1 << 20]
    assert value("theseus_resource_nodes", rank="1") == [12]
    assert value("theseus_tte_seconds", rank="1", quantile="0.99") == [12e-6]
    assert value("theseus_tte_seconds", rank="0") == []
    assert value("theseus_schedule_in_use", collective="AllReduce", schedule="even", from_bytes="1024") == [2**40]
