"""A source of jobs that an extension brings is read, planned, computed, and put on record."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.cli.show import show_check
from ringlight.experiments.language import job_sources
from ringlight.experiments.language.expand import parse
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.record import events, lines
from ringlight.experiments.runner.check_document import check_document
from ringlight.experiments.runner.experiment import nothing_to_run
from ringlight.fabric.extension import (
    Extension,
    ExtensionError,
    InstalledExtension,
    extensions,
)
from tests.door import door
from tests.simulated import SIX_GPUS

ADDED = """
from dataclasses import dataclass
from typing import ClassVar

from ringlight.experiments.backends.simulation.collectives import run_started
from ringlight.experiments.language.job_sources import Sourced
from ringlight.experiments.language.plan import SourcePlan
from ringlight.experiments.record.events import JobsComputed, RunEnded, RunStarted
from ringlight.fabric.schema import Strict


class PairsSpec(Strict):
    count: int
    file: str | None = None


@dataclass(frozen=True)
class PairsPlan(SourcePlan):
    count: int
    key: ClassVar[str] = "pairs"


class PairsComputed(JobsComputed, event="pairs_computed"):
    count: int


@dataclass(frozen=True)
class PairsRun:
    begin: RunStarted
    pairs: int

    @property
    def count(self):
        return 1

    def compute(self, report=None):
        run = self.begin.run
        return [self.begin, PairsComputed(t=1.0, run=run, count=self.pairs), RunEnded(t=1.0, run=run)]


class Pairs:
    spec = PairsSpec

    def meant(self, written):
        return "count" in written

    def plan(self, spec, setting, events, files):
        count = spec.count if spec.file is None else files.read(spec.file, lambda path: int(path.read_text()))
        if 2 * count > len(setting.fabric.gpus):
            raise ValueError(f"jobs.pairs.count: {count} are too many")
        return Sourced(PairsPlan(count))

    def document(self, plan):
        return {"count": plan.source.count}

    def line(self, document):
        return f"{document['count']} pairs"

    def refused(self, plan, *, simulated):
        return None if simulated else "jobs.pairs: only simulated"

    def batch(self, plan):
        return PairsRun(run_started(plan), plan.source.count)


PAIRS = Pairs()
"""
TEXT = SIX_GPUS + "jobs: {pairs: {count: 2}}\n"


@pytest.fixture(autouse=True)
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    package = tmp_path / "acme_pairs"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "added.py").write_text(ADDED)
    monkeypatch.syspath_prepend(str(tmp_path))
    adds = Extension("pairs", events=("added",), jobs={"pairs": "added:PAIRS"})
    found = (*extensions(), InstalledExtension(adds, "acme_pairs"))
    with door(*found, readers=(lines.kinds,)):
        yield
    events.KINDS.pop("pairs_computed", None)
    for name in ("acme_pairs", "acme_pairs.added"):
        sys.modules.pop(name, None)


def test_kinds_of_records_of_an_extension_are_known_before_its_jobs_are() -> None:
    assert lines.kinds()["pairs_computed"].__module__ == "acme_pairs.added"


def test_jobs_of_a_source_are_computed_together_and_on_record() -> None:
    (plan,) = parse(TEXT, "pairs.yaml").plans
    backend = SimulationBackend()
    assert plan.jobs == ()
    assert nothing_to_run(plan) is None
    assert backend.refuses(plan) is None
    batches, left = backend.batches([plan])
    assert not left
    records = [record for batch in batches for record in batch.compute()]
    assert [record.event for record in records] == [
        "run_started",
        "pairs_computed",
        "run_ended",
    ]
    assert lines.record_of(json.loads(lines.line_of(records[1]))) == records[1]


def test_a_source_is_said_by_check_and_may_refuse(
    capsys: pytest.CaptureFixture[str],
) -> None:
    experiment = parse(TEXT, "pairs.yaml")
    document = check_document(experiment)
    (arm,) = document["arms"].values()
    assert arm["pairs"] == {"count": 2}
    assert arm["refused"] == {"emulation": "jobs.pairs: only simulated"}
    show_check(document)
    assert "2 pairs" in capsys.readouterr().out


def test_what_a_source_reads_is_among_the_files_of_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "count.txt").write_text("3")
    text = SIX_GPUS + "jobs: {pairs: {count: 1, file: count.txt}}\n"
    experiment = parse(text, str(tmp_path / "pairs.yaml"))
    assert "count.txt" in {Path(file).name for file in experiment.files}


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        ("{pairs: {count: 4}}", "jobs.pairs.count: 4 are too many"),
        ("{pairs: {count: 1, coutn: 1}}", "jobs.pairs.coutn: "),
        (
            "{pairs: {count: 1}, red: {gpus: 2}}",
            "jobs.red: there are no jobs beside those of jobs.pairs",
        ),
    ],
)
def test_mistakes_are_named(jobs: str, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse(f"{SIX_GPUS}jobs: {jobs}\n", "pairs.yaml")
    assert said in str(caught.value)


def test_a_job_may_have_a_source_s_name() -> None:
    (plan,) = parse(
        f"{SIX_GPUS}jobs: {{pairs: {{ranks: [g0, g1]}}}}\n", "pairs.yaml"
    ).plans
    assert plan.source is None
    assert [job.name for job in plan.jobs] == ["pairs"]


def test_two_sources_of_one_key_are_named() -> None:
    both = [
        InstalledExtension(Extension(name, jobs={"pairs": "added:PAIRS"}), "acme_pairs")
        for name in "ab"
    ]
    with (
        door(*both),
        pytest.raises(
            ExtensionError, match=r"extension b: jobs: there is a pairs already"
        ),
    ):
        job_sources.source_of({"pairs": {}})
