"""ProcessGroupTheseus: what torch.distributed calls, in terms of the communicator.

Every method checks its tensors, then hands native calls to `GroupBase.issue`, with the action that puts the result
where the caller wants it. Methods come in the two forms that torch uses: with lists and an options object, and with a
single tensor. Names are torch's, old and new.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import AllreduceOptions

from theseus_py.dtypes import Collective
from theseus_py.errors import TheseusError
from theseus_py.torch.base import GroupBase
from theseus_py.torch.reductions import Reduction
from theseus_py.torch.tensors import (
    NUMBERS,
    REDUCTION_BY_HASH,
    flatten,
    readable,
    same_dtype,
    unflatten,
    wire_for_moving,
    writable,
)
from theseus_py.torch.work import CombinedWork, backend_error

Tensor = torch.Tensor


def _one(tensors: Any, what: str) -> Tensor:
    """Return the tensor of a list of one; torch passes both."""
    if isinstance(tensors, Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"{what}: takes one tensor per rank, not {len(tensors)}")
    tensor: Tensor = tensors[0]
    return tensor


def _list(tensors: Any, what: str) -> list[Tensor]:
    """Return the list in a list of one list."""
    if len(tensors) == 1 and not isinstance(tensors[0], Tensor):
        return list(tensors[0])
    if tensors and not isinstance(tensors[0], Tensor):
        raise ValueError(f"{what}: takes one list of tensors per rank, not {len(tensors)}")
    return list(tensors)


_ALL_REDUCE = int(Collective.ALL_REDUCE)


class ProcessGroupTheseus(GroupBase):
    """A process group of CPU tensors over one communicator."""

    # --- Reductions.

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None, *, op: Any = None) -> dist.Work:
        """Reduce in place, on all ranks. Small synchronous calls take the first lines only."""
        if type(opts) is AllreduceOptions and not opts.asyncOp and len(tensors) == 1:
            tensor = tensors[0]
            code = NUMBERS.get(tensor.dtype)
            reduction = REDUCTION_BY_HASH.get(hash(opts.reduceOp))
            if (
                code is not None
                and reduction is not None
                and tensor.is_cpu
                and tensor.is_contiguous()
                and not tensor.is_neg()
            ):
                address = tensor.data_ptr()
                try:
                    self._run(_ALL_REDUCE, address, address, tensor.numel(), code, reduction, 0)
                except TheseusError as error:
                    raise backend_error(error) from error
                return self._done
        opts = self.options_of(opts if op is None else op, timeout)
        return self.combine([self._allreduce(tensor, opts) for tensor in self._tensors_of(tensors)])

    def _tensors_of(self, tensors: Any) -> list[Tensor]:
        return [tensors] if isinstance(tensors, Tensor) else list(tensors)

    def _allreduce(self, tensor: Tensor, opts: Any) -> dist.Work:
        reduction = Reduction.of(opts.reduceOp, tensor.dtype, "all_reduce")
        memory, copy_back = writable(tensor, "all_reduce", reads=True)
        address = memory.data_ptr()
        if reduction.local is not None:
            flat = torch.empty((self.size(), memory.numel()), dtype=memory.dtype)
            wire = wire_for_moving(memory.dtype)
            call = (Collective.ALL_GATHER, address, flat.data_ptr(), memory.numel() * wire.parts, wire.code, 0, 0)

            def finish() -> None:
                memory.view(-1).copy_(reduction.reduce_locally(flat))
                if copy_back is not None:
                    copy_back()

            return self.issue([call], [tensor], finish, (memory, flat), opts)
        with reduction.native(self.core) as native:
            count = memory.numel() * reduction.wire.parts
            call = (Collective.ALL_REDUCE, address, address, count, reduction.wire.code, native, 0)
            return self.issue([call], [tensor], copy_back, memory, opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> dist.Work:
        """all_reduce of several tensors, in order."""
        opts = self.options_of(opts)
        return self.combine([self._allreduce(tensor, opts) for tensor in tensors])

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None) -> dist.Work:
        """Reduce to the root, in place there; other ranks' tensors are only read."""
        tensor = _one(tensors, "reduce")
        opts = self.rooted_options(opts, dist.ReduceOptions, op, timeout)
        root = opts.rootRank
        is_root = self.rank() == root
        reduction = Reduction.of(opts.reduceOp, tensor.dtype, "reduce")
        if is_root:
            memory, copy_back = writable(tensor, "reduce", reads=True)
        else:
            memory, copy_back = readable(tensor, "reduce"), None
        address = memory.data_ptr()
        if reduction.local is not None:
            wire = wire_for_moving(memory.dtype)
            flat = torch.empty((self.size() if is_root else 0, memory.numel()), dtype=memory.dtype)
            target = flat.data_ptr() if is_root else 0
            call = (Collective.GATHER, address, target, memory.numel() * wire.parts, wire.code, 0, root)

            def finish() -> None:
                if is_root:
                    memory.view(-1).copy_(reduction.reduce_locally(flat))
                    if copy_back is not None:
                        copy_back()

            return self.issue([call], [tensor], finish, (memory, flat), opts)
        with reduction.native(self.core) as native:
            count = memory.numel() * reduction.wire.parts
            target = address if is_root else 0
            call = (Collective.REDUCE, address, target, count, reduction.wire.code, native, root)
            return self.issue([call], [tensor], copy_back, memory, opts)

    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, *, op: Any = None
    ) -> dist.Work:
        """Reduce lists of tensors, one per rank, and keep this rank's. Sizes may differ between the ranks' tensors."""
        output = _one(outputs, "reduce_scatter")
        parts = _list(inputs, "reduce_scatter")
        opts = self.options_of(opts if op is None else op, timeout)
        self.check_length(parts, "reduce_scatter", "input")
        same_dtype([output, *parts], "reduce_scatter")
        if output.numel() != parts[self.rank()].numel():
            raise ValueError(
                f"reduce_scatter: the output holds {output.numel()} elements, but input {self.rank()}, which is this "
                f"rank's, holds {parts[self.rank()].numel()}"
            )
        flat = flatten(parts, "reduce_scatter")
        if len({part.numel() for part in parts}) == 1:
            return self._reduce_scatter_flat(output, flat, opts, "reduce_scatter")
        return self._reduce_scatter_uneven(output, flat, [part.numel() for part in parts], opts)

    def _reduce_scatter_flat(self, output: Tensor, flat: Tensor, opts: Any, what: str) -> dist.Work:
        reduction = Reduction.of(opts.reduceOp, output.dtype, what)
        memory, copy_back = writable(output, what, reads=False)
        if reduction.local is not None:
            received = torch.empty((self.size(), memory.numel()), dtype=memory.dtype)
            wire = wire_for_moving(memory.dtype)
            count = memory.numel() * wire.parts
            call = (Collective.ALL_TO_ALL, flat.data_ptr(), received.data_ptr(), count, wire.code, 0, 0)

            def finish() -> None:
                memory.view(-1).copy_(reduction.reduce_locally(received))
                if copy_back is not None:
                    copy_back()

            return self.issue([call], [output], finish, (memory, flat, received), opts)
        with reduction.native(self.core) as native:
            count = memory.numel() * reduction.wire.parts
            addresses = (flat.data_ptr(), memory.data_ptr())
            call = (Collective.REDUCE_SCATTER, *addresses, count, reduction.wire.code, native, 0)
            return self.issue([call], [output], copy_back, (memory, flat), opts)

    def _reduce_scatter_uneven(self, output: Tensor, flat: Tensor, sizes: list[int], opts: Any) -> dist.Work:
        """Reduce each part to its rank: all ranks see the same sizes, so all make the same calls."""
        reduction = Reduction.of(opts.reduceOp, output.dtype, "reduce_scatter")
        if reduction.local is not None:
            raise ValueError("reduce_scatter: BAND, BOR and BXOR need tensors of one size")
        memory, copy_back = writable(output, "reduce_scatter", reads=False)
        calls = []
        start = flat.data_ptr()
        with reduction.native(self.core) as native:
            for root, size in enumerate(sizes):
                target = memory.data_ptr() if root == self.rank() else 0
                count = size * reduction.wire.parts
                calls.append((Collective.REDUCE, start, target, count, reduction.wire.code, native, root))
                start += size * flat.element_size()
            return self.issue(calls, [output], copy_back, (memory, flat), opts)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> dist.Work:
        """Reduce one tensor and keep this rank's part of it."""
        opts = self.options_of(opts)
        same_dtype([output, input], "reduce_scatter_single")
        if input.numel() != output.numel() * self.size():
            raise ValueError(
                f"reduce_scatter_single: the input holds {input.numel()} elements; {self.size()} ranks with an output "
                f"of {output.numel()} need {output.numel() * self.size()}"
            )
        return self._reduce_scatter_flat(
            output, readable(input, "reduce_scatter_single"), opts, "reduce_scatter_single"
        )

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        """reduce_scatter_single of several pairs, in order."""
        pairs = zip(outputs, inputs, strict=True)
        return self.combine([self.reduce_scatter_single(output, input, opts) for output, input in pairs])

    # --- Moving data.

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None, *, root: int | None = None) -> dist.Work:
        """Copy the root's tensor to all ranks."""
        opts = self.rooted_options(opts if root is None else root, dist.BroadcastOptions, None, timeout)
        return self.combine([self._broadcast(tensor, opts) for tensor in self._tensors_of(tensors)])

    def _broadcast(self, tensor: Tensor, opts: Any) -> dist.Work:
        wire = wire_for_moving(tensor.dtype)
        if self.rank() == opts.rootRank:
            memory, copy_back = readable(tensor, "broadcast"), None
        else:
            memory, copy_back = writable(tensor, "broadcast", reads=False)
        address, count = memory.data_ptr(), memory.numel() * wire.parts
        call = (Collective.BROADCAST, address, address, count, wire.code, 0, opts.rootRank)
        return self.issue([call], [tensor], copy_back, memory, opts)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> dist.Work:
        """Collect every rank's tensor in a list on all ranks. Sizes may differ between ranks."""
        tensor = _one(inputs, "all_gather")
        targets = _list(outputs, "all_gather")
        opts = self.options_of(opts, timeout)
        self.check_length(targets, "all_gather", "output")
        same_dtype([tensor, *targets], "all_gather")
        sizes = [target.numel() for target in targets]
        if sizes[self.rank()] != tensor.numel():
            raise ValueError(
                f"all_gather: the input holds {tensor.numel()} elements, but output {self.rank()}, which receives it, "
                f"holds {sizes[self.rank()]}"
            )
        wire = wire_for_moving(tensor.dtype)
        source = readable(tensor, "all_gather")
        flat = torch.empty(sum(sizes), dtype=tensor.dtype)
        finish = unflatten(flat, targets, "all_gather")
        if len(set(sizes)) == 1:
            count = source.numel() * wire.parts
            call = (Collective.ALL_GATHER, source.data_ptr(), flat.data_ptr(), count, wire.code, 0, 0)
            return self.issue([call], targets, finish, (source, flat), opts)
        # Every rank sends the same memory to all others.
        counts = [source.numel()] * self.size()
        return self.issue_uneven(source, counts, [0] * self.size(), flat, sizes, targets, finish, opts)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None, timeout: Any = None) -> dist.Work:
        """Collect every rank's tensor in one tensor on all ranks."""
        opts = self.options_of(opts, timeout)
        same_dtype([output, input], "all_gather_single")
        if output.numel() != input.numel() * self.size():
            raise ValueError(
                f"all_gather_single: the output holds {output.numel()} elements; {self.size()} ranks with an input of "
                f"{input.numel()} need {input.numel() * self.size()}"
            )
        wire = wire_for_moving(input.dtype)
        source = readable(input, "all_gather_single")
        memory, copy_back = writable(output, "all_gather_single", reads=False)
        count = source.numel() * wire.parts
        call = (Collective.ALL_GATHER, source.data_ptr(), memory.data_ptr(), count, wire.code, 0, 0)
        return self.issue([call], [output], copy_back, (source, memory), opts)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        """all_gather_single of several pairs, in order."""
        pairs = zip(outputs, inputs, strict=True)
        return self.combine([self.all_gather_single(output, input, opts) for output, input in pairs])

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        """All-gather several tensors: `outputs[rank][i]` receives that rank's i-th."""
        self.check_length(outputs, "all_gather_coalesced", "output list")
        works = [self.allgather([[row[i] for row in outputs]], [tensor], opts) for i, tensor in enumerate(inputs)]
        return self.combine(works)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> dist.Work:
        """Collect every rank's tensor in a list on the root."""
        tensor = _one(inputs, "gather")
        opts = self.rooted_options(opts, dist.GatherOptions, None, timeout)
        wire = wire_for_moving(tensor.dtype)
        source = readable(tensor, "gather")
        count = source.numel() * wire.parts
        if self.rank() != opts.rootRank:
            call = (Collective.GATHER, source.data_ptr(), 0, count, wire.code, 0, opts.rootRank)
            return self.issue([call], [], None, source, opts)
        targets = _list(outputs, "gather")
        self.check_parts(targets, tensor, "gather", "output")
        flat = torch.empty(sum(target.numel() for target in targets), dtype=tensor.dtype)
        call = (Collective.GATHER, source.data_ptr(), flat.data_ptr(), count, wire.code, 0, opts.rootRank)
        return self.issue([call], targets, unflatten(flat, targets, "gather"), (source, flat), opts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> dist.Work:
        """Give each rank its tensor of the root's list."""
        output = _one(outputs, "scatter")
        opts = self.rooted_options(opts, dist.ScatterOptions, None, timeout)
        wire = wire_for_moving(output.dtype)
        memory, copy_back = writable(output, "scatter", reads=False)
        count = memory.numel() * wire.parts
        flat = None
        if self.rank() == opts.rootRank:
            parts = _list(inputs, "scatter")
            self.check_parts(parts, output, "scatter", "input")
            flat = flatten(parts, "scatter")
        source = 0 if flat is None else flat.data_ptr()
        call = (Collective.SCATTER, source, memory.data_ptr(), count, wire.code, 0, opts.rootRank)
        return self.issue([call], [output], copy_back, (memory, flat), opts)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> dist.Work:
        """Exchange lists of tensors: the i-th goes to rank i. Sizes may differ."""
        opts = self.options_of(opts, timeout)
        targets, parts = list(outputs), list(inputs)
        self.check_length(targets, "all_to_all", "output")
        self.check_length(parts, "all_to_all", "input")
        same_dtype([*targets, *parts], "all_to_all")
        source = flatten(parts, "all_to_all")
        sent = [part.numel() for part in parts]
        received = [target.numel() for target in targets]
        flat = torch.empty(sum(received), dtype=source.dtype)
        offsets = [sum(sent[:i]) for i in range(len(sent))]
        return self.issue_uneven(
            source, sent, offsets, flat, received, targets, unflatten(flat, targets, "all_to_all"), opts
        )

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        opts: Any = None,
        timeout: Any = None,
    ) -> dist.Work:
        """Exchange parts of one tensor, cut along the first dimension; without split sizes, in equal parts."""
        opts = self.options_of(opts, timeout)
        same_dtype([output, input], "all_to_all_single")
        source = readable(input, "all_to_all_single")
        memory, copy_back = writable(output, "all_to_all_single", reads=False)
        received = self.splits_of(memory, output_split_sizes, "output")
        sent = self.splits_of(source, input_split_sizes, "input")
        if not output_split_sizes and not input_split_sizes:
            if source.numel() != memory.numel():
                raise ValueError(
                    f"all_to_all_single: the input holds {source.numel()} elements but the output {memory.numel()}"
                )
            wire = wire_for_moving(input.dtype)
            count = source.numel() // self.size() * wire.parts
            call = (Collective.ALL_TO_ALL, source.data_ptr(), memory.data_ptr(), count, wire.code, 0, 0)
            return self.issue([call], [output], copy_back, (source, memory), opts)
        offsets = [sum(sent[:i]) for i in range(len(sent))]
        return self.issue_uneven(source, sent, offsets, memory, received, [output], copy_back, opts)

    # --- Point to point.

    def send(self, tensors: Any, dst: int, tag: int = 0) -> dist.Work:
        """Send to one rank. Messages between two ranks arrive in the order they were sent; tags do not change it."""
        tensor = _one(tensors, "send")
        return self.start_send(readable(tensor, "send"), tensor, dst)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> dist.Work:
        """Receive the next message of one rank."""
        tensor = _one(tensors, "recv")
        memory, copy_back = writable(tensor, "recv", reads=False)
        return self.start_recv(memory, tensor, copy_back, src)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> dist.Work:
        """Receive from the only other rank; refused where there are several."""
        if self.size() != 2:
            raise RuntimeError(
                "recv: the theseus backend cannot receive from any source; name the source rank (src=...)"
            )
        return self.recv(tensors, 1 - self.rank(), tag)

    # --- Names that torch used before, or uses in C++.

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def combine(self, works: list[dist.Work]) -> dist.Work:
        """Return one handle for all works."""
        if len(works) == 1:
            return works[0]
        if all(work is self._done for work in works):
            return self._done
        return CombinedWork(works, self._waiter)
