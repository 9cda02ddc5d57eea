"""Levels follow the order of jobs as far as K levels allow, each connected part for itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveller.core.baselines.cassini import Cassini
from leveller.core.baselines.crux import Crux
from leveller.core.baselines.fair import FairShare
from leveller.core.contention import links_of
from leveller.core.lazy import Lazy
from leveller.core.levels import LowestRateFirst, order_of
from leveller.core.model import ClusterView, Flow, JobView, LevelPolicy


def view_of(rates: dict[str, float | None], flows: dict[str, tuple[str, str]], **jobs: JobView) -> ClusterView:
    """A view of flows, each a job and its links in one word."""
    known = {name: JobView(name, rate=rate) for name, rate in rates.items()}
    return ClusterView(0.0, {**known, **jobs}, [Flow(name, job, tuple(path)) for name, (job, path) in flows.items()])


def plainly(view: ClusterView, count: int) -> dict[object, int]:
    """The pruning as the paper tells it, on the graph with all its edges."""
    order = order_of(view)
    left = {flow.id: flow for flow in view.flows}
    found = {}
    for level in range(count - 1, -1, -1):
        if level == 0:
            found.update(dict.fromkeys(left, 0))
            break
        seen: set[object] = set()
        taken: list[object] = []
        for start in left:
            part, todo = {start}, [left[start]]
            while todo:
                at = todo.pop()
                near = [
                    other
                    for other in left.values()
                    if other.id not in part and other.job != at.job and set(links_of(at)) & set(links_of(other))
                ]
                part |= {other.id for other in near}
                todo += near
            if not part & seen:
                seen |= part
                first = min((left[each].job for each in part), key=order.index)
                taken += [each for each in part if left[each].job == first]
        for each in taken:
            found[each] = level
            del left[each]
    return found


@st.composite
def views(draw: st.DrawFn) -> ClusterView:
    jobs = draw(st.integers(1, 6))
    rates = st.one_of(st.none(), st.floats(0, 1))
    known = {
        f"j{i}": JobView(
            f"j{i}", rate=draw(rates), weight=draw(st.sampled_from([1.0, 2.0])), profiling=draw(st.booleans())
        )
        for i in range(jobs)
    }
    paths = st.lists(st.sampled_from("abcdefg"), max_size=4, unique=True).map(tuple)
    flows = draw(st.lists(st.tuples(st.integers(0, jobs - 1), paths), max_size=14))
    return ClusterView(0.0, known, [Flow(place, f"j{job}", path) for place, (job, path) in enumerate(flows)])


@given(views(), st.integers(1, 5))
def test_pruning_by_links_is_pruning_of_the_graph(view: ClusterView, count: int) -> None:
    """As the paper's procedure, which looks at every pair of flows."""
    assert LowestRateFirst(count).levels(view).of == plainly(view, count)


@given(views())
def test_with_levels_enough_whoever_meets_is_in_order(view: ClusterView) -> None:
    """Of two flows that share a link, that of the job further behind is strictly above."""
    order = order_of(view)
    levels = LowestRateFirst(len(order) + 1).levels(view).of
    for one in view.flows:
        for other in view.flows:
            if set(links_of(one)) & set(links_of(other)) and order.index(one.job) < order.index(other.job):
                assert levels[one.id] > levels[other.id]


def test_figure_6() -> None:
    """Two levels serve four jobs: one job's flows get different ones, and no link has two flows of one level."""
    view = view_of(
        {"J1": 0.1, "J2": 0.2, "J3": 0.3, "J4": 0.4},
        {"f1": ("J1", "ab"), "f21": ("J2", "a"), "f22": ("J2", "c"), "f3": ("J3", "b"), "f4": ("J4", "c")},
    )
    assert LowestRateFirst(2).levels(view).of == {"f1": 1, "f22": 1, "f21": 0, "f3": 0, "f4": 0}


def test_a_profiled_job_is_alone_at_the_top() -> None:
    """Whatever the rates."""
    view = view_of(
        {"a": 0.1, "b": 0.2},
        {"1": ("a", "x"), "2": ("b", "x"), "3": ("new", "x")},
        new=JobView("new", rate=0.9, profiling=True),
    )
    assert LowestRateFirst(3).levels(view).of == {"3": 2, "1": 1, "2": 0}


