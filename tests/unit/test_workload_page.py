"""Workloads on the page and in the trace of a run: what was exposed, the picture, every operation."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from ringlight.containers.image import ROOT
from ringlight.experiments.analysis.metrics import metrics
from ringlight.experiments.analysis.metrics.workloads import COMMUNICATION, of_purpose
from ringlight.experiments.record.events import Iteration, Operations, Record
from ringlight.experiments.report import perfetto
from ringlight.experiments.report.report import render
from ringlight.experiments.report.sections.workload import merged
from ringlight.experiments.report.view import View
from ringlight.workloads.graph import Collective
from ringlight.workloads.graph_writer import Book, Writer
from ringlight.workloads.packed import pack
from tests.simulated import SIX_GPUS
from tests.unit.page import Page, check_alone, text_of
from tests.unit.test_experiment_report import appearing, simulated, view_of_file

UNSCALED = "\n".join(
    line for line in SIX_GPUS.splitlines() if not line.startswith("training:")
)
#: Two stages of two replicas: gradients, and messages between stages.
STAGES = "{ranks: [g0, g1, g3, g4], workload: {files: stages.rlw, iterations: 3}}"
PATH = str(ROOT / "tests/data/stages.yaml")


def stages(jobs: str = f"llm: {STAGES}", disturbed=None) -> View:  # type: ignore[no-untyped-def]
    return view_of_file(f"{UNSCALED}\njobs: {{{jobs}}}\n", PATH, disturbed)


def one_collective(times_s: list[list[float]]) -> View:
    """A job of one all-reduce a rank, whose times are as given."""

    def disturbed(records: list[Record]) -> list[Record]:
        return [
            replace(r, times_s=times_s) if isinstance(r, Operations) else r
            for r in records
        ]

    what = "{collective: all-reduce, size: 1 MB, iterations: 2}"
    return view_of_file(
        f"{UNSCALED}\njobs: {{one: {{ranks: [g0, g1], workload: {what}}}}}\n",
        "c.yaml",
        disturbed,
    )


def test_exposed_and_hidden_add_up_to_when_a_purpose_was_under_way() -> None:
    view = stages()
    at, job = view.figures_at("base", "job llm"), view.runs[0].jobs["llm"]
    computing, exposed = at.number("computing"), at.number("exposed")
    assert computing is not None
    assert exposed is not None
    assert computing + exposed == pytest.approx(
        np.mean([it.whole_s for it in job.iterations])
    )
    assert job.plan.workload is not None
    assert {p for p in COMMUNICATION if at.number(of_purpose("exposed", p)) is not None} == {
        "dp", "pp", "embedding",
    }  # fmt: skip
    for purpose in ("dp", "pp", "embedding"):
        of_it = [at.number(of_purpose(name, purpose)) for name in ("exposed", "hidden")]
        assert sum(number or 0.0 for number in of_it) == pytest.approx(
            _under_way_s(view, purpose)
        )
        assert (of_it[0] or 0.0) <= exposed * (1 + 1e-9)


def _under_way_s(view: View, purpose: str) -> float:
    """Mean seconds that operations of a name that begins so cover, sampled at each of their ends."""
    (run,) = view.runs
    workload, found = run.jobs["llm"].plan.workload, []
    assert workload is not None
    for record in run.of(Operations):
        program = workload.programs[int(workload.program_of[record.rank])]
        named = [workload.names[k].split(" ")[0] == purpose for k in program.name]
        mine = [
            times for times, of_it in zip(record.times_s, named, strict=True) if of_it
        ]
        cuts = sorted({cut for times in mine for cut in times})
        found.append(
            sum(
                b - a
                for a, b in pairwise(cuts)
                if any(x <= a and b <= y for x, y in mine)
            )
        )
    return float(np.mean(found))


def test_a_collective_of_no_purpose_goes_by_its_kind() -> None:
    at = one_collective([[0.25, 1.5]]).figures_at("base", "job one")
    assert at.number("exposed.all_reduce") == 1.25
    assert at.number("hidden.all_reduce") == 0


def test_all_purposes_are_metrics() -> None:
    assert {
        of_purpose(name, p) for name in ("exposed", "hidden") for p in COMMUNICATION
    } <= set(metrics())


def test_the_page_shows_operations_and_what_was_exposed(tmp_path: Path) -> None:
    view = stages()
    assert "workload" in appearing(view)
    text = render(view, tmp_path)
    check_alone(text)
    shown = text_of(Page(text))
    assert "Workloads" in shown
    for said in (
        "computing",
        "rank 0 (g0)",
        "rank 2 (g3)",
        "send activations",
        "embedding",
        "of it hidden",
    ):
        assert said in shown
    assert (tmp_path / "workload-1.svg").exists()
    assert "parts, all exact" not in shown  # a simulation computes no results


def test_rounding_is_no_range_of_the_axis_of_iterations(tmp_path: Path) -> None:
    def disturbed(records: list[Record]) -> list[Record]:
        return [
            replace(
                r,
                compute_start=r.i,
                compute_end=r.i + 0.25,
                allreduce_end=r.i + 0.5 + 1e-14 * r.i,
            )
            if isinstance(r, Iteration)
            else r
            for r in records
        ]

    render(stages(disturbed=disturbed), tmp_path)
    assert not re.search(r">[+0-9.]*e.[0-9]", (tmp_path / "iterations.svg").read_text())


def test_jobs_that_train_have_no_such_section() -> None:
    assert "workload" not in appearing(simulated("jobs: {red: {ranks: [g0, g1]}}\n"))


def test_a_sweep_has_a_row_for_each_point(tmp_path: Path) -> None:
    sweep = "sweep: {jobs.llm.workload.iterations: [2, 4]}"
    view = view_of_file(f"{UNSCALED}\njobs: {{llm: {STAGES}}}\n{sweep}\n", PATH)
    shown = text_of(Page(render(view, tmp_path)))
    assert len(view.having("exposed")) == 2
    assert "iterations" in shown
    assert (tmp_path / "workload-1.svg").exists()


def test_operations_without_times_on_record_still_have_the_table(
    tmp_path: Path,
) -> None:
    view = stages(
        disturbed=lambda records: [r for r in records if not isinstance(r, Operations)]
    )
    shown = text_of(Page(render(view, tmp_path)))
    assert "Workloads" in shown
    assert "bytes, all ranks" in shown
    assert not (tmp_path / "workload-1.svg").exists()


def test_neighbours_of_one_purpose_become_one_span() -> None:
    times_s = np.array(
        [[0.0, 1.0], [1.0005, 2.0], [2.0, 2.0001], [3.0, 3.0], [5.0, 5.0], [5.0, 6.0]]
    )
    of = ["dp", "dp", "tp", "dp", "pp", "dp"]
    assert merged(of, times_s, 0.001) == [
        ("dp", 0.0, 2.0), ("tp", 2.0, 2.001), ("dp", 3.0, 3.001), ("pp", 5.0, 5.0), ("dp", 5.0, 6.0),
    ]  # fmt: skip


@pytest.mark.filterwarnings(
    "error", "ignore:unclosed:ResourceWarning"
)  # earlier tests left them
def test_two_thousand_alternating_operations_stay_small(tmp_path: Path) -> None:
    writer = Writer(book := Book())
    for _ in range(600):
        writer.compute("forward", seconds=1e-3)
        writer.collective("tp activations", Collective("all-reduce"), 1 << 20, 0)
        writer.compute("backward", seconds=2e-3)
        writer.collective("dp gradients", Collective("all-reduce"), 1 << 20, 0)
    workload = book.workload(
        "long", [writer.done()], [0, 0], [[book.group([0, 1])]] * 2, [[]] * 2
    )
    (tmp_path / "long.rlw").write_bytes(pack(workload))
    jobs = "jobs: {llm: {ranks: [g0, g1], workload: {files: long.rlw}}}"
    view = view_of_file(f"{UNSCALED}\n{jobs}\n", str(tmp_path / "long.yaml"))
    (run,) = view.runs
    assert max(len(record.times_s) for record in run.of(Operations)) > 2000
    render(view, tmp_path)
    assert (tmp_path / "workload-1.svg").stat().st_size < 600_000


def test_a_trace_has_every_operation_on_its_stream(tmp_path: Path) -> None:
    (run,) = stages().runs
    perfetto.write_trace(tmp_path / "t.json", [run])
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    threads = {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in events
        if e["name"] == "thread_name"
    }
    spans = [e for e in events if e["ph"] == "X" and e["cat"] != "rank"]
    assert len(spans) == sum(len(record.times_s) for record in run.of(Operations))
    assert {names[e["pid"]] for e in spans} == {
        f"base: {gpu}" for gpu in ("g0", "g1", "g3", "g4")
    }
    sent = [e for e in spans if e["cat"] == "send"]
    assert all(e["args"]["bytes"] > 0 for e in sent)
    assert {threads[e["pid"], e["tid"]] for e in sent} == {
        "stream send activations",
        "stream send gradients",
    }
    # The iterations of a rank have a line of their own, and no all-reduce of a training loop.
    assert {e["name"] for e in events if e["ph"] == "X" and e["cat"] == "rank"} == {
        "iteration"
    }


def test_a_trace_that_would_be_too_long_has_no_operations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = stages().runs
    monkeypatch.setattr(perfetto, "_MOST", 100)
    perfetto.write_trace(tmp_path / "t.json", [run])
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {e["cat"] for e in events if e["ph"] == "X"} == {"rank"}
