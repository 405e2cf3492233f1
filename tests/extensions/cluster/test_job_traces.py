"""Traces of jobs: their dialects, what is wrong with a file, how a trace is scaled, what is made up."""

from __future__ import annotations

import gzip
import resource
from pathlib import Path

import numpy as np
import pytest

from ringlight.containers.image import ROOT
from ringlight.extensions.cluster.formats.job_traces import read_job_trace
from ringlight.extensions.cluster.job_traces import (
    Fit,
    JobTrace,
    Sending,
    fitted,
    generated,
    resampled,
    shares_of,
)

RFOLD = "#job id,arrival time (sec),topology,shape,size,duration (sec)\n"
HELIOS = (
    "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
    "7,u1,v0,0,4,1,COMPLETED,2020-04-18 09:11:30,2020-04-18 09:11:33,2020-04-18 09:12:33,60,3\n"
    "8,u1,v0,8,4,1,COMPLETED,2020-04-18 09:11:40,2020-04-18 09:11:43,2020-04-18 09:12:43,60,3\n"
    "9,u2,v0,2,4,1,FAILED,2020-04-18 09:11:33,2020-04-18 09:11:43,2020-04-18 09:12:43,30,10\n"
)
ACME = (
    "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time\n"
    "a,u,1,4,8,Other,COMPLETED,2023-07-13 10:13:58+08:00,2023-07-13 10:14:00+08:00,,90,2,360\n"
)


def _file(tmp_path: Path, text: str, name: str = "jobs.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_the_traces_that_are_carried() -> None:
    crux = read_job_trace(ROOT / "scenarios/traces/crux.csv")
    assert (len(crux), int(crux.gpus.max()), int((crux.gpus > 1).sum())) == (
        2498,
        744,
        2265,
    )
    assert crux.span_s == pytest.approx(15.92 * 86_400, rel=1e-3)
    philly = read_job_trace(ROOT / "scenarios/traces/philly.csv.gz")
    assert (len(philly), int(philly.gpus.max())) == (111_549, 128)
    assert philly.load(4096) == pytest.approx(0.2848, rel=1e-3)


def test_helios_and_acme(tmp_path: Path) -> None:
    helios = read_job_trace(_file(tmp_path, HELIOS))
    assert helios.arrival_s.tolist() == [0, 7]
    assert helios.gpus.tolist() == [2, 8]
    assert helios.duration_s.tolist() == [30, 60]
    assert helios.counts == {"no_gpu": 1}
    assert read_job_trace(_file(tmp_path, ACME)).duration_s.tolist() == [90]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("1,2,CLOS,1,x,60", "line 3, column size: 'x' is no number"),
        ("1,-2,CLOS,1,1,60", "line 3, column arrival time (sec): '-2' is negative"),
        ("1,2,CLOS,1,1,-60", "line 3, column duration (sec): '-60' is negative"),
        ("1,2,CLOS,1,1.5,60", "line 3, column size: '1.5' is no whole number"),
        ("1,2,CLOS,1,1,nan", "line 3, column duration (sec): 'nan' is no number"),
        ("1,2,CLOS,1", "line 3, column 5: 4 columns where there are 6"),
        ("1,2,CLOS,1,1e30,60", "line 3, column size: '1e30' is above"),
    ],
)
def test_a_bad_row_is_named_or_counted(tmp_path: Path, row: str, said: str) -> None:
    path = _file(tmp_path, f"{RFOLD}0,0,CLOS,1,1,60\n{row}\n")
    with pytest.raises(ValueError) as error:
        read_job_trace(path)
    assert str(error.value).startswith(f"{path}, {said}")
    found = read_job_trace(path, skip_bad=True)
    assert (len(found), found.counts) == (1, {"bad_row": 1})


def test_an_unknown_column_and_a_missing_one(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"line 1, column 5: unknown column 'sise'; the nearest is size",
    ):
        read_job_trace(_file(tmp_path, RFOLD.replace("size", "sise")))
    with pytest.raises(
        ValueError, match=r"line 1: there is no column duration \(sec\)"
    ):
        read_job_trace(_file(tmp_path, "arrival time (sec),size\n0,1\n"))
    with pytest.raises(ValueError, match="it is empty"):
        read_job_trace(_file(tmp_path, ""))


