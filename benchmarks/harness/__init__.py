"""What the benchmarks share: flags, tables, reports, the machine's placement, servers, the verdict."""

from benchmarks.harness.machine import Probe, describe, in_words, placement
from benchmarks.harness.report import (
    Result,
    finish,
    format_size,
    format_time,
    missed,
    parse_size,
    parser,
    table,
    write_json,
)

__all__ = [
    "Probe",
    "Result",
    "describe",
    "finish",
    "format_size",
    "format_time",
    "in_words",
    "missed",
    "parse_size",
    "parser",
    "placement",
    "table",
    "write_json",
]
