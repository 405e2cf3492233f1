"""``jobs: {trace: …}`` in a scenario file: from the file to the report."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ringlight.containers.image import ROOT
from ringlight.experiments.backends.emulation.backend import EmulationBackend
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import Experiment, load, parse
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.record.lines import read_records
from ringlight.experiments.runner import experiment as experiment_module
from ringlight.experiments.runner import progress
from ringlight.experiments.runner.check_document import check_document
from ringlight.experiments.runner.command import carry_out_experiment, finish
from ringlight.experiments.runner.foretold import Foreteller
from ringlight.experiments.runner.progress import Reporter
from ringlight.extensions.cluster.language import jobs_of
from ringlight.extensions.cluster.plan import trace_of
from ringlight.extensions.cluster.records import TraceReplayed, replay_in
from ringlight.extensions.cluster.section import occupied, times

FABRIC = "leaf_spine: {leaves: 4, spines: 1, gpus_per_leaf: 8, gpu: g, rate: 100 Gbit/s, oversubscription: 4}"
MADE_UP = "generate: {jobs: 150, gap: 50 s, duration: 600 s, sizes: {1: 2, 2: 1, 4: 1, 10: 1, 40: 0.1}}"
SMALL = f"""
name: small-cluster
description: Made-up jobs on four switches.
fabric:
  {FABRIC}
jobs:
  trace:
    {MADE_UP}
    sends: 0.4
    warm_up: 0.1
arms:
  random: {{jobs.trace.placement: random}}
  packed: {{}}
  light: {{jobs.trace.light: at-arrival}}
