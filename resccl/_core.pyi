"""The native core (csrc/bindings/resccl). Use resccl.Algorithm and resccl.Plan instead; nothing here is stable.

An algorithm is a dict of name, collective, ranks, chunks, root and `transfers`, signed integers of shape (n, 6): src,
dst, step, chunk, op (0 copy, 1 reduce), rail (-1: the compiler's choice). A topology is a dict of host_of_rank and
rails. A plan crosses as the bytes of a plan file. Wrong arguments are ValueErrors that name the field.
"""

from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

class RankSummary(TypedDict):
    rank: int
    thread_blocks: int
    connections: int
    instructions: int
    scratch_chunks: int

class PlanSummary(TypedDict):
    name: str
    collective: str
    ranks: int
    root: int
    chunks_per_block: int
    rendezvous_safe: bool
    loop: str
    sub_pipelines: int
    digest: int
    rank_plans: list[RankSummary]

class AnalysisDict(TypedDict):
    transfers: NDArray[np.int32]
    first_transfer: NDArray[np.int32]
    predecessors: NDArray[np.int32]
    first_predecessor: NDArray[np.int32]
    links: NDArray[np.int32]
    link_ids: NDArray[np.int32]
    first_link: NDArray[np.int32]
    between_hosts: NDArray[np.bool_]
    stage: NDArray[np.int32]
    sub_pipeline: NDArray[np.int32]
    order: NDArray[np.int32]

def encode_plan(plan: dict[str, Any]) -> bytes: ...
def decode_plan(plan: bytes, rank: int = -1) -> dict[str, Any]: ...
def summarise_plan(plan: bytes) -> PlanSummary: ...
def built_in_names() -> list[tuple[str, str, list[str]]]: ...
def built_in(name: str, collective: str, topology: dict[str, Any], root: int = 0) -> dict[str, Any]: ...
def compile(
    algorithm: dict[str, Any],
    topology: dict[str, Any],
    *,
    scheduling: str = "hpds",
    allocation: str = "state_based",
    loop: str = "micro_batches",
    fold: bool = True,
    fuse: bool = False,
    stagger: bool = False,
    rank: int = -1,
) -> bytes: ...
def analyse(
    algorithm: dict[str, Any], topology: dict[str, Any], *, scheduling: str = "hpds", fold: bool = True
) -> AnalysisDict: ...
def verify(
    plan: bytes,
    *,
    slots: int = 8,
    in_place: bool = True,
    out_of_place: bool = True,
    equal_bits: bool = True,
    scaled_input: bool = True,
    any_count: bool = False,
    max_thread_blocks: int = 0,
    max_connections: int = 0,
    work_limit: int = ...,
) -> None: ...
