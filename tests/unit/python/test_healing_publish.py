"""What goes into the log when NICs change: transcripts, and that a new leader would decide the same."""

from __future__ import annotations

import itertools
import json
import re

import numpy as np
import pytest

from theseus_py.healing.plan import predicted_time
from theseus_py.healing.publish import (
    MAPS_KEPT,
    Cluster,
    GainRule,
    Published,
    ThetaRule,
    decide,
    size_classes,
)

CLUSTER = Cluster(4, 4)


def sick(**nics: float) -> np.ndarray:
    """`h1r2=0.5`: host 1, rail 2."""
    health = np.ones((4, 4))
    for name, left in nics.items():
        health[int(name[1]), int(name[3])] = left
    return health


class Job:
    """A log, and what is decided on it."""

    def __init__(self, rule=None, cluster: Cluster = CLUSTER) -> None:
        self.log: list[dict] = []
        self.rule = rule
        self.cluster = cluster
        self.published = Published()
        self.step(np.ones((cluster.hosts, cluster.rails)))

    def step(self, health) -> list[dict]:
        records = decide(self.published, health, self.cluster, self.rule)
        fresh = Published()
        for record in self.log:
            fresh.take(record)
        assert decide(fresh, health, self.cluster, self.rule) == records
        for record in records:
            json.dumps(record)
            self.published.take(record)
        self.log += records
        assert decide(self.published, health, self.cluster, self.rule) == []
        return records


def kinds(records: list[dict]) -> list[str]:
    """Runs of equal kinds once: schedule, exogenous nic_health, ..."""
    names = [f"{r['kind']} {r['name']}" if r["kind"] != "schedule" else "schedules" for r in records]
    names = ["removals" if name.startswith("remov") else name for name in names]
    return [name for n, name in enumerate(names) if n == 0 or names[n - 1] != name]


def test_a_healthy_cluster_only_defines_the_attributes() -> None:
    job = Job()
    assert job.log == [
        {"kind": "attribute", "name": "nic_health", "hook": "exogenous", "length": 16, "initial": 1.0},
        {"kind": "attribute", "name": "healing", "hook": "exogenous", "length": 1, "initial": 0.0},
    ]


def test_a_slow_nic_and_its_recovery() -> None:
    job = Job()
    records = job.step(sick(h1r2=0.5))
    assert kinds(records) == ["update nic_health", "schedules", "update healing"]
    assert records[0]["elements"] == [[6, 0.5]]
    assert records[-1]["elements"] == [[0, 1]]
    schedules = [record for record in records if record["kind"] == "schedule"]
    assert {record["collective"] for record in schedules} == {
        "AllReduce", "AllGather", "ReduceScatter", "Broadcast", "AllToAll",
    }  # fmt: skip
    first = schedules[0]
    assert first["name"] == "heal.1.AllReduce.262144"
    assert first["usable"] == ("healing == 1 and bytes >= 262144 and bytes < 16777216 and ranks == 4 and hosts == 4")
    assert (first["score"], first["replaces"], first["root"]) == ("0", "", -1)
    assert re.match(r"healed:hosts=4;rails=4;chunks=\d+;shares=", first["algorithm"])
    assert kinds(job.step(np.ones((4, 4)))) == ["update nic_health", "update healing"]
    assert job.published.healing == 0
    again = job.step(sick(h1r2=0.5))
    assert kinds(again) == ["update nic_health", "update healing"]
    assert again[-1]["elements"] == [[0, 1]]


def test_a_second_nic_gets_a_map_of_its_own_and_a_dead_one_too() -> None:
    job = Job()
    job.step(sick(h1r2=0.5))
    records = job.step(sick(h1r2=0.5, h3r0=0.25))
    assert kinds(records) == ["update nic_health", "schedules", "update healing"]
    assert job.published.healing == 2
    job.step(sick(h1r2=0.0, h3r0=0.25))
    assert job.published.healing == 3
    algorithm = job.published.maps[3]["heal.3.AllReduce.67108864"]
    assert predicted_time("AllReduce", algorithm, sick(h1r2=0.0, h3r0=0.25)) < 1.15


