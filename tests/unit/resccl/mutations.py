"""Plans and algorithms to try the verifier on: right ones of many shapes, and random damage to them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from resccl import _core

Plan = dict[str, Any]

OPCODES = ["Nop", "Send", "Recv", "RecvCopySend", "RecvReduceCopy", "RecvReduceSend", "RecvReduceCopySend", "Copy"]
OPCODES += ["Reduce", "Fold"]
ROOTED = ("Broadcast", "Reduce", "Gather", "Scatter")
ALGORITHMS = {
    "AllReduce": ["one_shot", "direct", "doubling", "halving", "ring", "tree", "hierarchical", "random"],
    "AllGather": ["direct", "ring", "doubling", "hierarchical", "random"],
    "ReduceScatter": ["direct", "ring", "halving", "hierarchical", "random"],
    "Broadcast": ["direct", "ring", "tree", "hierarchical", "random"],
    "Reduce": ["direct", "ring", "tree", "hierarchical", "random"],
    "Gather": ["direct"],
    "Scatter": ["direct"],
    "AllToAll": ["direct", "pairwise"],
}


def topology(hosts: int, ranks_per_host: int, rails: int) -> Plan:
    """Return a topology of equal hosts."""
    return {"host_of_rank": [h for h in range(hosts) for _ in range(ranks_per_host)], "rails": rails}


def random_spread(rng: random.Random, ranks: int, owner: int, chunk: int) -> list[list[int]]:
    """Return copies that bring a chunk from its owner to all, from random holders in random steps."""
    arrived = {owner: -1}
    rows: list[list[int]] = []
    for receiver in rng.sample([r for r in range(ranks) if r != owner], ranks - 1):
        source = rng.choice(list(arrived))
        step = max(arrived[source] + 1, rng.randrange(3))
        arrived[receiver] = step
        rows.append([source, receiver, step, chunk, 0, -1])
    return rows


def random_algorithm(rng: random.Random, collective: str, ranks: int, root: int) -> Plan:
    """Return a right algorithm nobody would write: each chunk along its own random tree, forwards or backwards."""
    pieces = rng.randrange(1, 3)
    blocks = ranks if collective in ("AllGather", "ReduceScatter") else 1
    rows: list[list[int]] = []
    for chunk in range(blocks * pieces):
        owner = chunk // pieces if blocks > 1 else root if collective in ROOTED else rng.randrange(ranks)
        spread = random_spread(rng, ranks, owner, chunk)
        last = max((row[2] for row in spread), default=0)
        gathered = [[dst, src, last - step, chunk, 1, -1] for src, dst, step, chunk, _, _ in spread]
        if collective in ("AllReduce", "ReduceScatter", "Reduce"):
            rows += gathered
        if collective == "AllReduce":
            rows += [[src, dst, step + last + 1, *rest] for src, dst, step, *rest in spread]
        elif collective not in ("ReduceScatter", "Reduce"):
            rows += spread
    return {
        "name": "random",
        "collective": collective,
        "ranks": ranks,
        "chunks": blocks * pieces,
        "root": root,
        "transfers": np.array(sorted(rows, key=lambda r: (r[2], r[3])), dtype=np.int32).reshape(-1, 6),
    }


def make_algorithm(rng: random.Random, collective: str, name: str, where: Plan) -> Plan:
    """Return that algorithm, built in or random, with a random root where there is one."""
    ranks = len(where["host_of_rank"])
    root = rng.randrange(ranks) if collective in ROOTED else 0
    if name == "random":
        return random_algorithm(rng, collective, ranks, root)
    return _core.built_in(name, collective, where, root)


def compile_options(rng: random.Random) -> dict[str, Any]:
    """Return random options of the compiler."""
    return {
        "scheduling": rng.choice(["hpds", "round_robin", "algorithm_level", "stage_level", "per_connection"]),
        "allocation": rng.choice(
            ["state_based", "state_based_even", "state_based_apart", "per_connection_and_stage", "per_connection"]
        ),
        "loop": rng.choice(["micro_batches", "sub_pipelines"]),
        "fold": rng.random() < 0.7,
        "fuse": rng.random() < 0.5,
        "stagger": rng.random() < 0.3,
    }


def mutate_transfers(rng: random.Random, algorithm: Plan) -> Plan:
    """Return the algorithm with one transfer dropped, duplicated, swapped with another, or redirected."""
    rows = algorithm["transfers"].tolist()
    at = rng.randrange(len(rows))
    kind = rng.randrange(4)
    if kind == 0:
        del rows[at]
    elif kind == 1:
        rows.insert(rng.randrange(len(rows) + 1), list(rows[at]))
        rows[at][2] += rng.randrange(3)
    elif kind == 2:
        other = rng.randrange(len(rows))
        rows[at][2], rows[other][2] = rows[other][2], rows[at][2]
    else:
        field, limit = rng.choice([(0, algorithm["ranks"]), (1, algorithm["ranks"]), (3, algorithm["chunks"]), (4, 2)])
        rows[at][field] = rng.randrange(limit)
    return {**algorithm, "transfers": np.array(rows, dtype=np.int32).reshape(-1, 6)}


class PlanMutator:
    """Damages a plan in one place."""

    def __init__(self, rng: random.Random, plan: Plan) -> None:
        self.rng = rng
        self.plan = plan
        self.part = rng.choice(plan["rank_plans"])
        self.blocks = [tb for tb in self.part["thread_blocks"] if tb] or [[]]
        self.tb = rng.choice(self.blocks)
        self.at = rng.randrange(len(self.tb)) if self.tb else 0

    def mutate(self) -> None:
        """Change something; sometimes nothing, where the draw finds nothing to change."""
        if not self.tb:
            return
        changes: list[Callable[[], None]] = [self.drop, self.duplicate, self.swap, self.move, self.redirect]
        changes += [self.redirect, self.reconnect, self.change_opcode, self.flip_order, self.merge_blocks]
        changes += [self.drop_wait, self.drop_waits, self.change_wait, self.add_wait, self.shift_sub_pipeline]
        changes += [self.flip_loop, self.claim_rendezvous, self.drop_rank, self.add_copy, self.relabel]
        self.rng.choice(changes)()

    @property
    def instruction(self) -> Plan:
        """Return the chosen instruction."""
        found: Plan = self.tb[self.at]
        return found

    def drop(self) -> None:
        """Lose an instruction."""
        del self.tb[self.at]

    def duplicate(self) -> None:
        """Run an instruction twice."""
        self.tb.insert(self.at, {**self.instruction})

    def swap(self) -> None:
        """Swap two instructions of a TB, with or without their sub-pipelines."""
        other = self.rng.randrange(len(self.tb))
        self.tb[self.at], self.tb[other] = self.tb[other], self.tb[self.at]
        if self.rng.random() < 0.5:
            a, b = self.tb[self.at], self.tb[other]
            a["sub_pipeline"], b["sub_pipeline"] = b.get("sub_pipeline", 0), a.get("sub_pipeline", 0)

    def move(self) -> None:
        """Move an instruction to another TB of the rank."""
        moved = self.tb.pop(self.at)
        other = self.rng.choice(self.blocks)
        other.insert(self.rng.randrange(len(other) + 1), moved)

    def drop_wait(self) -> None:
        """Lose a dependency."""
        if waits := self.instruction.get("dependencies"):
            del waits[self.rng.randrange(len(waits))]

    def drop_waits(self) -> None:
        """Lose all dependencies of a TB."""
        for i in self.tb:
            i["dependencies"] = []

    def change_wait(self) -> None:
        """Wait for another instruction, or for another micro-batch."""
        if not (waits := self.instruction.get("dependencies")):
            return
        tb, step, distance = self.rng.choice(waits)
        waits.remove([tb, step, distance])
        if self.rng.random() < 0.5:
            waits.append([tb, step, 1 - distance])
        else:
            waits.append([tb, max(0, step + self.rng.choice([-2, -1, 1, 2])), distance])

    def add_wait(self) -> None:
        """Wait for something else as well."""
        tb = self.rng.randrange(len(self.part["thread_blocks"]))
        if steps := len(self.part["thread_blocks"][tb]):
            wait = [tb, self.rng.randrange(steps), self.rng.randrange(2)]
            self.instruction["dependencies"] = [*self.instruction.get("dependencies", ()), wait]

    def redirect(self) -> None:
        """Read from, or write to, another place."""
        if not (which := [field for field in ("src", "dst") if self.instruction.get(field)]):
            return
        field = self.rng.choice(which)
        buffer, index = self.instruction[field]
        if self.rng.random() < 0.3:
            buffer = self.rng.choice(["input", "output", "scratch"])
        self.instruction[field] = [buffer, self.rng.randrange(index + 2 + self.part["scratch_chunks"])]

    def reconnect(self) -> None:
        """Use another connection."""
        if which := [field for field in ("send", "recv") if self.instruction.get(field, -1) >= 0]:
            self.instruction[self.rng.choice(which)] = self.rng.randrange(len(self.part["connections"]))

    def change_opcode(self) -> None:
        """Do something else with the same operands, where it has them all; or the same and pass it on."""
        i = self.instruction
        similar = {"RecvReduceCopy": "Recv", "Recv": "RecvReduceCopy", "Copy": "Reduce", "Reduce": "Copy"}
        i["opcode"] = similar.get(i["opcode"], self.rng.choice(OPCODES))
        if i["opcode"] == "Recv":
            i["src"] = None
        if i["opcode"] == "RecvReduceCopy":
            i["src"] = i["dst"]

    def flip_order(self) -> None:
        """Reduce in another order."""
        i = self.instruction
        i["recv_is_left"] = not i.get("recv_is_left", False)
        self.rng.shuffle(i.get("fold", []))

    def shift_sub_pipeline(self) -> None:
        """Put the rest of a TB into a later sub-pipeline."""
        for i in self.tb[self.at :]:
            i["sub_pipeline"] = i.get("sub_pipeline", 0) + 1

    def relabel(self) -> None:
        """Cut a TB into sub-pipelines of its own, where all others have one."""
        self.plan["loop"] = "sub_pipelines"
        for part in self.plan["rank_plans"]:
            for i in (i for block in part["thread_blocks"] for i in block):
                i["sub_pipeline"] = 0
        self.shift_sub_pipeline()

    def add_copy(self) -> None:
        """Copy some chunk to some place, or onto itself as it is in place."""
        chunks = self.plan["chunks_per_block"]
        src = [self.rng.choice(["input", "output"]), self.rng.randrange(chunks)]
        dst = ["output", self.rng.randrange(chunks)]
        self.tb.insert(self.at, {"opcode": "Copy", "src": src, "dst": dst})
        self.tb[self.at]["sub_pipeline"] = self.tb[self.at + 1].get("sub_pipeline", 0)

    def flip_loop(self) -> None:
        """Run the loops in the other order."""
        self.plan["loop"] = "micro_batches" if self.plan["loop"] == "sub_pipelines" else "sub_pipelines"

    def claim_rendezvous(self) -> None:
        """Say the contrary about references."""
        self.plan["rendezvous_safe"] = not self.plan["rendezvous_safe"]

    def merge_blocks(self) -> None:
        """Run another TB's instructions in this one."""
        other = self.rng.choice(self.blocks)
        if other is not self.tb:
            self.tb += other
            self.tb.sort(key=lambda i: i.get("sub_pipeline", 0))
            other.clear()

    def drop_rank(self) -> None:
        """Let a rank do nothing."""
        for block in self.blocks:
            block.clear()
