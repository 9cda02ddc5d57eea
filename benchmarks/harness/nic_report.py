"""What failslow.py shows: slowdowns beside their floors, bytes by NIC, and the picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.harness.nic_caps import HEALTHY, Scenario, floor
from benchmarks.harness.nic_job import Run
from benchmarks.harness.report import format_time, table
from theseus_py.testbed import Shape

Key = tuple[str, str, str]  # variant, scenario, collective
LABELS = {"all_gather": "AllGather", "reduce_scatter": "ReduceScatter", "all_reduce": "AllReduce"}


@dataclass
class Measured:
    """All runs, by variant, scenario and collective."""

    shape: Shape
    runs: dict[Key, list[Run]] = field(default_factory=dict)

    def add(self, variant: str, scenario: Scenario, collective: str, run: Run) -> None:
        """Keeps one more run."""
        self.runs.setdefault((variant, scenario.name, collective), []).append(run)

    def seconds(self, variant: str, scenario: Scenario, collective: str) -> float | None:
        """Returns the median; None without runs, or where the median one did not end."""
        runs = self.runs.get((variant, scenario.name, collective))
        if not runs or self.stalled(variant, scenario, collective):
            return None
        return median(run.seconds for run in runs)

    def stalled(self, variant: str, scenario: Scenario, collective: str) -> bool:
        """Whether half of the runs or more did not end under the caps."""
        runs = self.runs.get((variant, scenario.name, collective), [])
        return bool(runs) and 2 * sum(run.stalled for run in runs) >= len(runs)

    def slowdown(self, variant: str, scenario: Scenario, collective: str) -> float | None:
        """Returns the median over that of the same variant on healthy NICs; None without one of them."""
        slow, healthy = (self.seconds(variant, each, collective) for each in (scenario, HEALTHY))
        return None if slow is None or healthy is None else slow / healthy

    def floor(self, scenario: Scenario, collective: str) -> float:
        """Returns the least slowdown that any schedule could have."""
        return floor(collective, self.shape.hosts, self.shape.nics, scenario.caps)


def slowdown_table(measured: Measured, collective: str, scenarios: Sequence[Scenario], variants: Sequence[str]) -> str:
    """One row a scenario: the floor, then each variant's slowdown; the healthy row has seconds."""
    rows = []
    for scenario in scenarios:
        cells = [_cell(measured, variant, scenario, collective) for variant in variants]
        rows.append([scenario.name, f"{measured.floor(scenario, collective):.3f}", *cells])
    return table([LABELS[collective], "floor", *variants], rows)


def _cell(measured: Measured, variant: str, scenario: Scenario, collective: str) -> str:
    if measured.stalled(variant, scenario, collective):
        longest = max(run.seconds for run in measured.runs[variant, scenario.name, collective] if run.stalled)
        return f"stalls (> {format_time(longest)})"
    if scenario == HEALTHY:
        seconds = measured.seconds(variant, scenario, collective)
        return "-" if seconds is None else format_time(seconds)
    slowdown = measured.slowdown(variant, scenario, collective)
    return "-" if slowdown is None else f"{slowdown:.3f}"


def bytes_table(measured: Measured, scenarios: Sequence[Scenario], variants: Sequence[str]) -> str:
    """MB that the NICs of every host sent in one AllReduce, the last measured of each kind."""
    rows = []
    for scenario in scenarios:
        for variant in variants:
            runs = measured.runs.get((variant, scenario.name, "all_reduce"))
            # What a stalled one sent, it sent when it was healed.
            if runs and not measured.stalled(variant, scenario, "all_reduce"):
                hosts = ["/".join(f"{nic.sent / 1e6:.1f}" for nic in host) for host in runs[-1].traffic]
                rows.append([scenario.name, variant, *hosts])
    return table(["MB sent by NIC", "", *(f"host {host}" for host in range(measured.shape.hosts))], rows)


def draw(path: Path, measured: Measured, scenarios: Sequence[Scenario], variants: Mapping[str, str]) -> None:
    """Writes the picture: slowdown by what is left of one NIC, each collective a panel. `variants`: name, meaning.

    Raises ImportError without matplotlib.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    single = [scenario for scenario in scenarios if scenario.single is not None]
    figure, panels = pyplot.subplots(1, len(LABELS), figsize=(13, 4.2), sharey=True, layout="constrained")
    for panel, (collective, label) in zip(panels, LABELS.items(), strict=True):
        width = 0.8 / max(1, len(variants))
        for place, variant in enumerate(variants):
            for number, scenario in enumerate(single):
                value = 1.0 if scenario == HEALTHY else measured.slowdown(variant, scenario, collective)
                middle = number + (place - (len(variants) - 1) / 2) * width
                name = variant if number == 0 else None
                panel.bar(middle, value or 0.0, width, color=f"C{place}", label=name)
                if value is None:
                    stalled = measured.stalled(variant, scenario, collective)
                    panel.text(middle, 0.6, "x" if stalled else "-", ha="center", color=f"C{place}", size=8)
        for number, scenario in enumerate(single):
            least = measured.floor(scenario, collective)
            panel.plot(
                [number - 0.45, number + 0.45], [least, least], color="black", lw=1.2, label=None if number else "floor"
            )
        panel.set_title(label)
        panel.set_yscale("log")
        panel.set_ylim(0.5, 20)
        panel.set_yticks([0.5, 1, 1.5, 2, 3, 5, 10, 20], ["0.5", "1", "1.5", "2", "3", "5", "10", "20"])
        panel.set_xticks(range(len(single)), [f"{scenario.single:g}" for scenario in single])
        panel.set_xlabel("what is left of one NIC")
        panel.grid(axis="y", alpha=0.3)
    panels[0].set_ylabel("time over that of healthy NICs\n(x: did not end)")
    panels[-1].legend(fontsize=8)
    figure.suptitle(f"One slow NIC: {measured.shape.describe()}", size=11)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