compare: {{baseline: packed, metrics: [completion_mean, goodput]}}
"""


def _parsed(text: str, **more: Any) -> Experiment:
    return parse(text, "small.yaml", **more)


def _run(
    experiment: Experiment, parent: Path, **more: Any
) -> tuple[Path, dict[str, Any]]:
    done, result = carry_out_experiment(
        experiment, SimulationBackend(), parent, reporter=Reporter(quiet=True), **more
    )
    assert not done.failures
    return done.path, result


def _values(result: dict[str, Any], metric: str) -> dict[str, float]:
    rows = (
        row
        for row in result["rows"]
        if row["metric"] == metric and row["repeat"] is None
    )
    return {row["arm"]: row["value"] for row in rows}


def test_from_a_file_to_its_report(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    folder, result = _run(load(tmp_path / "small.yaml"), tmp_path / "runs")
    mean = _values(result, "completion_mean")
    assert mean["light"] <= mean["packed"] < mean["random"]
    ratio = _values(result, "completion_mean_ratio")["random"]
    assert ratio == pytest.approx(mean["random"] / mean["packed"])
    assert max(_values(result, "little_gap").values()) < 1e-9
    assert _values(result, "jobs_dropped")["packed"] > 0
    page = (folder / "report.html").read_text()
    assert "the file assumes it (<code>sends</code>)" in page
    assert "trace.json" not in page
    for words in (
        "Jobs of a trace",
        "Who gains",
        "are larger than allowed",
        "came while the cluster filled",
    ):
        assert words in page
    assert "Times are real ones" in page
    for untrue in (
        "Seconds are those of the emulation",
        "A rank begins a step",
        "Watch it again",
    ):
        assert untrue not in page
    assert {path.stem for path in (folder / "plots").iterdir()} >= {
        "completion",
        "course",
        "map-packed",
    }


def test_a_sweep_of_repeats_goes_on_where_it_was_and_is_the_same_in_one_process(
    tmp_path: Path,
) -> None:
    over = "sweep: {over: {jobs.trace.sharing: [always, duty]}}\nrepeat: 2\n"
    (tmp_path / "small.yaml").write_text(SMALL + over)
    experiment = load(tmp_path / "small.yaml")
    folder, result = _run(experiment, tmp_path / "runs", processes=2)
    records = read_records(folder / "events.jsonl")
    assert (
        len([record for record in records if isinstance(record, TraceReplayed)]) == 12
    )
    lines = (folder / "events.jsonl").read_text().splitlines()
    (folder / "events.jsonl").write_text("\n".join(lines[: len(lines) // 2]) + "\n")
    _, again = _run(experiment, tmp_path / "runs", processes=2, resume=folder)

    def rows(found: dict[str, Any]) -> list[Any]:
        keys = ("arm", "metric", "repeat", "value")
        return sorted(
            (str(found["points"][row["point"]]), *(str(row[key]) for key in keys))
            for row in found["rows"]
        )

    assert rows(again) == rows(result)
    _, alone = _run(experiment, tmp_path / "alone", processes=1)
    assert rows(alone) == rows(result)


def test_a_sweep_with_a_title_is_drawn_of_the_run(tmp_path: Path) -> None:
    titled = "sweep: {title: By load, metrics: [goodput], over: {jobs.trace.load: [0.3, 0.6]}}\n"
    folder, _ = _run(_parsed(SMALL + titled), tmp_path)
    assert "<h3>By load</h3>" in (folder / "report.html").read_text()


def test_a_file_is_read_copied_and_named_when_it_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(
        "arrival time (sec),size,duration (sec)\n0,4,60\n9,2,-1\n"
    )
    (tmp_path / "small.yaml").write_text(SMALL.replace(MADE_UP, "file: jobs.csv"))
    with pytest.raises(ScenarioError) as error:
        load(tmp_path / "small.yaml")
    assert "jobs.trace.file: " in str(error.value)
    assert "jobs.csv, line 3, column duration (sec): '-1' is negative" in str(
        error.value
    )
    (tmp_path / "jobs.csv").write_text(
        "arrival time (sec),size,duration (sec)\n0,4,60\n9,2,10\n"
    )
    folder, _ = _run(load(tmp_path / "small.yaml"), tmp_path / "runs")
    assert (folder / "jobs.csv").exists()


def test_a_trace_without_a_job_for_the_cluster_is_named_when_the_file_is_read(
    tmp_path: Path,
) -> None:
    (tmp_path / "jobs.csv").write_text(
        "arrival time (sec),size,duration (sec)\n0,4096,60\n"
    )
    (tmp_path / "small.yaml").write_text(SMALL.replace(MADE_UP, "file: jobs.csv"))
    with pytest.raises(ScenarioError) as error:
        load(tmp_path / "small.yaml")
    assert "jobs.trace: no job of the trace is left for" in str(error.value)
    assert "(too large 1)" in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("sends: 0.4", "sends: 1.4", "jobs.trace.sends"),
        (
            "    sends: 0.4\n",
            "",
            "jobs.trace: sends: missing; write sends: 0.3, the share of",
        ),
        (
            "sends: 0.4",
            "sends: [{up_to: 8, share: 0.1}]",
            "jobs.trace.sends: classes of jobs go from small",
        ),
        (
            "warm_up: 0.1",
            "warmup: 0.1",
            "jobs.trace.warmup: unknown key; the nearest is warm_up",
        ),
        ("placement: random", "placement: best", "arms.random.jobs.trace.placement"),
        (
            "warm_up: 0.1",
            "sharing: on-off",
            "jobs.trace.sharing: on-off: only what trains has iterations",
        ),
        ("jobs.trace.light", "jobs.trace.lights", "arms.light.jobs.trace.lights"),
        (
            "  trace:",
            "  red: {gpus: 2}\n  trace:",
            "jobs.red: there are no jobs beside those of jobs.trace",
        ),
        (
            "name: small",
            "scale: {time: 2}\nname: small",
            "scale: a trace is replayed in real time",
        ),
        ("generate:", "file: a.csv\n    generate:", "jobs.trace: give either file"),
        (
            "warm_up: 0.1",
            "resample: 3600 s",
            "jobs.trace: resample: made-up jobs follow from the seed",
        ),
        ("warm_up: 0.1", "resample: 0 s", "jobs.trace.resample"),
        (
            FABRIC,
            "interconnect: {kind: parallel-ocs, gpus: 8, gpu: g, rate: 1 Gbit/s, switches: 2}",
            "fabric: no trace is replayed on an interconnect of kind parallel-ocs",
        ),
    ],
)
def test_mistakes_are_named_by_their_key(old: str, new: str, said: str) -> None:
    with pytest.raises(ScenarioError) as error:
        _parsed(SMALL.replace(old, new))
    assert f"small.yaml: {said}" in str(error.value)


def test_a_load_that_cannot_be_is_a_failure_of_its_run(tmp_path: Path) -> None:
    experiment = _parsed(SMALL.replace("sends: 0.4", "sends: 0.4\n    load: 500"))
    done, _ = carry_out_experiment(
        experiment, SimulationBackend(), tmp_path, reporter=Reporter(quiet=True)
    )
    assert len(done.failures) == 3
    assert "copies of this trace; 64 are allowed" in done.failures[0]


def test_a_job_may_be_called_trace() -> None:
    training = "training: {model: resnet50, compute: 1 ms, batch: 1, iterations: 2}\n"
    found = _parsed(
        SMALL[: SMALL.index("jobs:")] + training + "jobs: {trace: {gpus: 4}}\n"
    )
    assert found.plans[0].source is None
    assert found.plans[0].jobs[0].name == "trace"


def test_what_check_says_of_the_scenario() -> None:
    found = check_document(load(ROOT / "scenarios/cluster.yaml"))
    packed = found["arms"]["packed"]
    assert packed["refused"] == {
        "emulation": "jobs.trace: weeks of a trace are only simulated"
    }
    assert packed["trace"]["largest_gpus"] == 744
    assert packed["trace"]["changed"]["no_duration"] == 241
    assert packed["trace"]["load"] == pytest.approx(0.7, abs=0.15)
    assert len((ROOT / "scenarios/cluster.yaml").read_text().splitlines()) <= 60


def test_jobs_keep_their_gpus_in_the_map() -> None:
    seen = [
        [0.0, [[7, 0, 1], [8, 1, 2]]],
        [1.0, [[7, 0, 1], [9, 0, 1]]],
        [2.0, [[9, 0, 1]]],
    ]
    assert occupied([2, 2], seen).T.tolist() == [
        [7, -1, 8, 8],
        [7, 9, -1, -1],
        [-1, 9, -1, -1],
    ]
    assert [times(one) for one in (3, 200, 9000, 900_000)] == [
        "3.0 s",
        "3.3 min",
        "2.5 h",
        "10.4 d",
    ]


TRAINS = """
name: trace-of-training
description: Four jobs of a made-up trace, as training jobs at a hundredth of their time.
scale: {time: 0.01, payload: 40000}
fabric:
  leaf_spine: {leaves: 2, spines: 1, gpus_per_leaf: 2, gpu: g, rate: 10 Gbit/s, oversubscription: 2}
