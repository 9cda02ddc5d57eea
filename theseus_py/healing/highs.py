"""Linear and convex quadratic programs, solved by HiGHS without a word on the console."""

from __future__ import annotations

from collections.abc import Sequence

import highspy
import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
# Sparse: column, coefficient.
Terms = Sequence[tuple[int, float]]

_MOST_QUADRATIC_STEPS = 2000
# The solver's tolerances are absolute, and its quadratic half fails on most programs whose values are below 1.
_SCALE = 1024.0


class Unsolved(RuntimeError):
    """The program has no solution, or the solver found none."""


class _Quiet(highspy.Highs):
    """A solver that prints nothing: the base class announces itself when it sets up callbacks, which are not needed."""

    def __init__(self) -> None:
        super(highspy.Highs, self).__init__()
        self.setOptionValue("output_flag", False)
        self.setOptionValue("threads", 1)
        # The quadratic solver can walk in circles around the optimum; where it then stands is good enough.
        self.setOptionValue("qp_iteration_limit", _MOST_QUADRATIC_STEPS)


class Program:
    """Minimises `cost` times the variables, plus half of `curvature` times their squares. Variables are not negative
    unless said otherwise.
    """

    def __init__(self) -> None:
        self.cost: list[float] = []
        self.curvature: list[float] = []
        self._lower: list[float] = []
        self._upper: list[float] = []
        self._rows: list[tuple[Terms, float, float]] = []

    def variable(self, lower: float = 0.0, upper: float = np.inf, cost: float = 0.0, curvature: float = 0.0) -> int:
        """Adds a variable and returns its column."""
        self._lower.append(lower)
        self._upper.append(upper)
        self.cost.append(cost)
        self.curvature.append(curvature)
        return len(self.cost) - 1

    def bound(self, column: int, lower: float, upper: float) -> None:
        self._lower[column] = lower
        self._upper[column] = upper

    def row(self, terms: Terms, lower: float, upper: float) -> None:
        """Adds `lower` <= sum of the terms <= `upper`. A column may occur several times."""
        self._rows.append((terms, lower, upper))

    def solve(self) -> Vector:
        """Returns the value of each variable. Raises Unsolved."""
        solver = _Quiet()
        solver.passModel(self._model())
        solver.run()
        status = solver.getModelStatus()
        stopped = status == highspy.HighsModelStatus.kIterationLimit
        feasible = solver.getInfo().primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        if status != highspy.HighsModelStatus.kOptimal and not (stopped and feasible):
            raise Unsolved(f"the solver says {solver.modelStatusToString(status)}")
        return np.array(solver.getSolution().col_value) / _SCALE

    def _model(self) -> highspy.HighsModel:
        model = highspy.HighsModel()
        lp = model.lp_
        columns = len(self.cost)
        lp.num_col_, lp.num_row_ = columns, len(self._rows)
        # Of variables that are _SCALE times ours; the objective is _SCALE ** 2 times ours.
        lp.col_cost_ = _SCALE * np.array(self.cost)
        lp.col_lower_, lp.col_upper_ = _SCALE * np.array(self._lower), _SCALE * np.array(self._upper)
        lp.row_lower_ = _SCALE * np.array([lower for _, lower, _ in self._rows])
        lp.row_upper_ = _SCALE * np.array([upper for _, _, upper in self._rows])
        starts = [0]
        indices: list[int] = []
        values: list[float] = []
        for terms, _, _ in self._rows:
            merged: dict[int, float] = {}
            for column, value in terms:
                merged[column] = merged.get(column, 0.0) + value
            indices.extend(merged)
            values.extend(merged.values())
            starts.append(len(indices))
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.array(starts)
        lp.a_matrix_.index_ = np.array(indices)
        lp.a_matrix_.value_ = np.array(values)
        if any(self.curvature):
            hessian = model.hessian_
            hessian.dim_ = columns
            hessian.format_ = highspy.HessianFormat.kTriangular
            hessian.start_ = np.arange(columns + 1)
            hessian.index_ = np.arange(columns)
            hessian.value_ = np.array(self.curvature)
        return model
