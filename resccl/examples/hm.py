"""The hierarchical mesh algorithms (HM; ResCCL, Appendix A).

The GPUs of a host exchange over a full mesh; the GPUs of equal local number form a ring through the hosts. Rank
`host * gpus + local` is GPU `local` of its host, and uses rail `local % rails`.

    resccl compile resccl.examples.hm:all_gather --topology 2x8
"""

from __future__ import annotations

from resccl.lang import Algorithm


def all_gather(hosts: int, gpus: int, rails: int = 1) -> Algorithm:
    """Each rank's chunk goes round its ring; who gets one from another host hands it to its own host.

    A rank has gpus - 1 local peers, and a neighbour on either side of its ring.
    """
    algorithm = Algorithm(f"hm_all_gather({hosts}x{gpus})", "AllGather", ranks=hosts * gpus)
    with algorithm.phase("mesh and ring") as phase:
        for rank in algorithm.all_ranks:
            host, local = divmod(rank, gpus)
            for peer in range(gpus):
                if peer != local:
                    phase.send(rank, host * gpus + peer, step=0, chunk=rank)
            for hop in range(hosts - 1):
                src, dst = (host + hop) % hosts, (host + hop + 1) % hosts
                phase.send(src * gpus + local, dst * gpus + local, step=hop, chunk=rank, rail=local % rails)
    with algorithm.phase("forward") as phase:
        for rank in algorithm.all_ranks:
            host, local = divmod(rank, gpus)
            for other in range(hosts):
                for peer in range(gpus):
                    if other != host and peer != local:
                        phase.send(other * gpus + local, other * gpus + peer, step=0, chunk=rank)
    return algorithm


def reduce_scatter(hosts: int, gpus: int, rails: int = 1) -> Algorithm:
    """all_gather backwards: each host reduces a chunk to the GPU on its ring, then the ring brings it to its owner."""
    algorithm = Algorithm(f"hm_reduce_scatter({hosts}x{gpus})", "ReduceScatter", ranks=hosts * gpus)
    with algorithm.phase("mesh") as phase:
        for owner in algorithm.all_ranks:
            for host in range(hosts):
                for peer in range(gpus):
                    if peer != owner % gpus:
                        phase.recv_reduce_copy(host * gpus + peer, host * gpus + owner % gpus, step=0, chunk=owner)
    with algorithm.phase("ring") as phase:
        for owner in algorithm.all_ranks:
            host, local = divmod(owner, gpus)
            for hop in range(hosts - 1):
                src, dst = (host + hop + 1) % hosts, (host + hop + 2) % hosts
                phase.recv_reduce_copy(
                    src * gpus + local, dst * gpus + local, step=hop, chunk=owner, rail=local % rails
                )
    return algorithm


def all_reduce(hosts: int, gpus: int, rails: int = 1) -> Algorithm:
    """Reduce over the mesh, all-reduce each GPU's share round its ring, and hand it out over the mesh.

    Chunk `local * hosts + piece` is the share of the ring `local`; its ring reduces it to host `piece`.
    """
    algorithm = Algorithm(f"hm_all_reduce({hosts}x{gpus})", "AllReduce", ranks=hosts * gpus, chunks=hosts * gpus)
    shares = [(local, piece, local * hosts + piece) for local in range(gpus) for piece in range(hosts)]
    pairs = [(host, peer) for host in range(hosts) for peer in range(gpus)]
    with algorithm.phase("mesh reduce") as phase:
        for local, _, chunk in shares:
            for host, peer in pairs:
                if peer != local:
                    phase.recv_reduce_copy(host * gpus + peer, host * gpus + local, step=0, chunk=chunk)
    with algorithm.phase("ring reduce") as phase:
        for local, piece, chunk in shares:
            for hop in range(hosts - 1):
                src, dst = (piece + hop + 1) % hosts, (piece + hop + 2) % hosts
                phase.recv_reduce_copy(
                    src * gpus + local, dst * gpus + local, step=hop, chunk=chunk, rail=local % rails
                )
    with algorithm.phase("ring gather") as phase:
        for local, piece, chunk in shares:
            for hop in range(hosts - 1):
                src, dst = (piece + hop) % hosts, (piece + hop + 1) % hosts
                phase.send(src * gpus + local, dst * gpus + local, step=hop, chunk=chunk, rail=local % rails)
    with algorithm.phase("mesh gather") as phase:
        for local, _, chunk in shares:
            for host, peer in pairs:
                if peer != local:
                    phase.send(host * gpus + local, host * gpus + peer, step=0, chunk=chunk)
    return algorithm
