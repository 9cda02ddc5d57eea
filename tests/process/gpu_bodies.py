"""What tests of GPU buffers run in a process of its own, where THESEUS_DEVICE=cuda-emu holds from the start."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

import theseus_py
from theseus_py import Communicator, _core, create_unique_id, device, errors, group, init_all


def refused(call: Callable[[], Any], error: type[Exception], *words: str) -> None:
    """The call fails with one sentence that holds the words."""
    try:
        call()
    except error as refusal:
        text = str(refusal)
        assert all(word in text for word in words), text
        assert "\n" not in text, text
        return
    raise AssertionError("the call went well")


def arrays() -> None:
    values = np.arange(24, dtype=np.int32).reshape(4, 6)
    array = device.from_numpy(values)
    assert array.shape == (4, 6) and array.nbytes == 96 and array.device == 0 and len(array) == 4
    assert (array.numpy() == values).all()
    assert (array[1:3].numpy() == values[1:3]).all()
    assert array[4:9].numpy().size == 0
    assert (array.reshape(24)[5:7].numpy() == [5, 6]).all()
    assert array.view("uint8").shape == (96,)
    array[3:4].copy_from(np.full((1, 6), -1))
    assert (array.numpy()[3] == -1).all() and (array.numpy()[:3] == values[:3]).all()
    array[:1].fill_bytes(0)
    assert (array.numpy()[0] == 0).all()
    other = device.empty((), np.float64, 3).copy_from(2.5)
    assert other.device == 3 and other.numpy() == 2.5
    interface = array.__cuda_array_interface__
    assert (
        interface["shape"] == (4, 6) and interface["typestr"] == "<i4" and interface["data"] == (array.address, False)
    )
    assert _core.gpu_driver().pointer_info(array.address)["kind"] == "device"
    refused(lambda: array[::2], errors.InvalidArgument, "slices")
    refused(lambda: array.copy_from(np.zeros(3)), errors.InvalidArgument, "(3,)", "(4, 6)")
    refused(lambda: array.reshape(5), errors.InvalidArgument, "24 elements")
    refused(lambda: device.empty(-1), errors.InvalidArgument, "negative")
    refused(lambda: device.empty(1, np.float32, 99), errors.InvalidArgument, "99")
    refused(lambda: theseus_py.empty(4), errors.InvalidUsage, "device.empty()")


def memory_goes_back() -> None:
    """Far more than a device has, a piece at a time; a view keeps the whole."""
    piece = device.describe().memory_bytes // 3
    for _ in range(10):
        array = device.empty(piece, np.uint8)
        view = array[5:6]
        del array
        view.fill_bytes(1)
    refused(lambda: device.empty(4 * piece, np.uint8), errors.UnhandledCudaError, "out of memory")


def streams() -> None:
    stream = device.Stream(1)
    assert stream.device == 1 and stream.done()
    for form in (
        stream,
        stream.handle,
        SimpleNamespace(cuda_stream=stream.handle),
        SimpleNamespace(ptr=stream.handle),
        SimpleNamespace(__cuda_stream__=lambda: (0, stream.handle)),
    ):
        assert device.handle_of(form) == stream.handle
    assert device.handle_of(None) == device.handle_of(1) == 0
    refused(lambda: device.handle_of("s"), errors.InvalidArgument, "str", "no stream")


class Named:
    """Nothing but the interface, with the stream that its owner works on."""

    def __init__(self, array: device.Array, **changes: Any) -> None:
        self.array = array
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, **changes}


def collectives() -> None:
    """Ranks on one GPU and on three; NumPy knows the results."""
    on_devices([0, 0, 0])
    on_devices([0, 1, 2])


def on_devices(devices: list[int]) -> None:
    ranks = len(devices)
    communicators = init_all(ranks, devices)
    assert [each.device for each in communicators] == devices
    lanes = [device.Stream(ordinal) for ordinal in devices]
    given = [np.arange(6 * ranks, dtype=np.float32) + 10 * rank for rank in range(ranks)]
    total = np.sum(given, axis=0)
    send = [device.from_numpy(values, at) for values, at in zip(given, devices, strict=True)]
    recv = [device.empty(6 * ranks, np.float32, at) for at in devices]
    share = slice(0, 6)

    def run(call: Callable[[int], Any]) -> None:
        with group():
            for rank in range(ranks):
                call(rank)
        for lane in lanes:
            lane.synchronize()

    run(lambda r: communicators[r].all_reduce(send[r], recv[r], stream=lanes[r]))
    assert all((each.numpy() == total).all() for each in recv)
    run(lambda r: communicators[r].all_gather(send[r][share], recv[r], stream=lanes[r].handle))
    assert all((each.numpy() == np.concatenate([values[:6] for values in given])).all() for each in recv)
    run(lambda r: communicators[r].reduce_scatter(send[r], recv[r][share], stream=lanes[r]))
    assert all((recv[r][share].numpy() == total[6 * r : 6 * r + 6]).all() for r in range(ranks))
    run(lambda r: communicators[r].broadcast(send[r], root=1, stream=lanes[r]))
    assert all((each.numpy() == given[1]).all() for each in send)
    for communicator in communicators:
        communicator.abort()


def pair(body: Callable[[Communicator, device.Stream], None]) -> None:
    """body(communicator, stream) as two ranks, each a thread with a GPU."""
    unique_id = create_unique_id()
    failures: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            with Communicator.init(unique_id, 2, rank, device=rank) as communicator:
                device.set_current(rank)
                body(communicator, device.Stream())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def stream_order() -> None:
    """Calls take their place in the stream given, or in the one that the array names; a Work says when it is there."""

    def body(communicator: Communicator, stream: device.Stream) -> None:
        driver = device.driver()
        array = device.from_numpy(np.ones(1000, np.float32))
        gate = threading.Event()
        driver.call_host(stream.device, stream.handle, lambda: gate.wait(20))
        work = communicator.all_reduce(array, async_op=True, stream=stream)
        assert work is not None and not work.done() and work.exception() is None
        refused(lambda: work.wait(0.01), errors.Timeout)
        gate.set()
        work.wait()
        assert work.done()
        assert (array.numpy(stream) == 2).all()
        gate.clear()
        driver.call_host(stream.device, stream.handle, lambda: gate.wait(20))
        communicator.all_reduce(Named(array, stream=stream.handle))
        assert not stream.done()
        gate.set()
        stream.synchronize()
        assert (array.numpy(stream) == 4).all()
        communicator.all_reduce(Named(array, stream=1))
        assert (array.numpy() == 8).all()

    pair(body)


def refusals() -> None:
    """Memory of the wrong kind, before anything is queued: the sentence names the argument and the way out."""

    def body(communicator: Communicator, stream: device.Stream) -> None:
        host = np.zeros(4, np.float32)
        array = device.from_numpy(host)
        out = ("lies in host memory", "THESEUS_DEVICE=cuda-emu", "theseus_py.device", "THESEUS_DEVICE=host")
        refused(lambda: communicator.all_reduce(host), errors.InvalidArgument, "all_reduce: send", *out)
        refused(lambda: communicator.all_reduce(array, host), errors.InvalidArgument, "all_reduce: recv", *out)
        refused(lambda: communicator.broadcast(b"1234"), errors.InvalidArgument, "broadcast: data")
        wrong = Named(array, strides=(8,))
        refused(lambda: communicator.all_reduce(wrong), errors.InvalidArgument, "not C-contiguous")
        fixed = Named(array, data=(array.address, True))
        refused(lambda: communicator.all_reduce(fixed), errors.InvalidArgument, "read-only")
        masked = Named(array, mask=array)
        refused(lambda: communicator.all_reduce(masked), errors.InvalidArgument, "masked")
        refused(lambda: communicator.all_reduce(array, stream="s"), errors.InvalidArgument, "stream is a str")
        communicator.all_reduce(array, stream=stream)

    pair(body)


def pinned() -> None:
    """Host memory that GPUs reach is taken."""

    def body(communicator: Communicator, stream: device.Stream) -> None:
        raw = np.ones(3 * 4096, np.uint8)
        start = (-raw.ctypes.data) % 4096
        page = raw[start : start + 4096]
        device.driver().register_host(page.ctypes.data, 4096)
        communicator.all_reduce(page, stream=stream)
        stream.synchronize()
        assert (page == 2).all()
        device.driver().unregister_host(page.ctypes.data)

    pair(body)


def main() -> None:
    globals()[sys.argv[1]]()


if __name__ == "__main__":
    main()