jobs:
  trace:
    generate: {jobs: 4, gap: 120 s, gaps: constant, duration: 450 s, durations: constant, sizes: {2: 1, 3: 1}}
    sends: {share: 0.6, pattern: ring}
    start_up: 100 s
    trains: {iteration: 45 s}
"""
LOST = "{when: {at: 200 s}, do: lose, target: gpu g1, then: swap}"


def test_jobs_of_a_trace_train_for_as_long_as_it_says() -> None:
    (plan,) = _parsed(TRAINS).plans
    assert [job.start.at_s for job in plan.jobs] == pytest.approx(
        [0.0, 1.2, 2.4, 3.6], abs=1e-5
    )
    for job in plan.jobs:
        assert job.iterations == 10
        assert job.loop.compute_s == pytest.approx(0.18)
        # Of a ring over n ranks each sends 2 (n - 1) / n times its gradient, without headers at 24.6 Mbit/s.
        sent = job.loop.gradient_bytes * 2 * (job.gpus - 1) / job.gpus
        share = plan.setting.frames.mtu_bytes - 52
        rate_bps = 25e6 * share / (share + 66)
        assert 8 * sent / rate_bps == pytest.approx(0.27, rel=1e-4)
    assert EmulationBackend("namespace").refuses(plan) is None


def test_what_trains_is_replayed_as_it_is_simulated_flow_by_flow() -> None:
    # Two switches share a link of half a GPU's rate each way: who is on both sends at half its rate, alone.
    experiment = _parsed(TRAINS)
    (plan,) = experiment.plans
    (batch,), _ = SimulationBackend().batches([plan])
    (found,) = [
        record for record in batch.compute() if isinstance(record, TraceReplayed)
    ]
    foretold = Foreteller()(plan)
    replay = replay_in(foretold.computed)
    assert replay is not None
    assert replay.jobs == found.jobs
    came, granted, began, ended = (
        {name: moments[k] for name, moments in found.jobs.items()} for k in range(4)
    )
    for job in plan.jobs:
        name = job.name
        assert came[name] == pytest.approx(job.start.at_s, abs=1e-5)
        assert granted[name] is not None
        assert began[name] == pytest.approx(granted[name] + 1.0)
        assert ended[name] is not None
        assert ended[name] - began[name] == pytest.approx(
            foretold.jct_s[name], rel=0.02
        )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("pattern: ring", "pattern: uniform", "jobs.trace.sends: what trains reduces in rings"),
        ("iteration: 45 s", "iteration: 200 ms", "jobs.trace.trains: job 0 of 2 GPUs sends"),
        ("{jobs: 4,", "{jobs: 1001,", "jobs.trace.trains: 1,001 jobs; up to 1000 train"),
        ("jobs:\n", f"events: [{LOST.replace('g1', 'g9')}]\njobs:\n", "events.1.target: there is no GPU g9"),
    ],
)  # fmt: skip
def test_mistakes_of_what_trains_are_named(old: str, new: str, said: str) -> None:
    with pytest.raises(ScenarioError) as error:
        _parsed(TRAINS.replace(old, new))
    assert f"small.yaml: {said}" in str(error.value)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            "placement: random",
            "jobs.trace.placement: random is only simulated; emulated are ",
        ),
        ("light: ideal", "jobs.trace.light: ideal is only simulated; emulated are "),
        ("until: 100 s", "jobs.trace.until: only simulated"),
    ],
)
def test_policies_that_are_not_emulated_are_named(more: str, said: str) -> None:
    (plan,) = _parsed(TRAINS.replace("start_up", f"{more}\n    start_up")).plans
    assert str(EmulationBackend("namespace").refuses(plan)).startswith(said)
    assert SimulationBackend().refuses(plan) is None


def test_what_is_left_of_a_trace_is_counted() -> None:
    text = TRAINS.replace("durations: constant", "durations: exponential").replace(
        "jobs: 4", "jobs: 40"
    )
    more = "first: 5\n    shortest: 200 s\n    longest: 900 s\n    start_up"
    (plan,) = _parsed(text.replace("start_up", more)).plans
    counts = jobs_of(trace_of(plan), 0).counts
    assert len(plan.jobs) == 5
    assert counts["too_short"] > 0
    assert counts["too_long"] > 0
    assert sum(counts.values()) == 35
    assert all(
        job.iterations * 0.45 + 0.225 >= 2.0 and job.iterations * 0.45 <= 9.225
        for job in plan.jobs
    )


def test_a_long_run_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run in this process does, and runs in others do of which none has ended yet."""
    for every in ("COMPUTED_EVERY_S", "NOTE_EVERY_S"):
        monkeypatch.setattr(progress, every, 0.0)
    monkeypatch.setattr(experiment_module, "COMPUTED_EVERY_S", 0.01)
    long = SMALL.replace("jobs: 150", "jobs: 6000")
    backend = SimulationBackend()
    done, _ = carry_out_experiment(
        _parsed(long), backend, tmp_path, arms=["packed"], reporter=Reporter()
    )
    assert not done.failures
    shares = [
        int(found) for found in re.findall(r"packed: (\d+)%", capsys.readouterr().err)
    ]
    assert shares == sorted(shares)
    assert len(shares) >= 4
    assert 10 < shares[0] < 30
    carry_out_experiment(
        _parsed(long), backend, tmp_path, processes=2, reporter=Reporter()
    )
    said = capsys.readouterr().err
    assert re.search(r"0 of 3 runs; .*(random|packed) \d+%", said), said
    assert "3 of 3 runs" in said


