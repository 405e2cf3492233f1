"""The report: sections appear where they have something to say, on a page that a browser can read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringlight.experiments.analysis.result import analyse, document
from ringlight.experiments.analysis.rows import Label, Row
from ringlight.experiments.analysis.statistics import is_number
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import parse
from ringlight.experiments.record.events import (
    JobState,
    Record,
    Reference,
    WorkerDone,
    WorkerReady,
)
from ringlight.experiments.record.lab_records import PortRate
from ringlight.experiments.report import words
from ringlight.experiments.report.perfetto import write_trace
from ringlight.experiments.report.report import render
from ringlight.experiments.report.sections import jobs as jobs_section
from ringlight.experiments.report.sections import names, sections
from ringlight.experiments.report.view import View, some_jobs, view_of
from ringlight.experiments.runner.experiment import choose, run_alone
from tests.simulated import SIX_GPUS
from tests.unit.page import Page, check_alone, text_of

FABRIC = SIX_GPUS.replace("iterations: 6", "iterations: 4")
ONE_JOB = "jobs: {red: {ranks: [g0, g1]}}\n"
TWO_ARMS = """
jobs: {red: {ranks: [g0, g1, g3, g4]}}
arms:
  slow: {title: "Four GPUs, slow"}
  fast: {title: "Four GPUs, fast", training.compute: 5 ms}
compare: {baseline: slow, metrics: [jct, iteration], limit: 0.5}
paper: {citation: A paper, says: {comparison: It has more GPUs.}, limits: {Its times: They are longer.}}
published:
  - {arm: slow, metric: jct, value: 100 s, source: table 1}
  - {arm: fast, metric: jct, value: 50 s, source: table 1, standing: identity, why: Half the work.}
"""


Disturb = Callable[[list[Record]], list[Record]]


def simulated(text: str) -> View:
    """A view of an experiment of the fabric above, as the command makes it."""
    return view_of_file(FABRIC + text, "small.yaml")


def view_of_file(text: str, path: str, disturbed: Disturb | None = None) -> View:
    """``disturbed``: what becomes of a run's records; it is then taken to be measured."""
    experiment, backend = parse(text, path, parts=names), SimulationBackend()
    records: list[Record] = []
    chosen = choose(experiment, backend)
    for plan in chosen.plans:
        made, _ = run_alone(backend, plan)
        records += disturbed(made) if disturbed is not None else made
    environment: Mapping[str, Any] = {
        "run": "20261122-small",
        "code": "0123456789abcdef",
        "not_run": dict(chosen.refused),
        **backend.facts(),
    }
    rates = [record for record in records if isinstance(record, PortRate)]
    label: Label = "simulated" if disturbed is None else "measured"
    found = analyse(experiment, records, label, rates)
    return view_of(found, document(found, records, environment), environment, rates)


def appearing(view: View) -> set[str]:
    return {
        section.name for section in sections() if section.body(view, lambda *_: "drawn")
    }


ALWAYS = {"header", "jobs", "limits", "parameters", "footer", "simulation"}


def test_every_section_has_its_place_and_says_what_it_needs() -> None:
    for section in sections():
        assert section.render.__doc__
    places = [section.place for section in sections() if isinstance(section.place, int)]
    assert len(set(places)) == len(places)
    assert names() == tuple(sorted(section.name for section in sections()))


def test_a_job_alone_has_no_comparison(tmp_path: Path) -> None:
    view = simulated(ONE_JOB)
    assert appearing(view) >= ALWAYS
    assert not appearing(view) & {
        "comparison",
        "left_out",
        "fidelity",
        "sweep",
        "rings",
        "light",
        "faults",
    }
    text = render(view, tmp_path)
    check_alone(text)
    assert "job completion time" in text


