"""Counters keep their promise: what ran is counted once, by collective, with the bytes of the larger buffer."""

from __future__ import annotations

import threading

import numpy as np

import theseus_py


def test_requests_and_bytes_are_counted() -> None:
    before = theseus_py.counters()["collectives"].get("AllGather", {"requests": 0, "bytes": 0})
    communicators = theseus_py.init_all(2)
    outputs = [np.empty(6, np.float32) for _ in communicators]

    def run(rank: int) -> None:
        communicators[rank].all_gather(np.full(3, rank, np.float32), outputs[rank])

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = theseus_py.counters()["collectives"]["AllGather"]
    for communicator in communicators:
        communicator.destroy()
    assert [output.tolist() for output in outputs] == [[0, 0, 0, 1, 1, 1]] * 2
    assert after["requests"] - before["requests"] == 2
    assert after["bytes"] - before["bytes"] == 2 * outputs[0].nbytes