def test_a_cross_check_simulates_the_jobs_flow_by_flow(tmp_path: Path) -> None:
    """A replay knows of no iterations, which are what is compared."""
    flow_by_flow = pytest.importorskip(
        "ringlight.extensions.crosscheck.command"
    ).flow_by_flow
    folder, result = _run(flow_by_flow(_parsed(TRAINS)), tmp_path)
    assert {
        row["subject"] for row in result["rows"] if row["metric"] == "iteration"
    } == {f"job j{n}" for n in range(4)}
    assert not [
        r for r in read_records(folder / "events.jsonl") if isinstance(r, TraceReplayed)
    ]
    # Nothing of its page is that of a replay, also where it is made from the file.
    result = finish(folder)
    page = (folder / "report.html").read_text()
    assert "the file assumes it" not in page
    assert "trace.json" in page
    assert [
        row["value"] for row in result["rows"] if row["metric"] == "iterations"
    ] == [10] * 4


def test_a_gpu_is_lost_by_name_where_the_controller_places_jobs() -> None:
    text = TRAINS.replace("start_up", "placement: random\n    start_up").replace(
        "jobs:\n", f"events: [{LOST}]\njobs:\n"
    )
    with pytest.raises(ScenarioError) as error:
        _parsed(text)
    assert "jobs.trace.placement: a GPU can be lost by name only if" in str(error.value)


