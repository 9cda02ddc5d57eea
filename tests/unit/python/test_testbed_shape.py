"""What a testbed is told and what it tells its ranks, without making one."""

from __future__ import annotations

import pytest

from theseus_py.testbed import Shape, parse_rate
from theseus_py.testbed.job import rank_environments
from theseus_py.testbed.shape import format_rate


@pytest.mark.parametrize(
    "text, bits",
    [("200mbit", 200e6), ("1Gbit", 1e9), ("2.5gbit/s", 2.5e9), ("25MB", 200e6), ("64kbps", 64e3), ("none", None)],
)
def test_rates_are_read(text: str, bits: float | None) -> None:
    """Bits and bytes, in units of a thousand."""
    assert parse_rate(text) == bits


@pytest.mark.parametrize("text", ["", "fast", "-1mbit", "1 mile"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no rate"):
        parse_rate(text)


def test_rates_are_written_as_people_do() -> None:
    assert [format_rate(rate) for rate in (200e6, 1e9, 1.5e4, 8)] == ["200 Mbit/s", "1 Gbit/s", "15 kbit/s", "8 bit/s"]


@pytest.mark.parametrize("values", [(0, 1, 1e6), (251, 1, 1e6), (1, 0, 1e6), (1, 33, 1e6), (1, 1, 1.0)])
def test_impossible_shapes_are_refused(values: tuple[int, int, float]) -> None:
    with pytest.raises(ValueError, match="must be between"):
        Shape(*values)


def test_addresses_are_all_different() -> None:
    """At the largest shape: every NIC and every host's place on the management network."""
    shape = Shape(hosts=250, nics=32)
    addresses = [shape.address(host, nic) for host in range(250) for nic in range(32)]
    addresses += [shape.management_address(host) for host in range(250)]
    hardware = [shape.hardware_address(host, nic) for host in range(250) for nic in range(32)]
    assert len(set(addresses)) == len(addresses)
    assert len(set(hardware)) == len(hardware)


def test_what_contradicts_the_testbed_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual hosts and paced rails of the caller do not reach ranks, chosen NICs do; every job has its own ports."""
    monkeypatch.setenv("THESEUS_HOST", "elsewhere")
    monkeypatch.setenv("THESEUS_NIC_RATE", "1mbit")
    shape = Shape(hosts=2, nics=2)
    first, second = rank_environments(shape, [1, 0], 1, 1, {"THESEUS_NICS": "eth1"})
    other = rank_environments(shape, [0], 1, 2, {})[0]
    assert "THESEUS_HOST" not in first and "THESEUS_NIC_RATE" not in first
    assert first["THESEUS_NICS"] == second["THESEUS_NICS"] == "eth1"
    assert other["THESEUS_NICS"] == "eth0,eth1"
    assert first["MASTER_ADDR"] == shape.management_address(1)
    assert first["MASTER_PORT"] != other["MASTER_PORT"]
