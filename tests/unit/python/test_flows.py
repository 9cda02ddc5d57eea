"""Flow pages and virtual NICs, as the host's agent and the demo use them."""

import os
import subprocess
import sys

import pytest

from theseus_py import _core
from theseus_py.errors import InvalidArgument, RemoteError

READ = """
import sys
from theseus_py import _core
page = _core.FlowPage(int(sys.argv[1]))
print(page.head()["pid"], page.head()["identity"], len(page.read()))
"""


def test_another_process_reads_the_page() -> None:
    """A process that got the descriptor sees whose page it is."""
    fd = _core.flow_page_fd()
    rows = len(_core.FlowPage(fd).read())
    child = subprocess.run(
        [sys.executable, "-c", READ, str(fd)], pass_fds=[fd], capture_output=True, text=True, check=True
    )
    assert child.stdout.split() == [str(os.getpid()), _core.host_identity(), str(rows)]


def test_no_page_is_refused() -> None:
    """A descriptor of something else is an error that says so."""
    with open(os.devnull, "rb") as nothing, pytest.raises(InvalidArgument, match="no page"):
        _core.FlowPage(nothing.fileno())


def test_a_nic_of_no_host() -> None:
    """A host that does not run, and a direction that is none, are named."""
    with pytest.raises(RemoteError, match="no-such-host"):
        _core.set_nic_rate("no-such-host", 0, 1e6)
    with pytest.raises(InvalidArgument, match="sideways"):
        _core.set_nic_rate("no-such-host", 0, 1e6, "sideways")
    with pytest.raises(InvalidArgument, match="bytes per second"):
        _core.set_nic_rate("no-such-host", 0, -1.0)
