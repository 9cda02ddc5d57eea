"""NICs have the rate they were given, in both directions; caps act on live flows, alone where they should, and heal."""

from __future__ import annotations

import pytest
from cluster.conftest import RATE
from cluster.watch import GOODPUT, flow, rates, reaches, until, until_it_flows

from theseus_py.testbed import Testbed, missing

FULL = RATE * GOODPUT
# What a window of a second may hold beyond the rate: a bucket of 128 KiB and a packet of 64 KiB.
BURST = 1.6e6


def test_every_nic_has_its_rate_in_both_directions(bed: Testbed) -> None:
    """Four flows at once, one in each direction of two NICs: each gets the whole rate, and no more."""
    for nic in range(2):
        flow(bed, 0, 1, nic, 7000 + nic)
        flow(bed, 1, 0, nic, 7100 + nic)
    for nic in range(2):
        until_it_flows(bed, 0, nic)
        until_it_flows(bed, 1, nic)
    for host in range(2):
        for nic in range(2):
            assert reaches(lambda host=host, nic=nic: rates(bed)[host][nic][0], FULL) >= 0.9 * FULL  # type: ignore[misc]
    for host in rates(bed)[:2]:
        assert all(one_way <= 1.05 * FULL + BURST for nic in host for one_way in nic)


@pytest.mark.parametrize("source, sink", [(0, 1), (1, 0)], ids=["out", "in"])
def test_a_cap_acts_in_both_directions(bed: Testbed, source: int, sink: int) -> None:
    """Capping NIC 0 of host 0 slows what it sends and what it receives, and leaves NIC 1 alone."""
    flow(bed, source, sink, 0, 7000)
    flow(bed, source, sink, 1, 7001)
    until_it_flows(bed, source, 0)
    until_it_flows(bed, source, 1)
    bed.cap(0, 0, 0.2)
    rates(bed, 0.5)  # what was under way
    way = source  # the place in (sent, received) of what host 0 does
    assert rates(bed)[0][0][way] <= 0.2 * 1.05 * FULL + BURST
    assert reaches(lambda: rates(bed)[0][0][way], 0.2 * FULL) >= 0.18 * FULL
    assert reaches(lambda: rates(bed)[0][1][way], FULL) >= 0.9 * FULL


def test_a_direction_can_be_capped_alone(bed: Testbed) -> None:
    """With `direction="out"` what comes in keeps its rate."""
    bed.cap(0, 0, 0.3, "out")
    # One after the other: acknowledgements would wait behind the data that goes their way.
    sender, _ = flow(bed, 1, 0, 0, 7001)
    until_it_flows(bed, 1, 0)
    assert reaches(lambda: rates(bed)[0][0][1], FULL) >= 0.9 * FULL
    sender.kill()
    flow(bed, 0, 1, 0, 7000)
    until_it_flows(bed, 0, 0)
    assert rates(bed)[0][0][0] <= 0.3 * 1.05 * FULL + BURST
    assert bed.status()["caps"][0] == [[0.3, 1.0], [1.0, 1.0]]


def test_a_dead_nic_lets_nothing_through_and_comes_back(bed: Testbed) -> None:
    """At 0 the flow stands still; back at 1 the same connection goes on at the full rate."""
    sender, receiver = flow(bed, 0, 1, 0, 7000)
    until_it_flows(bed, 0, 0)
    bed.cap(0, 0, 0.0)
    rates(bed, 0.5)
    assert rates(bed)[0][0][0] < 0.03 * FULL
    bed.cap(0, 0, 1.0)
    until_it_flows(bed, 0, 0)
    assert reaches(lambda: rates(bed)[0][0][0], FULL) >= 0.9 * FULL
    assert sender.poll() is None and receiver.poll() is None


def test_caps_that_make_no_sense_are_refused(bed: Testbed) -> None:
    """Each with a sentence that says what there is; the testbed goes on."""
    for arguments, words in [
        ((3, 0, 0.5), "hosts are 0 to 2"),
        ((0, 2, 0.5), "NICs are 0 to 1"),
        ((0, 0, 1.5), "from 0 to 1"),
        ((0, 0, 0.5, "up"), "both, out or in"),
    ]:
        with pytest.raises(ValueError, match=words):
            bed.cap(*arguments)  # type: ignore[arg-type]
    assert bed.status()["caps"][0] == [[1.0, 1.0], [1.0, 1.0]]


def test_the_management_network_has_no_limit(bed: Testbed) -> None:
    """Control messages do not wait behind data, even where every NIC of a host is dead."""
    for nic in range(2):
        bed.cap(0, nic, 0.0)
    code = "import socket, sys; socket.create_connection((sys.argv[1], 7000)).sendall(b'x'); print('sent')"
    server = "import socket; print(socket.create_server(('', 7000)).accept()[0].recv(1))"
    receiver = bed.start(0, ["python3", "-c", server])
    retry = (
        f'for i in 1 2 3 4 5 6 7 8 9; do python3 -c "{code}" {bed.shape.management_address(0)} && exit; sleep 0.3; done'
    )
    assert bed.start(1, ["sh", "-c", retry]).wait(30) == 0
    assert receiver.wait(30) == 0


def test_higher_dscp_goes_first() -> None:
    """Two senders share a port: the one with CS7 gets nearly all of it, and the other the port when it ends."""
    if missing():
        pytest.skip("; ".join(missing()))
    with Testbed(hosts=3, nics=1, rate=RATE, priorities=True) as bed:
        low, _ = flow(bed, 0, 2, 0, 7000, dscp=8)
        until_it_flows(bed, 0, 0)
        assert reaches(lambda: rates(bed)[0][0][0], FULL) >= 0.9 * FULL
        high, _ = flow(bed, 1, 2, 0, 7001, dscp=56)
        until_it_flows(bed, 1, 0)
        rates(bed, 0.5)
        assert reaches(lambda: rates(bed)[1][0][0], FULL) >= 0.9 * FULL
        assert rates(bed)[0][0][0] < 0.15 * FULL
        high.kill()
        until(lambda: rates(bed, 0.5)[0][0][0] > 0.5 * FULL, "the low flow's return")
        assert low.poll() is None