def test_a_comparison_shows_ratio_limit_and_what_is_published(tmp_path: Path) -> None:
    view = simulated(TWO_ARMS)
    assert "comparison" in appearing(view)
    text = render(view, tmp_path)
    check_alone(text)
    shown = text_of(Page(text))
    slow, fast = (
        view.figures_at(arm, "job red").number("jct") for arm in ("slow", "fast")
    )
    assert slow is not None
    assert fast is not None
    assert f"{fast / slow:.4f}" in shown
    assert "−50.0" in shown
    assert "the scenario does not say" in shown
    assert "ours follows by arithmetic" in shown
    assert "Half the work." in shown
    assert "It has more GPUs." in shown
    assert "They are longer." in shown
    assert "limit of 0.5" in shown
    # The headline says how much, without what both titles begin with.
    assert re.search(r"Fast: \d\.\d+ times as fast as slow", shown)


def test_only_a_shorter_time_of_work_is_called_faster(tmp_path: Path) -> None:
    scenario = TWO_ARMS.replace("metrics: [jct", "metrics: [makespan")
    shown = text_of(Page(render(simulated(scenario), tmp_path)))
    assert re.search(r"Fast: makespan 0\.\d+ times that of slow", shown)


def test_what_the_simulation_refuses_is_named(tmp_path: Path) -> None:
    view = simulated(
        ONE_JOB + "arms:\n  base: {}\n"
        "  killed: {events: [{when: {at: 10 ms}, do: kill, target: controller}]}\n"
    )
    assert "left_out" in appearing(view)
    assert "cannot kill the controller" in text_of(Page(render(view, tmp_path)))


def test_repeats_are_shown_with_their_interval(tmp_path: Path) -> None:
    view = simulated("repeat: 3\n" + TWO_ARMS)
    shown = text_of(Page(render(view, tmp_path)))
    assert "means of 3 runs" in shown
    assert "±" in shown


def test_a_file_cannot_put_code_into_the_page(tmp_path: Path) -> None:
    view = simulated(TWO_ARMS)
    spec = view.experiment.spec
    evil = "<script>alert(1)</script>"
    spec = spec.model_copy(update={"description": evil})
    experiment = replace(view.experiment, spec=spec, text=f"# {evil}\n")
    plans = tuple(replace(plan, title=evil) for plan in view.experiment.plans)
    experiment = replace(experiment, plans=plans)
    text = render(replace(view, experiment=experiment, name=evil), tmp_path)
    check_alone(text)
    assert "&lt;script&gt;" in text


def test_an_incomplete_run_is_said_to_be_one(tmp_path: Path) -> None:
    view = simulated(TWO_ARMS)
    assert view.complete
    assert "not complete" not in render(view, tmp_path)
    assert "not complete" in render(replace(view, complete=False), tmp_path)


def test_a_measured_run_is_judged_on_the_page(tmp_path: Path) -> None:
    """Disturbed as a machine would: the same run, its links 12 % short."""
    view = simulated(ONE_JOB)
    link = {
        "link": "g0 tor0:1",
        "direction": "up",
        "set_bps": 2.5e7,
        "measured_bps": 2.2e7,
        "ratio": 0.88,
    }
    fidelity = {
        "verdict": "bad",
        "arms": dict.fromkeys(view.arms, "bad"),
        "reasons": [
            {
                "code": "link_rate",
                "level": "bad",
                "text": "link g0 gave <88 %> of its setting",
            }
        ],
        "links": [{**link, "fabric": "small", "stolen": None, "others": 0.1}],
        "timer": {
            "median_s": 1e-4,
            "p99_s": 1e-3,
            "max_s": 2e-3,
            "p99_share_of_compute": 0.01,
        },
        "cpu": {},
        "samples_missing": {},
        "repeated": [],
    }
    measured = replace(view, label="measured", fidelity=fidelity)
    assert "fidelity" in appearing(measured)
    assert "simulation" not in appearing(measured)
    text = render(measured, tmp_path)
    check_alone(text)
    shown = text_of(Page(text))
    assert "No result" in shown
    assert "Bad." in shown
    assert "88.0" in shown
    assert "gave <88 %>" in shown


@pytest.mark.parametrize("text", [ONE_JOB, TWO_ARMS], ids=["one", "two"])
def test_every_table_says_how_its_figures_are_known(text: str, tmp_path: Path) -> None:
    """In its head, in the sentence before or in the note after it."""
    page = render(simulated(text), tmp_path)
    pieces = re.split(r"(<div class=\"scroll\">.*?</div>)", page, flags=re.DOTALL)
    for before, shown, after in zip(
        pieces[0::2], pieces[1::2], pieces[2::2], strict=False
    ):
        if re.search(r"class=n", shown):
            around = before[-900:] + shown + after[:400]
            assert re.search(r"simulated|measured|analytic|published", around)


