"""What fails says so, in time, on every rank that lives. The cases: cases_failures.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Make = Callable[[int], Any]


def test_missing_ranks_are_named_and_timeouts_hold(fresh_pool: Make) -> None:
    pool = fresh_pool(3)
    for case in (
        "case_missing_rank_is_named_by_monitored_barrier",
        "case_wait_with_a_timeout_raises_and_the_work_goes_on",
        "case_all_missing_ranks_are_named_on_request",
        "case_no_time_for_monitored_barrier_is_an_error_at_once",
        "case_group_timeout_ends_a_call_that_nobody_joins",
    ):
        pool.run("cases_failures", case)


@pytest.mark.parametrize("case", ["case_mismatched_calls_raise_on_every_rank", "case_abort_frees_a_waiting_call"])
def test_two_ranks(fresh_pool: Make, case: str) -> None:
    fresh_pool(2).run("cases_failures", case)


def test_a_dead_rank_ends_backward_with_our_text(fresh_pool: Make) -> None:
    pool = fresh_pool(2)
    with pytest.raises(AssertionError) as caught:
        pool.run("cases_failures", "case_error_in_backward_is_a_runtime_error_with_our_text")
    # Rank 1 is gone by design; rank 0 must have come back, and well.
    assert "rank 1: the process ended" in str(caught.value)
    assert "rank 0" not in str(caught.value)


def test_groups_can_be_destroyed_and_made_again(fresh_pool: Make, tmp_path: Path) -> None:
    fresh_pool(2).run("cases_failures", "case_destroy_and_start_again", str(tmp_path), 3)
