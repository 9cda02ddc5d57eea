"""How far a job is, from what its framework logs."""

from leveller.tracker.formats import FORMATS, Format
from leveller.tracker.parse import Iteration, LineParser
from leveller.tracker.source import Tracker

__all__ = ["FORMATS", "Format", "Iteration", "LineParser", "Tracker"]