def test_a_view_finds_figures_by_arm_point_and_label() -> None:
    view = simulated(TWO_ARMS)
    assert view.arms == ("slow", "fast")
    slow = view.figures_at("slow", "job red")
    assert is_number(slow.value("jct"))
    assert slow.number("jct", "published") == 100
    assert slow.value("nonsense") is None
    assert (
        view.figures_at("slow", "job red", {"training.compute": "1 ms"}).value("jct")
        is None
    )
    (one,) = view.comparisons
    assert (one.arm, one.subject, one.base.arm) == ("fast", "job red", "slow")
    ratio = one.row("jct_ratio")
    assert ratio is not None
    assert ratio.label == "simulated"


FAULTS = """
jobs:
  red: {ranks: [g0, g1, g3, g4], recovery: 30 ms, spares: [g5]}
  green: {gpus: 2, start: {after: red}}
arms:
  quiet: {}
  lost:
    title: A GPU is lost
    events: [{name: loss, when: {job: red, iteration: 2}, do: lose, target: gpu g4, then: swap}]
  fails:
    title: A GPU is lost and the job with it
    jobs.red.may_fail: true
    events: [{name: loss, when: {job: red, iteration: 2}, do: lose, target: gpu g4, then: fail}]
"""
SWEEP = """
jobs: {red: {ranks: [g0, g3, g1, g4]}}
arms:
  ring: {title: Ring}
  doubling: {title: Halving and doubling, training.collective: halving-doubling}
sweep: {training.gradient: [10 MB, 100 MB], training.compute: [5 ms, 20 ms]}
repeat: 2
compare: {baseline: ring, metrics: [jct, allreduce]}
"""
DATA = Path(__file__).parents[1] / "data"


def _page(view: View, folder: Path) -> str:
    text = render(view, folder)
    check_alone(text)
    return text_of(Page(text))


def test_jobs_that_arrive_and_gpus_that_are_lost_have_a_timeline(
    tmp_path: Path,
) -> None:
    view = simulated(FAULTS)
    assert appearing(view) >= {"timeline", "faults"}
    shown = _page(view, tmp_path)
    assert "lose gpu g4" in shown
    assert "red lost g4 and went on from iteration" in shown
    assert "red failed as expected" in shown
    assert "recovery" in shown
    assert (tmp_path / "timeline.svg").exists()
    assert (tmp_path / "fault-lost.svg").exists()


def test_nothing_that_happens_has_no_timeline() -> None:
    assert not appearing(simulated(TWO_ARMS)) & {
        "timeline",
        "faults",
        "regroup",
        "topology",
        "throughput",
    }


def test_a_sweep_has_a_picture_and_every_point(tmp_path: Path) -> None:
    view = simulated(SWEEP)
    assert "sweep" in appearing(view)
    assert "comparison" not in appearing(view)
    shown = _page(view, tmp_path)
    assert "Halving and doubling: job completion time" in shown
    assert shown.count("100 MB") >= 4
    assert (tmp_path / "sweep-1.svg").exists()


def test_sweeps_beside_each_other_have_a_picture_each(tmp_path: Path) -> None:
    """And no map, most of whose cells nobody ran."""
    beside = "sweep:\n  - {over: {training.gradient: [10 MB, 20 MB, 50 MB, 100 MB]}}\n"
    beside += "  - {over: {training.compute: [5 ms, 10 ms, 15 ms, 20 ms]}}\n"
    view = simulated(re.sub("sweep: .*\nrepeat: 2\n", beside, SWEEP))
    _page(view, tmp_path)
    first, second = (
        (tmp_path / f"sweep-{number}.svg").read_text() for number in (1, 2)
    )
    assert "gradient, MB" in first
    assert "compute, ms" in second
    assert "nan" not in first + second


