"""What the benchmarks share: flags, tables, reports, the machine's placement, servers, the verdict."""

from benchmarks.harness.machine import Probe, describe, placement
from benchmarks.harness.report import format_size, format_time, parse_size, parser, table, write_json

__all__ = [
    "Probe",
    "describe",
    "format_size",
    "format_time",
    "parse_size",
    "parser",
    "placement",
    "table",
    "write_json",
]
