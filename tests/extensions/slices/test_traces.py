"""Traces of slice requests: the replay has the controller's own pool, and light makes any free cubes a slice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.containers.image import ROOT
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import parse
from ringlight.experiments.runner.command import carry_out_experiment
from ringlight.extensions.cluster.clusters import Policies
from ringlight.extensions.cluster.job_traces import JobTrace
from ringlight.extensions.cluster.language import jobs_of
from ringlight.extensions.cluster.plan import trace_of
from ringlight.extensions.cluster.simulation.replay import replay

SMALL = """
name: small
fabric: {cubes: {cube: 4x4x4, count: 4, gpu: tpu7x, rate: 1 Gbit/s}}
jobs:
  trace:
    generate: {jobs: 20, gap: 100 s, duration: 300 s, sizes: {64: 1, 128: 1}}
    sends: 0.3
"""


def plans(text: str) -> list[Any]:
    return list(parse(text, str(ROOT / "scenarios/small.yaml")).plans)


def trace(*jobs: tuple[float, int, float], shapes: Any = ()) -> JobTrace:
    arrival, gpus, duration = zip(*jobs, strict=True)
    return JobTrace(
        np.array(arrival), np.array(gpus, dtype=np.int64), np.array(duration), shapes
    )


def replayed(jobs: JobTrace) -> Any:
    cluster = trace_of(plans(SMALL)[0]).cluster
    zeros = np.zeros(len(jobs))
    return replay(
        cluster, jobs, zeros, zeros.astype(np.bool_), Policies(placement="slices")
    )


def test_cubes_apart_are_a_slice_and_a_remainder_stays_idle() -> None:
    # c0 to c3 are taken; c0 and c2 are free at 10 s, and make a slice of 128.
    jobs = trace(
        (0.0, 64, 10.0),
        (0.0, 64, 50.0),
        (0.0, 64, 10.0),
        (0.0, 64, 50.0),
        (1.0, 128, 5.0),
    )
    assert replayed(jobs).start_s.tolist() == [0, 0, 0, 0, 10]
    # 70 GPUs have two cubes, so a third and a fourth job wait.
    jobs = trace((0.0, 70, 10.0), (0.0, 70, 10.0), (1.0, 1, 5.0))
    assert replayed(jobs).start_s.tolist() == [0, 0, 10]


def test_a_shape_needs_the_cubes_that_contain_it() -> None:
    jobs = trace((0.0, 16, 10.0), (0.0, 64, 10.0), shapes=((16, 1, 1), (4, 4, 4)))
    # 16 x 1 x 1 is in four cubes in a row, so nothing is left.
    assert replayed(jobs).start_s.tolist() == [0, 10]


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(1, 256), st.integers(1, 40)),
        min_size=1,
        max_size=25,
    )
)
def test_no_cube_is_of_two_slices_and_no_job_waits_while_cubes_for_it_are_free(
    jobs: list[tuple[int, int, int]],
) -> None:
    """First come, first served over four cubes, against a count of free cubes."""
    jobs = sorted(jobs, key=lambda job: job[0])
    record = replayed(trace(*((float(a), g, float(d)) for a, g, d in jobs)))
    ends: list[tuple[float, int]] = []
    last = 0.0
    for (arrives, gpus, duration), start in zip(jobs, record.start_s, strict=True):
        needs, now = -(-gpus // 64), max(float(arrives), last)
        for at in sorted({now, *(end for end, _ in ends if end > now)}):
            if 4 - sum(cubes for end, cubes in ends if end > at) >= needs:
                now = at
                break
        assert start == pytest.approx(now)
        ends.append((now + duration, needs))
        last = now


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("sends: 0.3", "sends: 0.3\n    placement: pack"), "all of their jobs are"),
        (("sends: 0.3", "sends: 0.3\n    light: at-arrival"), "light of its own"),
        (
            ("rate: 1 Gbit/s", "rate: 1 Gbit/s, slices: {red: {topology: 4x4x4}}"),
            "slice red: a trace needs all cubes",
        ),
        (
            (
                "cubes: {cube: 4x4x4, count: 4,",
                "leaf_spine: {leaves: 2, spines: 1, gpus_per_leaf: 4,",
            ),
            "all of their jobs are",
        ),
    ],
)
def test_policies_that_mean_nothing_here_are_refused(
    change: tuple[str, str], message: str
) -> None:
    text = SMALL.replace(*change)
    if "leaf_spine" in text:
        text = text.replace("sends: 0.3", "sends: 0.3\n    placement: slices")
    with pytest.raises(ValueError, match=message):
        plans(text)


def test_shapes_of_a_file_are_read_and_what_never_fits_is_dropped(
    tmp_path: Path,
) -> None:
    header = "#job id,arrival time (sec),topology,shape,size,duration (sec)"
    rows = ["0,0.0,T,4x4x4,64,10.0", "1,1.0,T,1x4x64,256,10.0", "2,2.0,T,2x2x2,8,10.0"]
    (tmp_path / "jobs.csv").write_text("\n".join([header, *rows]) + "\n")
    begin, _, end = SMALL.partition("    generate:")
    text = f"{begin}    file: jobs.csv\n    sends: {end.rpartition('sends: ')[2]}"
    (plan,) = parse(text, str(tmp_path / "small.yaml")).plans
    jobs = jobs_of(trace_of(plan), 0)
    assert jobs.shapes == ((4, 4, 4), (2, 2, 2))
    assert jobs.counts["no_block"] == 1


REPORTED = """
name: small
fabrics:
  cubes: {cubes: {cube: 4x4x4, count: 4, gpu: tpu7x, rate: 1 Gbit/s}}
  torus: {interconnect: {kind: torus, gpus: 256, sides: [4, 4, 16], gpu: tpu7x, rate: 6 Gbit/s}}
jobs:
  trace:
    generate: {jobs: 40, gap: 100 s, duration: 300 s, sizes: {64: 1, 128: 1}}
    sends: 0.3
arms:
  torus: {title: Blocks, fabric: torus, jobs.trace.placement: blocks}
  cubes: {title: Slices, fabric: cubes}
compare: {baseline: torus, metrics: [waited_mean]}
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    experiment = parse(REPORTED, str(ROOT / "scenarios/small.yaml"))
    done, _ = carry_out_experiment(
        experiment, SimulationBackend(), tmp_path_factory.mktemp("runs")
    )
    return (done.path / "report.html").read_text()


def test_a_report_of_slices_has_no_plot_or_column_of_nothing(page: str) -> None:
    # No slice is on more cubes than it needs, and none of a torus is on a switch.
    for words in ("scattered", "Scattered", "fibres moved", "moves for 100 jobs"):
        assert words not in page
    assert "jobs that wait" in page


def test_a_report_of_slices_calls_the_places_of_jobs_cubes(page: str) -> None:
    assert "Slices: GPUs, cube by cube, by job over time" in page
    assert "Blocks: GPUs by job over time" in page
    assert "was on several cubes" in page
    for words in ("several switches", "more switches", "switch by switch"):
        assert words not in page


def test_a_comparison_of_waiting_explains_no_iterations(page: str) -> None:
    assert "Waited mean" in page
    for words in ("iteration and all-reduce times", "The model takes every link"):
        assert words not in page