def test_a_weight_of_two_asks_for_twice_the_progress() -> None:
    """So 0.5 of such a job is behind 0.3 of another."""
    view = view_of({"a": 0.3}, {"1": ("a", "x"), "2": ("b", "x")}, b=JobView("b", rate=0.5, weight=2.0))
    assert LowestRateFirst(2).levels(view).of == {"2": 1, "1": 0}


def test_flows_of_unknown_paths_are_ordered_among_themselves() -> None:
    """And take nothing from those that are known."""
    view = view_of({"a": 0.1, "b": 0.2, "c": 0.3}, {"1": ("a", ""), "2": ("b", ""), "3": ("c", "x")})
    assert LowestRateFirst(2).levels(view).of == {"1": 1, "2": 0, "3": 1}


@pytest.mark.parametrize("policy", [LowestRateFirst(4), FairShare(), Crux(4), Cassini(), Lazy(Crux(4), 1.0)])
@given(view=views())
def test_every_flow_gets_a_level(policy: LevelPolicy, view: ClusterView) -> None:
    """That there is, from every policy, also where nothing is known."""
    found = policy.levels(view)
    assert found.of.keys() == {flow.id for flow in view.flows}
    assert all(0 <= level < found.count for level in found.of.values())


def test_crux_serves_the_most_intensive_job_first() -> None:
    """GPU seconds for each second of the links: rates do not matter."""
    jobs = {
        "small": JobView("small", rate=0.1, compute=1, communicate=2),
        "big": JobView("big", rate=0.9, compute=1, communicate=2, gpus=64),
    }
    view = view_of({}, {"1": ("small", "x"), "2": ("big", "x"), "3": ("nobody", "x")}, **jobs)
    assert Crux(3).levels(view).of == {"2": 2, "1": 1, "3": 0}


def test_lazy_keeps_levels_for_a_period() -> None:
    """And asks at once where there are other flows."""
    lazy = Lazy(LowestRateFirst(2), 4.0)
    flows = {"1": ("a", "x"), "2": ("b", "x")}

    def ask(now: float, rate: float, flows: dict[str, tuple[str, str]]) -> object:
        seen = view_of({"a": rate, "b": 0.5}, flows)
        return lazy.levels(ClusterView(now, seen.jobs, seen.flows)).of

    assert ask(0, 0.4, flows) == {"1": 1, "2": 0}
    assert ask(3.9, 0.6, flows) == {"1": 1, "2": 0}
    assert ask(4, 0.6, flows) == {"1": 0, "2": 1}
    assert ask(5, 0.4, {**flows, "3": ("b", "y")}) == {"1": 1, "2": 0, "3": 1}


def test_levels_need_a_number() -> None:
    """None at all is refused."""
    with pytest.raises(ValueError, match="at least 1 level"):
        LowestRateFirst(0)


class TestCassini:
    """Time shifts."""

    def test_two_equal_jobs_take_turns(self) -> None:
        """Half an iteration apart, each communicates while the other computes."""
        job = {"ideal": 2.0, "compute": 1.0, "communicate": 1.0}
        view = view_of({}, {"1": ("a", "x"), "2": ("b", "x")}, a=JobView("a", **job), b=JobView("b", **job))
        assert Cassini().shifts(view) == {"a": 0.0, "b": pytest.approx(1.0)}

    def test_shifts_travel_over_jobs_that_share(self) -> None:
        """B is shifted against a on one link, and c against b on another: c is back with a."""
        job = {"ideal": 2.0, "compute": 1.0, "communicate": 1.0}
        jobs = {name: JobView(name, **job) for name in "abc"}
        view = view_of({}, {"1": ("a", "x"), "2": ("b", "x"), "3": ("b", "y"), "4": ("c", "y")}, **jobs)
        shifts = Cassini().shifts(view)
        assert abs(shifts["a"] - shifts["b"]) == pytest.approx(1.0)
        assert abs(shifts["a"] - shifts["c"]) == pytest.approx(0.0)

    def test_what_is_not_known_stays(self) -> None:
        """A job that was never measured is not delayed."""
        view = view_of({"a": None, "b": None}, {"1": ("a", "x"), "2": ("b", "x")})
        assert Cassini().shifts(view) == {"a": 0.0, "b": 0.0}