def test_the_plan_in_use_stays_while_it_is_good_enough() -> None:
    job = Job()
    job.step(sick(h1r2=0.1))
    for left in (0.13, 0.05, 0.0, 0.17):
        records = job.step(sick(h1r2=left))
        assert [record["name"] for record in records if record["kind"] != "attribute"] in ([], ["nic_health"])
    assert job.published.healing == 1
    job.step(sick(h1r2=0.75))
    assert job.published.healing == 2


def test_a_cut_off_host_has_no_map() -> None:
    job = Job()
    dead = np.ones((4, 4))
    dead[2] = 0
    assert kinds(job.step(dead)) == ["update nic_health"]


def test_the_gain_rule_has_hysteresis() -> None:
    job = Job(GainRule(least=0.15, keep=0.07), Cluster(4, 4))
    assert kinds(job.step(sick(h0r0=0.875))) == ["update nic_health"]
    job.step(sick(h0r0=0.5))
    assert job.published.healing > 0
    job.step(sick(h0r0=0.875))
    assert job.published.healing > 0
    job.step(sick(h0r0=0.9375))
    assert job.published.healing == 0


def test_the_theta_rule_has_hysteresis() -> None:
    job = Job(ThetaRule(0.5))
    assert kinds(job.step(sick(h0r0=0.5))) == ["update nic_health"]
    job.step(sick(h0r0=0.4375))
    assert job.published.healing > 0
    job.step(sick(h0r0=0.5625))
    assert job.published.healing > 0
    job.step(sick(h0r0=0.625))
    assert job.published.healing == 0


def test_old_maps_are_retired_but_never_the_one_in_use() -> None:
    job = Job()
    rng = np.random.default_rng(4)
    for round_ in range(3 * MAPS_KEPT):
        health = np.ones((4, 4))
        health[rng.integers(4), rng.integers(4)] = rng.choice([0.0, 0.25, 0.5, 0.75])
        health[rng.integers(4), rng.integers(4)] = rng.choice([0.0, 0.25, 0.5])
        job.step(health)
        published = job.published
        assert published.healing in {0, *published.maps}
        assert len(published.maps) <= MAPS_KEPT + 2, round_
    names = [record["name"] for record in job.log if record["kind"] == "schedule"]
    assert len(names) == len(set(names)), "a removed name is never given again"
    assert any(record["kind"] == "removal" for record in job.log)


def test_schedules_come_before_the_number_and_removals_last() -> None:
    job = Job()
    for left in (0.0, 0.25, 0.3125, 0.375, 0.5, 0.5625, 0.625, 0.6875, 0.75):
        for host in range(2):
            order = kinds(job.step(sick(**{f"h{host}r1": left})))
            expected = ["update nic_health", "schedules", "update healing", "removals"]
            assert order == [name for name in expected if name in order]


def test_foreign_records_are_passed_over() -> None:
    published = Published()
    for record in (
        {"kind": "schedule", "name": "mine", "algorithm": "ring"},
        {"kind": "schedule", "name": "heal.x.AllReduce.1", "algorithm": "ring"},
        {"kind": "removal", "name": "heal.7.AllReduce.1"},
        {"kind": "update", "name": "skew", "elements": [[0, 2.0]]},
        {"kind": "attribute", "name": "skew"},
    ):
        published.take(record)
    assert published.maps == {} and published.healing == 0


def test_size_classes_have_no_gaps() -> None:
    classes = size_classes()
    assert classes[0][0] == 256 << 10 and classes[-1][1] == 0
    assert all(below == low for (_, below, _), (low, _, _) in itertools.pairwise(classes))
    assert all(low <= size for low, _, size in classes)


def test_a_map_of_another_cluster_is_refused() -> None:
    with pytest.raises(ValueError, match="the cluster is not"):
        decide(Published(), np.ones((3, 4)), CLUSTER)