REDUCED = """
jobs: {red: {ranks: [g0, g3, g1, g4], workload: {collective: all-reduce, size: 10 MB, iterations: 2}}}
arms:
  ring: {title: Ring}
  halving: {title: Halves, jobs.red.workload.algorithm: halving-doubling}
sweep: {jobs.red.workload.size: [10 MB, 100 MB]}
compare: {baseline: ring, metrics: [allreduce, iteration]}
"""


def test_a_sweep_draws_what_there_is_of_what_is_compared(tmp_path: Path) -> None:
    view = simulated(REDUCED)
    shown = _page(view, tmp_path)
    assert "Iteration over that of ring, of red in Halves" in shown
    # Equal figures are a level line, and nobody zooms in on what rounding leaves of them.
    labels = re.findall(r">([^<>]+)</text>", (tmp_path / "sweep-1.svg").read_text())
    assert {"0.0", "1.0", "1.5"} <= set(labels)
    why = "allreduce with ring: no arm has a figure; jobs with a workload have iteration, jct and exposed"
    assert list(view.not_compared) == [why]
    assert why in shown


def test_a_comparison_of_what_one_side_has_says_which() -> None:
    mixed = REDUCED.replace(
        "workload: {collective: all-reduce, size: 10 MB, iterations: 2}", ""
    ).replace("g4], }", "g4]}")
    mixed = (
        mixed.partition("arms:")[0]
        + """
arms:
  ring: {title: Ring}
  own: {title: Own, jobs.red.workload: {collective: all-reduce, size: 10 MB, iterations: 2}}
compare: {baseline: ring, metrics: [iteration, allreduce]}
"""
    )
    (line,) = simulated(mixed).not_compared
    assert line.startswith("allreduce with ring: only ring has a figure; ")


def test_a_sweep_beside_one_with_a_title_draws_too(tmp_path: Path) -> None:
    beside = (
        "sweep:\n  - {title: Gradients, over: {training.gradient: [10 MB, 20 MB]}}\n"
    )
    beside += "  - {over: {training.compute: [5 ms, 10 ms, 15 ms]}}\n"
    view = simulated(re.sub("sweep: .*\nrepeat: 2\n", beside, SWEEP))
    shown = _page(view, tmp_path)
    assert "Gradients" in shown
    assert (tmp_path / "series-1.svg").exists()
    assert "compute, ms" in (tmp_path / "sweep-1.svg").read_text()
    assert (
        "20 MB"
        not in shown.partition("Sweep\n")[2].partition("Halving and doubling\n")[0]
    )
    assert not (tmp_path / "sweep-2.svg").exists()


def test_a_sweep_of_two_paths_is_a_map(tmp_path: Path) -> None:
    four = "{training.gradient: [10 MB, 20 MB, 50 MB, 100 MB], training.compute: [5 ms, 10 ms, 15 ms, 20 ms]}"
    view = simulated(re.sub("sweep: .*\nrepeat: 2\n", f"sweep: {four}\n", SWEEP))
    _page(view, tmp_path)
    picture = (tmp_path / "sweep-1.svg").read_text()
    assert "100 MB" in picture
    assert "15 ms" in picture


@pytest.mark.parametrize(
    ("name", "there", "pictures"),
    [
        (
            "mini",
            {"topology", "throughput", "regroup"},
            {"topology-1", "throughput-0", "regroup-live-1"},
        ),
    ],
)
def test_sections_of_the_bundled_fabrics(
    name: str, there: set[str], pictures: set[str], tmp_path: Path
) -> None:
    check_sections(DATA / f"{name}.yaml", there, pictures, tmp_path)


def check_sections(
    path: Path, there: set[str], pictures: set[str], tmp_path: Path
) -> None:
    """Check which sections and pictures are on the page of a file."""
    view = view_of_file(path.read_text(), str(path))
    other = {
        "topology",
        "throughput",
        "regroup",
        "light",
        "rings",
        "break_even",
        "sweep",
    } - there
    assert appearing(view) >= there
    assert not appearing(view) & other
    _page(view, tmp_path)
    assert {file.stem for file in tmp_path.glob("*.svg")} >= pictures