def test_a_wrong_column_names_the_columns_of_each_kind_of_trace(tmp_path: Path) -> None:
    for head in ("submitted,gpus,seconds", "arrival time (sec),size"):
        with pytest.raises(ValueError) as error:
            read_job_trace(_file(tmp_path, f"{head}\n"))
        for words in (
            "RFold: arrival time (sec), size",
            "Helios and Acme: submit_time, gpu_num, duration",
        ):
            assert words in str(error.value)
    with pytest.raises(ValueError, match="no job that wants a GPU"):
        read_job_trace(_file(tmp_path, RFOLD))


def test_a_line_without_end_and_a_broken_archive(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="line 2: it has more than 10000 characters"):
        read_job_trace(_file(tmp_path, RFOLD + "1" * 20_000))
    path = tmp_path / "jobs.csv.gz"
    path.write_bytes(gzip.compress((RFOLD + "0,0,CLOS,1,1,60\n" * 100).encode())[:-20])
    with pytest.raises(ValueError, match=r"jobs\.csv\.gz, line"):
        read_job_trace(path)
    with pytest.raises(ValueError, match="no regular file"):
        read_job_trace(Path("/dev/zero"))


def test_a_large_file_takes_no_more_memory_than_its_figures(tmp_path: Path) -> None:
    """20 MB of rows with long cells: a third of the file in figures at the most."""
    path = tmp_path / "jobs.csv"
    row = f"7,u,v0,8,4,1,{'COMPLETED' * 9},2020-04-18 09:11:40,,,60,3\n"
    with path.open("w") as file:
        file.write(HELIOS.splitlines()[0] + "\n")
        file.writelines(row for _ in range(20_000_000 // len(row)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = read_job_trace(path)
    assert len(found) == 20_000_000 // len(row)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


def _trace(gpus: list[int], duration_s: float = 100.0) -> JobTrace:
    count = len(gpus)
    return JobTrace(np.arange(count) * 10.0, np.array(gpus), np.full(count, duration_s))


def test_what_does_not_fit_is_counted() -> None:
    trace = _trace([1, 8, 64, 2])
    dropped = fitted(trace, 32, Fit(), 0)
    assert (dropped.gpus.tolist(), dropped.counts) == ([1, 8, 2], {"too_large": 1})
    cut = fitted(trace, 32, Fit(larger="cut"), 0)
    assert (cut.gpus.tolist(), cut.counts) == ([1, 8, 32, 2], {"cut": 1})
    assert fitted(trace, 128, Fit(sizes=1.5), 0).gpus.tolist() == [2, 12, 96, 3]
    assert fitted(trace, 128, Fit(days=15 / 86_400), 0).counts == {"after_days": 2}
    with pytest.raises(ValueError, match="no job of the trace is left for 1 GPUs"):
        fitted(_trace([2, 3]), 1, Fit(), 0)


@pytest.mark.parametrize("load", [0.2, 0.4, 0.9, 2.7])
def test_a_load_is_reached_without_changing_durations(load: float) -> None:
    crux = read_job_trace(ROOT / "scenarios/traces/crux.csv")
    found = fitted(crux, 2048, Fit(load=load), 3)
    assert found.load(2048) == pytest.approx(load, rel=0.2)
    assert set(found.duration_s.tolist()) <= set(crux.duration_s.tolist())
    assert found.span_s <= crux.span_s * (1 + 1e-9)
    with pytest.raises(ValueError, match="copies of this trace; 64 are allowed"):
        fitted(crux, 2048, Fit(load=40), 3)


def _days(days: int, each: int) -> JobTrace:
    """So many jobs a day, between 8 and 18 o'clock; a job's GPUs are its number, which tells it from all."""
    at_s = np.concatenate(
        [day * 86_400 + np.linspace(8, 18, each) * 3600 for day in range(days)]
    )
    return JobTrace(
        at_s - at_s[0], np.arange(1, len(at_s) + 1), np.full(len(at_s), 60.0)
    )


@pytest.mark.parametrize("hours", [4, 24, 72])
def test_blocks_of_a_trace_keep_their_order_and_their_time_of_day(hours: float) -> None:
    trace, block_s = _days(10, 20), hours * 3600.0
    found, again, other = (
        resampled(trace, block_s, np.random.default_rng(seed)) for seed in (1, 1, 2)
    )
    assert found.gpus.tolist() == again.gpus.tolist() != other.gpus.tolist()
    assert (
        found.arrival_s.tolist()
        == again.arrival_s.tolist()
        == sorted(found.arrival_s.tolist())
    )
    # Some jobs come several times, others never; in the mean there are as many.
    draws = [
        resampled(trace, block_s, np.random.default_rng(seed)) for seed in range(40)
    ]
    assert np.mean([len(one) for one in draws]) == pytest.approx(len(trace), rel=0.08)
    assert all(one.span_s <= trace.span_s for one in draws)
    numbers = found.gpus - 1
    assert 0 < len(set(numbers.tolist())) < len(trace)
    # From one job to the next of a block: the next of the trace, in the gap that it had there.
    steps = np.diff(numbers)
    assert np.mean(steps == 1) > 0.6
    gaps_s, own_s = (
        np.diff(found.arrival_s)[steps == 1],
        np.diff(trace.arrival_s)[numbers[:-1][steps == 1]],
    )
    assert gaps_s == pytest.approx(own_s)
    # Nights stay nights: whatever day a block is drawn from, the hour is the same.
    late = (found.arrival_s - trace.arrival_s[numbers]) % 86_400
    assert np.ptp((late + 43_200 - late[0]) % 86_400) < 1e-3


def test_a_resampled_trace_reaches_its_load() -> None:
    crux = read_job_trace(ROOT / "scenarios/traces/crux.csv")
    loads = []
    for seed in range(20):
        found = fitted(crux, 2048, Fit(load=0.8, block_s=86_400.0), seed)
        assert set(found.duration_s.tolist()) <= set(crux.duration_s.tolist())
        assert found.counts["resampled"] == len(found)
        loads.append(found.load(2048))
    assert np.mean(loads) == pytest.approx(0.8, rel=0.06)
    one, same = (
        fitted(crux, 2048, Fit(load=0.8, block_s=86_400.0), 3) for _ in range(2)
    )
    assert (one.arrival_s.tolist(), one.gpus.tolist()) == (
        same.arrival_s.tolist(),
        same.gpus.tolist(),
    )


def test_blocks_that_cannot_be_drawn() -> None:
    trace = _days(10, 20)
    with pytest.raises(
        ValueError,
        match=r"resample: blocks of 60 s are .* in this trace; 1,000 are allowed",
    ):
        fitted(trace, 512, Fit(block_s=60.0), 0)
    together = JobTrace(np.zeros(3), np.array([1, 2, 3]), np.full(3, 60.0))
    assert fitted(together, 8, Fit(block_s=3600.0), 0).gpus.tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="arrive at once has no load"):
        fitted(together, 8, Fit(block_s=3600.0, load=0.5), 0)
    # Less than a day has no time of day to keep.
    hour = fitted(_trace([1] * 361), 8, Fit(block_s=600.0), 0)
    assert 250 < len(hour) < 470


def test_jitter_and_made_up_jobs_follow_from_the_seed() -> None:
    one, same, other = (
        generated(500, 10, 60, {1: 3, 8: 1}, seed) for seed in (1, 1, 2)
    )
    assert one.arrival_s.tolist() == same.arrival_s.tolist() != other.arrival_s.tolist()
    assert set(one.gpus.tolist()) == {1, 8}
    moved = fitted(one, 64, Fit(jitter_s=30), 1)
    assert (
        moved.arrival_s.tolist()
        == fitted(one, 64, Fit(jitter_s=30), 1).arrival_s.tolist()
    )
    assert (
        moved.arrival_s.tolist()
        == sorted(moved.arrival_s.tolist())
        != one.arrival_s.tolist()
    )


@pytest.mark.parametrize("kind", ["exponential", "constant", "lognormal"])
def test_distributions_have_the_mean_that_is_asked_for(kind: str) -> None:
    found = generated(100_000, 5.0, 60.0, {1: 1.0}, 0, gaps=kind, durations=kind)
    assert found.span_s / len(found) == pytest.approx(5.0, rel=0.15)
    assert found.duration_s.mean() == pytest.approx(60.0, rel=0.15)


def test_what_jobs_send_goes_by_their_size() -> None:
    trace = _trace([1, 8, 9, 100])
    shares, rings = shares_of(
        trace, [Sending(8, 0.1), Sending(64, 0.2, "ring"), Sending(None, 0.3)]
    )
    assert shares.tolist() == [0.0, 0.1, 0.2, 0.3]
    assert rings.tolist() == [False, False, True, False]
    for wrong in ([Sending(8, 0.1)], [Sending(None, 0.1), Sending(8, 0.1)]):
        with pytest.raises(ValueError, match="from small to large"):
            shares_of(trace, wrong)
