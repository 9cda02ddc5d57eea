"""A cluster on one machine: hosts as network namespaces, with NICs whose speed is set, and changed while they run.

    from theseus_py.testbed import Testbed

    with Testbed(hosts=4, nics=4, rate="200mbit") as bed:
        job = bed.launch(["python", "train.py"])      # one rank a host
        bed.cap(1, 2, 0.1)                            # NIC 2 of host 1: a tenth of its speed, both directions
        job.wait()

Every host is a network namespace with interfaces eth0, eth1, ...; all NICs of one number meet at one switch (a bridge),
the rail's top of rack. One more network without a limit, mgmt0, is for what clusters keep apart: start-up and control.
Works as root, and as anybody where the kernel lets users make namespaces; `missing()` says what is lacking. A process
keeps the bed (`keeper.py`); with its end, however it comes, all is gone.
"""

from __future__ import annotations

from theseus_py.testbed.bed import HostProcess, Testbed, missing
from theseus_py.testbed.errors import TestbedError
from theseus_py.testbed.job import Job, JobFailed
from theseus_py.testbed.shape import Shape, Traffic, parse_rate

__all__ = ["HostProcess", "Job", "JobFailed", "Shape", "Testbed", "TestbedError", "Traffic", "missing", "parse_rate"]