def trained(records: list[Record]) -> list[Record]:
    """As if workers had trained: what they end with, and the reference in one process."""
    ready = [r for r in records if isinstance(r, JobState) and r.state == "READY"]
    end = records[-1].t
    found: list[Record] = []
    for state in ready:
        run, job = state.run, state.job
        found.append(Reference(t=end, run=run, job=job, sha256="ab" * 32))
        for rank in range(len(state.gpus)):
            found.append(WorkerReady(t=state.t, run=run, job=job, rank=rank))
            found.append(
                WorkerDone(
                    t=end,
                    run=run,
                    job=job,
                    rank=rank,
                    parameters_sha256="ab" * 32,
                    loss_first=2.3,
                    loss_last=0.4,
                    accuracy=0.91,
                    bytes_sent=1000,
                    bytes_received=1000,
                )
            )
    return [*records[:-1], *found, records[-1]]


def differing(records: list[Record]) -> list[Record]:
    return [
        replace(r, parameters_sha256="cd" * 32)
        if isinstance(r, WorkerDone) and r.rank == 1
        else r
        for r in trained(records)
    ]


def test_what_was_trained_is_shown_bit_by_bit(tmp_path: Path) -> None:
    view = view_of_file(FABRIC + TWO_ARMS, "small.yaml", trained)
    assert appearing(view) >= {"training", "fidelity"}
    shown = _page(view, tmp_path)
    assert "bit-identical to the same training in one process: yes" in shown
    assert "abababababab" in shown
    assert "as the baseline" in shown
    assert "91.00" in shown
    assert "training" not in appearing(simulated(TWO_ARMS))


def test_parameters_that_differ_are_told(tmp_path: Path) -> None:
    view = view_of_file(FABRIC + TWO_ARMS, "small.yaml", differing)
    assert "bit-identical to the same training in one process: no" in _page(
        view, tmp_path
    )
    assert view.fidelity["verdict"] == "bad"


def test_a_trace_opens_with_names_and_slices(tmp_path: Path) -> None:
    view = simulated(FAULTS)
    write_trace(tmp_path / "trace.json", view.runs)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X"}
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    of_red = {
        names[e["pid"]]
        for e in events
        if e["ph"] == "X" and e["args"].get("job") == "red"
    }
    assert {
        "lost: g4",
        "lost: g5",
    } <= of_red  # the lost GPU, and the spare in its place
    assert "lost: events" in names.values()


def test_of_many_jobs_failed_and_slow_ones_are_listed_and_the_compared_one_is_drawn(
    tmp_path: Path,
) -> None:
    text = """
name: many
description: Thirty jobs of two GPUs.
fabric: {paths: even, leaf_spine: {leaves: 2, spines: 1, gpus_per_leaf: 30, gpu: gpu, rate: 10 Gbit/s}}
training: {model: resnet50, gradient: 1 MB, compute: 10 ms, batch: 16, iterations: 2, collective: ring}
jobs: {JOBS}
arms:
  slow: {title: Slow}
  fast: {title: Fast, training.compute: 5 ms}
compare: {baseline: slow, job: j1, metrics: [jct]}
"""
    jobs = ", ".join(
        f"j{k}: {{ranks: [g{2 * k}, g{2 * k + 1}], slower: {{0: {1 + k / 100}}}}}"
        for k in range(30)
    )
    view = view_of_file(text.replace("JOBS", jobs), "many.yaml")
    assert view.listed("slow") == [f"j{k}" for k in range(20, 30)]
    assert {job.name for _, job in jobs_section._lines(view)} == {"j1"}
    failed = {
        f"j{k}": replace(job, state="FAILED" if k == 3 else job.state)
        for k, job in enumerate(view.first["slow"].jobs.values())
    }
    assert some_jobs(failed) == ["j3", *(f"j{k}" for k in range(21, 30))]
    page = _page(view, tmp_path)
    assert "failed ones, and those that took longest" in page
    # In the scenario, as it was written.
    assert page.count("j19") == 1


def test_figures_are_written_as_a_person_would() -> None:
    assert words.seconds(0.99996) == "1.00\u00a0s"
    assert words.seconds(0.9998) == "999.8\u00a0ms"
    row = Row("a", "run", "x", 1.0, "1", "simulated", spread=1.1e-16)
    assert words.figure(row) == "1 ± 0"
    assert words.figure(replace(row, spread=0.01)) == "1 ± 0.01"
