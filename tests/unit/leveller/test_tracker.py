"""Iterations are counted right whatever a framework's log, and whoever writes or moves it, does."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveller.tracker import FORMATS, Iteration, LineParser, Tracker
from leveller.tracker.source import format_of


def steps(text: str | bytes, name: str = "auto") -> list[int]:
    return [
        each.step for each in LineParser(format_of(name)).feed(text.encode() if isinstance(text, str) else text, 0.0)
    ]


def megatron(step: int, skipped: int = 0) -> str:
    return (
        f" [2031-02-03 04:05:06] iteration {step:8d}/    1000 | consumed samples: {step * 16:12d} |"
        f" elapsed time per iteration (ms): 1100.0 | number of skipped iterations: {skipped:3d} |\n"
    )


def torchtitan(step: int, rank: int = 0, colour: bool = False) -> str:
    one, off = ("\x1b[31m", "\x1b[39m") if colour else ("", "")
    return (
        f"[rank{rank}]:[titan] 2031-02-03 04:05:06,100 - root - INFO - {one}step: {step:,}  \x1b[0m{off}"
        f"{one}loss:  6.1000  {off}memory: 49.00GiB(52.00%)  tps: 5,856  tflops: 339.00  mfu: N/A\n"
    )


def lightning(epoch: int, step: int, total: int = 18) -> str:
    return f"Epoch {epoch}:  22%|##2       | {step}/{total} [00:17<01:02,  4.40s/it, loss=10.0, v_num=1]\r"


def bar(step: int, total: int = 24128, speed: str = "3.33s/it") -> str:
    return f"  8%|########      | {step}/{total} [1:52:09<20:27:23,  {speed}]\r"


DEEPSPEED = (
    "[2031-02-03 04:05:06,935] [INFO] [logging.py:96:log_dist] [Rank 0] step={0}, skipped=0, lr=[0.0001], mom=[0.9]\n"
    "[2031-02-03 04:05:06,936] [INFO] [timer.py:215:stop] epoch=0/micro_step={1}/global_step={0}, "
    "RunningAvgSamplesPerSec=220.6, CurrSamplesPerSec=222.8, MemAllocated=0.07GB, MaxMemAllocated=1.36GB\n"
)
NANOGPT = "iter {0}: loss 3.2000, time 890.00ms, mfu {1}%\n"

SAMPLES = {
    "megatron": megatron(10) + megatron(20, skipped=10),
    "deepspeed": DEEPSPEED.format(10, 40) + DEEPSPEED.format(20, 80),
    "torchtitan": torchtitan(10) + torchtitan(20),
    "nanogpt": NANOGPT.format(10, "-100.00") + NANOGPT.format(20, "16.0"),
    "lightning": lightning(0, 10) + lightning(0, 20 - 4) + lightning(1, 2),
    "huggingface": bar(10) + bar(20),
}


def test_every_format_has_a_sample() -> None:
    assert SAMPLES.keys() == FORMATS.keys()


@pytest.mark.parametrize("name", FORMATS)
def test_the_first_lines_tell_the_format(name: str) -> None:
    parser = LineParser()
    found = parser.feed(b"Loading 10/20 shards\nstarting at step 5\n" + SAMPLES[name].encode(), 3.0)
    assert parser.format is FORMATS[name]
    assert found[0] == Iteration(10, 3.0) and found[-1] == Iteration(20, 3.0)


@settings(deadline=None)
@given(st.sampled_from(sorted(SAMPLES)), st.lists(st.integers(1, 80), max_size=30))
def test_pieces_give_what_the_whole_gives(name: str, cuts: list[int]) -> None:
    data = SAMPLES[name].encode()
    parser, found = LineParser(), []
    for cut in cuts:
        found += parser.feed(data[:cut], 0.0)
        data = data[cut:]
    found += parser.feed(data, 0.0)
    assert [each.step for each in found] == steps(SAMPLES[name])


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 4)), min_size=1, max_size=20))
def test_iterations_are_differences_of_steps_and_not_lines(lines: list[tuple[int, int]]) -> None:
    rising = sorted({step for step, _ in lines})
    text = "".join(torchtitan(step, rank) for step, (_, ranks) in zip(rising, lines) for rank in range(ranks))  # noqa: B905
    assert steps(text) == rising[: len(lines)]


def test_a_rank_that_is_late_repeats_and_counts_nothing() -> None:
    assert steps(torchtitan(10) + torchtitan(20) + torchtitan(10, 1) + torchtitan(20, 1) + torchtitan(30)) == [
        10,
        20,
        30,
    ]


def test_many_late_ranks_are_no_restart() -> None:
    """Seven ranks whose output is behind: each repeats 10 and 20, while rank 0 is at 30."""
    late = "".join(torchtitan(step, rank) for rank in range(1, 8) for step in (10, 20, 30))
    assert steps("".join(torchtitan(step) for step in (10, 20, 30)) + late + torchtitan(40)) == [10, 20, 30, 40]


def test_a_restart_from_a_checkpoint_goes_on_from_there() -> None:
    assert steps("".join(map(megatron, (980, 990, 500, 510, 520)))) == [980, 990, 500, 510, 520]


def test_skipped_iterations_are_iterations() -> None:
    assert steps(megatron(10, skipped=10) + megatron(20, skipped=10)) == [10, 20]


def test_megatron_without_time_and_colon_is_known() -> None:
    assert steps(" iteration       10/    1000 | elapsed time per iteration (ms) 1147.6 | lm loss 1.0E+01 |\n") == [10]


def test_colours_and_thousands_do_not_hide_the_step() -> None:
    assert steps(torchtitan(1200, colour=True) + torchtitan(1210, colour=True)) == [1200, 1210]


def test_other_lines_that_have_a_step_are_none() -> None:
    noise = (
        "[titan] 2031-02-03 04:05:06,100 - root - INFO - Dumping profiler traces at step 200\n"
        "step 250: train loss 1.5000, val loss 1.7000\n"
        "{'loss': 6.2, 'learning_rate': 0.001, 'epoch': 0.02}\n"
        "saving checkpoint at iteration 500 to /checkpoints\n"
    )
    assert steps(noise) == []
    assert steps(torchtitan(10) + noise + torchtitan(20)) == [10, 20]


def test_a_loss_that_is_not_a_number_is_an_iteration_too() -> None:
    assert steps("iter 7: loss nan, time 893.76ms, mfu 16.68%\n") == [7]


def test_a_bar_that_shares_its_line_with_a_message_counts() -> None:
    text = bar(1999)[:-1] + "[2031-02-03 04:05:06,494] [INFO] [timer.py:1:x] saved\n" + bar(2000)
    assert steps(text) == [1999, 2000]


@pytest.mark.parametrize("speed", ["3.33s/it", "12.50it/s", "?it/s"])
def test_speeds_of_bars_do_not_matter(speed: str) -> None:
    assert steps(bar(5, speed=speed) + bar(6, speed=speed)) == [5, 6]


def test_a_bar_of_an_evaluation_is_not_the_trainings() -> None:
    assert steps(bar(500) + bar(1, 64) + bar(64, 64) + bar(501)) == [500, 501]


def test_a_bar_that_came_before_the_trainings_does_not_hide_it() -> None:
    """Tokenisation, and the shards of a checkpoint, have bars as well."""
    before = "".join(bar(i, 4) for i in range(5))
    assert steps(before + "".join(bar(i, 1000) for i in range(8)))[-3:] == [5, 6, 7]


def test_epochs_that_count_anew_go_on() -> None:
    text = "".join(lightning(epoch, step) * 2 for epoch in range(3) for step in (0, 9, 18))
    assert steps(text) == [0, 9, 18, 27, 36, 45, 54]


def test_batches_of_validation_at_the_end_of_an_epoch_are_no_restart() -> None:
    bars = "Validating:  50%|#####     | 2/4 [00:01<00:01,  1.00it/s]\r"
    assert steps(lightning(0, 14) + bars + lightning(0, 16) + lightning(1, 1)) == [14, 16, 19]


def test_training_that_begins_in_a_later_epoch_counts_from_there() -> None:
    found = steps(lightning(3, 1) + lightning(3, 2))
    assert found[1] - found[0] == 1


def test_bytes_that_are_no_text_do_no_harm() -> None:
    assert steps(b"\xff\xfe\x00junk\n" + megatron(10).encode() + b"\xc3(" + megatron(20).encode()) == [10, 20]


def test_an_endless_line_is_cut_and_costs_no_more() -> None:
    parser = LineParser()
    for _ in range(64):
        assert parser.feed(b"x" * (1 << 16), 0.0) == []
    assert sum(len(value) for value in vars(parser).values() if isinstance(value, bytes)) <= 1 << 17
    assert [each.step for each in parser.feed(b"\n" + megatron(10).encode(), 0.0)] == [10]


def test_a_number_beyond_reason_is_no_step() -> None:
    assert steps(f"iter {'9' * 5000}: loss 1.0\niter 5: loss 1.0\n") == [5]


def test_a_pattern_of_ones_own_counts() -> None:
    assert steps("batch #1,000 done\nbatch #1,001 done\n", r"pattern:batch #(?P<step>[\d,]+) done") == [1000, 1001]


@pytest.mark.parametrize(
    "name, said",
    [
        ("pattern:(", "no regular expression"),
        ("pattern:step \\d+", "no group step"),
        ("pattern:(?P<step>" + "x" * 600 + ")", "at most"),
        ("tensorflow", "choose auto"),
    ],
)
def test_a_pattern_or_a_name_that_cannot_be_says_why(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        format_of(name)


@pytest.mark.parametrize("before", ["[rank{0}]:", "[default{0}]:", "[1,{0}]<stdout>:", "{0}: "])
def test_what_launchers_put_before_a_line_does_not_hide_it(before: str) -> None:
    text = "".join(before.format(rank) + NANOGPT.format(step, "1.0") for rank in range(3) for step in (10, 20, 30))
    assert steps(text) == [10, 20, 30]
    again = "".join(before.format(0) + NANOGPT.format(step, "1.0") for step in (10, 20))
    assert steps(text + again) == [10, 20, 30, 10, 20], "rank 0 went back: a restart"


def test_ranks_at_different_epochs_count_once() -> None:
    text = "".join(f"[rank{rank}]:" + lightning(epoch, 5) for epoch in range(3) for rank in (0, 1))
    assert steps(text + "[rank1]:" + lightning(1, 9)) == [5, 23, 41]


def test_a_pattern_that_finds_no_number_finds_nothing() -> None:
    assert steps("step x\nstep\nstep 4\n", r"pattern:step ?(?P<step>\w*)") == [4]


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def polled(tracker: Tracker) -> list[int]:
    return [each.step for each in tracker.poll(1.0)]


def test_a_file_is_followed_from_where_it_ends_through_rotation_and_truncation(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tracker = Tracker(log)
    assert polled(tracker) == []
    append(log, megatron(10))
    assert polled(tracker) == [10]
    append(log, megatron(20))
    assert polled(tracker) == [20]
    append(log, megatron(30))
    log.rename(tmp_path / "log.1")
    append(tmp_path / "log.1", megatron(40))
    append(log, megatron(50))
    assert polled(tracker) == [30, 40, 50]
    append(log, megatron(60))
    assert polled(tracker) == [60]
    log.write_text(megatron(70))
    assert polled(tracker) == [70]
    tracker.close()


def test_what_a_log_holds_before_is_not_counted_as_new(tmp_path: Path) -> None:
    log = tmp_path / "log"
    append(log, megatron(10) + megatron(20))
    tracker = Tracker(log)
    assert polled(tracker) == []
    append(log, megatron(30))
    assert polled(tracker) == [30]
    tracker.close()


def test_a_pipe_is_followed_over_writers(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    tracker = Tracker(pipe)
    assert polled(tracker) == []
    for step in (10, 20):
        writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        os.write(writer, megatron(step).encode())
        os.close(writer)
        assert polled(tracker) == [step]
    tracker.close()


def test_iterations_come_one_by_one(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()

    async def first_two() -> list[int]:
        tracker = Tracker(log, "megatron", period=0.001)
        tracker.poll()
        append(log, megatron(10) + megatron(20))
        found: list[int] = []
        async for each in tracker:
            found.append(each.step)
            if len(found) == 2:
                break
        tracker.close()
        return found

    assert asyncio.run(first_two()) == [10, 20]
