"""The verifier against the interpreter: what it accepts never fails, and what it refuses fails as it says.

Plans come from the compiler with random options, from built-in algorithms and from random ones; then one or two things
in them are damaged.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.resccl.mutations import (
    ALGORITHMS,
    PlanMutator,
    compile_options,
    make_algorithm,
    mutate_transfers,
    topology,
)

from resccl import VerificationError, _core
from resccl.interpret import Fault, Interpreter, Setting, shows_refusal, structure_faults

Plan = dict[str, Any]

SHAPES = [(1, 2, 1), (1, 3, 1), (2, 1, 2), (2, 2, 1), (3, 1, 1), (2, 2, 2), (1, 4, 1)]
SEEDS = st.integers(0, 2**32 - 1)
FUZZ = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))


def algorithm_of(rng: random.Random) -> tuple[Plan, Plan] | None:
    """Return a random algorithm and its topology; None where that algorithm is not made for that shape."""
    collective = rng.choice(list(ALGORITHMS))
    where = topology(*rng.choice(SHAPES))
    try:
        return make_algorithm(rng, collective, rng.choice(ALGORITHMS[collective]), where), where
    except ValueError:
        return None


def plan_of(rng: random.Random, damaged: bool = False) -> Plan | None:
    """Return a random compiled plan; `damaged`: one transfer of its algorithm is not as it should be."""
    found = algorithm_of(rng)
    if found is None:
        return None
    algorithm, where = found
    if damaged and len(algorithm["transfers"]):
        algorithm = mutate_transfers(rng, algorithm)
    try:
        return _core.decode_plan(_core.compile(algorithm, where, **compile_options(rng)))
    except ValueError:
        return None


def calls(rng: random.Random, plan: Plan, options: Plan) -> Setting:
    """Return a random way to call the plan that the options of the verifier cover."""
    chunks = int(plan["chunks_per_block"])
    count = rng.choice([1, 2, 3]) * chunks + (rng.randrange(chunks) if options["any_count"] else 0)
    references = plan["rendezvous_safe"] or options["slots"] == 0
    return Setting(
        count=count,
        slot=rng.choice([1, 2]),
        slots=options["slots"] + rng.choice([0, 0, 1, 5]),
        in_place=plan["collective"] != "AllToAll" and rng.random() < 0.5,
        references=rng.choice([0.0, 0.5, 1.0]) if references else 0.0,
        scaled=options["scaled_input"] and rng.random() < 0.5,
        equal_bits=options["equal_bits"],
    )


def verify_options(rng: random.Random) -> Plan:
    """Return random options of the verifier."""
    flags = {name: rng.random() < 0.6 for name in ("equal_bits", "any_count", "scaled_input")}
    return {"slots": rng.choice([0, 1, 2, 3, 8]), **flags}


def expect_agreement(rng: random.Random, plan: Plan, runs: int = 4) -> str:
    """Check that verifier and interpreter agree on a plan; return "accepted", or the kind of the refusal."""
    try:
        data = _core.encode_plan(plan)
    except ValueError:
        return "no plan"
    options = verify_options(rng)
    try:
        _core.verify(data, **options)
    except VerificationError as refusal:
        expect_shown(plan, refusal)
        return str(refusal.kind)
    for run in range(runs):
        setting = calls(rng, plan, options)
        fault = Interpreter(plan, setting, rng.randrange(2**32)).run(watch=run % 2 == 0)
        assert fault is None, f"accepted with {options}, yet {fault} with {setting}"
    return "accepted"


def expect_shown(plan: Plan, refusal: VerificationError) -> None:
    """Check that the refusal's interleaving, replayed, fails; those of structure may be seen without running."""
    if refusal.kind == "structure" and not refusal.interleaving and structure_faults(plan):
        return
    fault = shows_refusal(plan, refusal)
    assert isinstance(fault, Fault), f"nothing fails after {refusal.interleaving}: {refusal}"
    # On the way to a deadlock, or before a race, what is there may be wrong or race already.
    expected = {"deadlock": "deadlock", "rendezvous": "deadlock", "race": "race"}.get(str(refusal.kind), "")
    assert fault.kind in (expected, "race", "value") or refusal.kind in ("structure", "value")
    assert f"rank {refusal.rank}" in str(refusal)


@FUZZ
@given(SEEDS)
def test_compiled_plans_run(seed: int) -> None:
    rng = random.Random(seed)
    plan = plan_of(rng)
    if plan is None:
        return
    verdict = expect_agreement(rng, plan)
    if verdict == "race":
        # Without slots a send is a reference, and its buffer may be written again before the receiver has read it.
        assert not plan["rendezvous_safe"]
        _core.verify(_core.encode_plan(plan), slots=2, equal_bits=False, any_count=False, scaled_input=False)
        return
    # Some need slots, or two of them (fused); without folds the same chunk may be reduced in several orders.
    assert verdict in ("accepted", "deadlock", "rendezvous", "value")


@FUZZ
@given(SEEDS, st.integers(1, 2))
def test_damaged_plans_that_are_accepted_never_fail_and_refusals_are_shown(seed: int, damages: int) -> None:
    rng = random.Random(seed)
    plan = plan_of(rng)
    if plan is None:
        return
    for _ in range(damages):
        PlanMutator(rng, plan).mutate()
    expect_agreement(rng, plan)


@FUZZ
@given(SEEDS)
def test_damaged_algorithms_that_are_accepted_never_fail_and_refusals_are_shown(seed: int) -> None:
    rng = random.Random(seed)
    plan = plan_of(rng, damaged=True)
    if plan is not None:
        expect_agreement(rng, plan)


@FUZZ
@given(SEEDS)
def test_waits_that_the_verifier_calls_needless_are_needless(seed: int) -> None:
    # What is left stands on the thinnest order that is accepted: messages of other ranks instead of waits.
    rng = random.Random(seed)
    plan = plan_of(rng)
    if plan is None:
        return
    options = {**verify_options(rng), "equal_bits": False}
    if not accepts(plan, options):
        return
    instructions = [i for part in plan["rank_plans"] for block in part["thread_blocks"] for i in block]
    waits = [(i, wait) for i in instructions for wait in i.get("dependencies", ())]
    for i, wait in rng.sample(waits, len(waits)):
        before = i["dependencies"]
        i["dependencies"] = [each for each in before if each is not wait]
        if not accepts(plan, options):
            i["dependencies"] = before
    for _ in range(4):
        setting = calls(rng, plan, options)
        fault = Interpreter(plan, setting, rng.randrange(2**32)).run()
        assert fault is None, f"accepted with {options}, yet {fault} with {setting}"


def accepts(plan: Plan, options: Plan) -> bool:
    """Return whether the verifier does."""
    try:
        _core.verify(_core.encode_plan(plan), **options)
    except VerificationError:
        return False
    return True


def test_the_draw_reaches_every_verdict() -> None:
    # Else the tests above would prove less than they say.
    wanted = {"accepted", "structure", "deadlock", "rendezvous", "race", "value"}
    seen: Counter[str] = Counter()
    for seed in range(3000):
        rng = random.Random(seed)
        plan = plan_of(rng, damaged=seed % 4 == 0)
        if plan is not None:
            PlanMutator(rng, plan).mutate()
            seen[expect_agreement(rng, plan, runs=1)] += 1
        if wanted <= set(seen):
            return
    raise AssertionError(seen)
