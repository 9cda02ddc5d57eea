"""How algorithms would run on machines that are not here: costs in closed form, simulations, exact schedules.

    from resccl.study import Study, Hardware
    study = Study(algorithm, Topology.parse("2x8x4"))
    study.seconds("task", 256 << 20), study.seconds("algorithm", 256 << 20)

`cost` has the formulas of ResCCL's section 3, `forms` puts algorithms into them, `simulate` runs plans on flowsim,
`levels` compares the granularities and picks one for a size, `schedule` and `solve` say how good a schedule is.
"""

from resccl.study.forms import Times, closed_forms
from resccl.study.hardware import Hardware
from resccl.study.idle import idle_shares
from resccl.study.levels import (
    LEVELS,
    Level,
    LevelModel,
    Study,
    calibrate,
    choose_level,
    compile_level,
    simulate_level,
)
from resccl.study.schedule import Graph, Pipeline, makespan, schedule
from resccl.study.simulate import Block, Event, Outcome, simulate

__all__ = [
    "LEVELS",
    "Block",
    "Event",
    "Graph",
    "Hardware",
    "Level",
    "LevelModel",
    "Outcome",
    "Pipeline",
    "Study",
    "Times",
    "calibrate",
    "choose_level",
    "closed_forms",
    "compile_level",
    "idle_shares",
    "makespan",
    "schedule",
    "simulate",
    "simulate_level",
]
