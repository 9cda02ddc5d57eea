"""Healing around slow NICs, as decisions: what is sick, which split of the traffic is best, what to publish.

`floors` says what no schedule can beat, `solve` splits the traffic by a linear program, `rounding` cuts the split into
whole messages, `plan` makes arguments of the generator `healed` (csrc/compiler/healed.h) of them, `evidence` blames
NICs from what flows got, `health` judges them, and `publish` decides which records go into the job's log. Nothing here
does I/O or reads a clock.
"""

from theseus_py.healing.floors import floor
from theseus_py.healing.plan import Plan, chunks_for, plan, plan_for
from theseus_py.healing.solve import COLLECTIVES, Collective, Health, NoWay

__all__ = ["COLLECTIVES", "Collective", "Health", "NoWay", "Plan", "chunks_for", "floor", "plan", "plan_for"]