GRID = "interconnect: {kind: grid, gpus: 32, gpu: g, rate: 100 Gbit/s, rows: 4, columns: 8}"
OTHERS = {
    GRID: (32,),
    "interconnect: {kind: wavelength-ring, gpus: 32, gpu: g, rate: 100 Gbit/s, wavelength: 25 Gbit/s}": (
        32,
    ),
    "hop_ring: {gpus: 32, gpu: g, rate: 100 Gbit/s, reach: 2}": (32,),
    "interconnect: {kind: torus, gpus: 32, gpu: g, rate: 100 Gbit/s, sides: [4, 8]}": (
        32,
    ),
    "interconnect: {kind: ideal, gpus: 32, gpu: g, rate: 100 Gbit/s}": (32,),
    "interconnect: {kind: servers, gpus: 32, gpu: g, each: 8, inside: 400 Gbit/s, rate: 100 Gbit/s}": (
        8,
    )
    * 4,
}


@pytest.mark.parametrize("fabric", OTHERS)
def test_planes_that_a_trace_is_replayed_on(fabric: str, tmp_path: Path) -> None:
    check_replayed_on(fabric, OTHERS[fabric], tmp_path)


def check_replayed_on(fabric: str, gpus: tuple[int, ...], tmp_path: Path) -> None:
    """Check how a trace is replayed on a plane. ``gpus``: of each cluster that the plane is.

    Where jobs need neighbours they have them, wait for them, and share nothing.
    """
    text = (
        SMALL[: SMALL.index("arms:")]
        .replace(FABRIC, fabric)
        .replace("10: 1, 40: 0.1", "10: 1, 29: 0.1")
    )
    experiment = _parsed(text)
    plan = trace_of(experiment.plans[0])
    assert plan.cluster.gpus == gpus
    needs = plan.cluster.lattice is not None and plan.cluster.lattice.needed
    assert plan.policies.placement == ("blocks" if needs else "pack")
    _, result = _run(experiment, tmp_path)
    figures = {
        row["metric"]: row["value"] for row in result["rows"] if row["repeat"] is None
    }
    assert figures["network_slowdown"] >= 1 - 1e-9
    if len(plan.cluster.gpus) == 1:
        assert figures["network_slowdown"] == pytest.approx(1.0)
    if not needs:
        assert figures["jobs_dropped"] == 0
    # 29 GPUs in a row are no rectangle of 4 x 8, but an arc of 32.
    dropped = jobs_of(plan, 0).counts.get("no_block", 0)
    assert (dropped > 0) == ("rows" in fabric)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (
            "placement: random",
            "jobs.trace.placement: random: a job on a grid needs neighbours",
        ),
        (
            "light: at-arrival",
            "jobs.trace.light: at-arrival: jobs on a grid share no light",
        ),
    ],
)
def test_policies_that_do_not_fit_a_plane_are_refused_by_name(
    what: str, said: str
) -> None:
    text = (
        SMALL[: SMALL.index("arms:")]
        .replace(FABRIC, GRID)
        .replace("warm_up: 0.1", what)
    )
    with pytest.raises(ScenarioError) as error:
        _parsed(text)
    assert said in str(error.value)
    with pytest.raises(ScenarioError) as error:
        _parsed(SMALL.replace("placement: random", "placement: blocks"))
    assert "jobs.trace.placement: blocks are of a torus, a grid or a ring" in str(
        error.value
    )


def test_a_ring_port_by_port_carries_one_job() -> None:
    ring = "rings: {r: {nodes: 8, wavelengths: 4, gpu: g, rate: 10 Gbit/s}}"
    with pytest.raises(ScenarioError) as error:
        _parsed(SMALL.replace(FABRIC, ring))
    assert "fabric: ring r carries one job on all its nodes" in str(error.value)


def test_a_sweep_without_a_title_draws_what_the_whole_trace_came_to(
    tmp_path: Path,
) -> None:
    swept = "sweep: {jobs.trace.sends: [0.2, 0.4, 0.6]}\n"
    path, _ = _run(
        _parsed(SMALL.partition("compare:")[0].replace("150", "40") + swept), tmp_path
    )
    assert (path / "plots" / "sweep-1.svg").exists()
    report = (path / "report.html").read_text()
    assert 'id="sweep"' in report
