"""The blind test: what is drawn, what is predicted first, how errors are counted, and who goes on with it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ringlight.experiments.analysis import causes
from ringlight.experiments.analysis.explanations import cause_of
from ringlight.experiments.backends.emulation.backend import EmulationBackend
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.backends.simulation.lab import SimulatedLab
from ringlight.experiments.language.expand import load, parse
from ringlight.experiments.language.plan import Setting
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.record.events import Record
from ringlight.experiments.record.folder import read_json
from ringlight.experiments.record.runs import runs_of
from ringlight.experiments.record.version import ROOT
from ringlight.experiments.runner.command import carry_out_experiment
from ringlight.experiments.runner.experiment import run_alone
from ringlight.experiments.runner.progress import Reporter
from ringlight.extensions.crosscheck.blind import beside_trivial, run_blind, spread_of
from ringlight.extensions.crosscheck.command import side
from ringlight.extensions.crosscheck.drawn import (
    MOST_BPS,
    drawn_kinds,
    kind_of,
    scenario_of,
)
from ringlight.extensions.crosscheck.sides import crosscheck
from ringlight.extensions.crosscheck.spread_page import spread_parts


def test_a_seed_draws_the_same_experiments_and_fewer_are_its_first() -> None:
    twice = 2 * len(drawn_kinds())
    many, few = (yaml.safe_load(scenario_of(count, 7)) for count in (twice, 5))
    assert scenario_of(twice, 7) == scenario_of(twice, 7) != scenario_of(twice, 8)
    assert few["arms"] == {name: many["arms"][name] for name in list(many["arms"])[:5]}
    assert [kind_of(name) for name in many["arms"]] == [*drawn_kinds(), *drawn_kinds()]


def test_whatever_is_drawn_both_can_run_and_this_machine_carries(long: bool) -> None:
    plans = parse(scenario_of(600 if long else 48, 3), "blind.yaml").plans
    for backend in (EmulationBackend(), SimulationBackend()):
        assert {
            plan.arm: why
            for plan in plans
            if (why := backend.refuses(plan)) is not None
        } == {}
    done = {event.do for plan in plans for event in plan.events}
    assert done == {"regroup", "cut"}
    for plan in plans:
        scale, fabric = plan.setting.scale, plan.setting.fabric
        fastest = max(
            link.rate_bps for link in fabric.links if link.a.node in fabric.gpus
        )
        assert (
            len(fabric.gpus) * fastest / scale.time / scale.payload <= 1.05 * MOST_BPS
        ), plan.arm


def test_harder_kinds_are_what_bytes_over_a_nic_s_rate_do_not_give(
    tmp_path: Path,
) -> None:
    """Simulated alone: of each kind most jobs are farther off than 10 %."""
    drawn = parse(scenario_of(3 * len(drawn_kinds()), 21), "blind.yaml")
    folder = carry_out_experiment(drawn, SimulationBackend(), tmp_path)[0].path
    found = crosscheck(side(folder), side(folder))
    beside_trivial(found["entries"], side(folder).runs)
    kinds = spread_of(found["entries"], 10.0)["kinds"]
    assert all(kinds[kind]["trivial"]["median"] > 10 for kind in ("thin", "mixed"))
    hard = [
        e
        for e in found["entries"]
        if kind_of(e["arm"]) in ("thin", "shallow", "far", "small", "mixed")
    ]
    assert sum(abs(e["trivial"]["difference_percent"]) > 3 for e in hard) >= 0.7 * len(
        hard
    )


def entry(arm: str, percent: float, **causes: Any) -> dict[str, Any]:
    known = {
        "gap_s": 1.0,
        "timers_s": 0.0,
        "links_s": 0.0,
        "set_up_s": 0.0,
        "verdict": [],
    }
    figure = {"difference_percent": percent}
    return {
        "run": arm, "arm": arm, "job": "red", "allreduce_s": figure, "iteration_s": figure,
        "completion_s": figure, "trivial": {"difference_percent": 2 * percent},
        "causes": known | {"retransmits_per_rank_and_iteration": 0.0} | causes,
    }  # fmt: skip


def test_errors_are_counted_by_kind_and_nobody_is_left_out() -> None:
    entries = [entry(f"tree-{k:03d}", -float(k)) for k in range(1, 21)] + [
        entry("ring-020", 30.0)
    ]
    found = spread_of(entries, 10.0)
    tree = found["kinds"]["tree"]
    assert (tree["jobs"], found["kinds"]["all"]["jobs"]) == (20, 21)
    assert tree["allreduce_s"] == {
        "median": 10.5,
        "p95": 19.0,
        "most": 20.0,
        "within": 0.5,
    }
    assert found["kinds"]["ring"]["iteration_s"]["median"] == 30.0
    assert (tree["trivial"]["median"], tree["trivial"]["within"]) == (21.0, 0.25)
    assert [at["run"] for at in found["outliers"]] == [
        f"tree-{k:03d}" for k in range(11, 21)
    ] + ["ring-020"]


def test_the_page_lists_under_its_limit_only_who_is_beyond_it() -> None:
    for percent, said, rows in (
        (9.9, "None of 1 jobs.", 0),
        (30.0, "1 of 1 jobs, 1 of them unexplained", 1),
    ):
        entries = [entry("ring-020", percent)]
        blind = spread_of(entries, 10.0) | {
            "experiments": 1,
            "seed": 7,
            "predicted_sha256": "ab",
        }
        page = "".join(
            spread_parts(
                {"blind": blind, "limit_percent": 10.0, "entries": entries}, ""
            )
        )
        beyond, every = page.partition("<h2>Beyond 10&nbsp;%</h2>")[2].split(
            "<h2>Every job</h2>"
        )
        assert said in beyond
        assert not every.startswith("<table")
        assert beyond.count("ring-020") == rows


@pytest.mark.parametrize(
    ("causes", "wanted"),
    [
        ({}, False),
        ({"timers_s": 0.4}, False),
        ({"timers_s": 0.3, "links_s": 0.3}, True),
        # It would explain the opposite.
        ({"set_up_s": -0.8}, False),
        ({"gap_s": -1.0, "set_up_s": -0.8}, True),
        ({"retransmits_per_rank_and_iteration": 3.0}, True),
        ({"queues_s": 0.6}, True),
        ({"turns_s": 0.6}, True),
        # What waits in queues waits for its turn, too: not twice.
        ({"queues_s": 0.3, "turns_s": 0.3}, False),
        ({"gap_s": -1.0, "queues_s": 0.6}, False),
        ({"gap_s": -1.0, "events_s": 0.6}, True),
        ({"events_s": 0.4}, False),
        ({"dark_in": {"emulated": [], "simulated": [3]}}, True),
        ({"dark_in": {"emulated": [3], "simulated": [3]}}, False),
        ({"verdict": [{"code": "link_rate"}]}, True),
    ],
)
def test_an_outlier_is_explained_by_what_the_run_measured_or_not_at_all(
    causes: dict[str, Any], wanted: bool
) -> None:
    assert (cause_of(entry("tree-000", -20.0, **causes)) is not None) is wanted


def test_all_is_predicted_before_the_first_is_run_and_goes_on_only_with_the_same_predictions(
    tmp_path: Path,
) -> None:
    """Both sides are simulated here: what is emulated has a test with containers."""
    said: list[str] = []

    class Told(Reporter):
        def say(self, words: str) -> None:
            said.append(words)

    def blind(resume: Path | None = None, seed: int = 5) -> tuple[Path, dict[str, Any]]:
        simulation = SimulationBackend()
        return run_blind(
            4,
            seed,
            simulation,
            simulation,
            tmp_path,
            Told(),
            resume=resume,
            limit_percent=10,
        )

    folder, found = blind()
    sha256 = found["blind"]["predicted_sha256"]
    promised = next(k for k, words in enumerate(said) if sha256 in words)
    assert not any(
        "run folder" in words and "simulated" not in words for words in said[:promised]
    )
    run = Path(found["emulated"]["folder"])
    assert read_json(run / "environment.json")["predicted_sha256"] == sha256
    predicted = read_json(Path(found["simulated"]["folder"]) / "predicted.json")
    assert predicted["sha256"] == sha256
    assert predicted["predictions"].keys() == {
        "tree-000",
        "paths-001",
        "ocs-002",
        "two-ocs-003",
    }
    assert found["blind"]["kinds"]["all"]["allreduce_s"]["most"] == 0.0
    assert json.loads((folder / "crosscheck.json").read_text()) == found
    page = (folder / "crosscheck.html").read_text()
    assert sha256 in page
    assert "bytes over the NIC" in page
    # A ring without anybody beside it is what its bytes take; headers are besides.
    trivial = {entry["run"]: entry["trivial"] for entry in found["entries"]}
    assert all(at["allreduce_s"] > 0 for at in trivial.values())
    assert min(abs(at["difference_percent"]) for at in trivial.values()) < 5
    assert "two-ocs" in page

    assert blind(run)[1]["blind"]["predicted_sha256"] == sha256

    class Interrupting(SimulationBackend):
        def open(
            self, setting: Setting, emit: Callable[[Record], None]
        ) -> SimulatedLab:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_blind(
            1,
            5,
            Interrupting(),
            SimulationBackend(),
            tmp_path,
            Told(),
            limit_percent=10,
        )
    assert re.search(
        "go on with: ringlight crosscheck --random 1 --seed 5 --resume .*-blind-5",
        said[-1],
    )

    environment = read_json(run / "environment.json")
    (run / "environment.json").write_text(
        json.dumps(environment | {"predicted_sha256": "0" * 64})
    )
    with pytest.raises(ScenarioError, match="its predictions have SHA-256 0000"):
        blind(run)


@pytest.mark.parametrize(
    ("between", "named"),
    [((0.1, 0.5), True), ((0.1, 0.2), False), ((0.5, 0.1), False)],
    ids=["most of it", "little of it", "the other way"],
)
def test_pauses_are_the_cause_of_a_completion_time_if_most_of_its_difference_is_theirs(
    between: tuple[float, float], named: bool
) -> None:
    pauses = dict(zip(("emulated", "simulated"), between, strict=True))
    one = entry("lost", 14.0, gap_s=0.0001, between_s=pauses, events_s=0.001)
    one["completion_s"] = {
        "emulated": 3.0,
        "simulated": 3.5,
        "difference_percent": 16.7,
    }
    assert str(cause_of(one)).startswith("pauses between iterations") is named


@pytest.mark.parametrize(
    ("percent", "causes", "words"),
    [
        (
            -12.0,
            {"gap_s": 0.021, "work_s": 0.027},
            "the work of all ranks at each step",
        ),
        (-12.0, {"gap_s": 0.021, "work_s": 0.009}, None),
        (
            -14.0,
            {"gap_s": 0.1, "cold_s": 0.08},
            "connections in slow start during the first all-reduce (80 ms)",
        ),
        (
            17.0,
            {"gap_s": -0.007, "bursts_s": -0.009},
            "frames that a link passes in one burst",
        ),
        (-17.0, {"gap_s": 0.007, "bursts_s": -0.009}, None),
    ],
)
def test_the_work_of_ranks_and_frames_that_pass_at_once_are_causes_if_they_are_half_of_it(
    percent: float, causes: dict[str, float], words: str | None
) -> None:
    found = cause_of(entry("a", percent, **causes))
    assert found is None if words is None else str(found).startswith(words)


@pytest.mark.parametrize(
    ("file", "work_s", "bursts_s"),
    [
        ("examples/packet_switches.yaml", 0.0, 0.0),
    ],
)
def test_what_steps_take_besides_their_bytes(
    file: str, work_s: float, bursts_s: float
) -> None:
    check_besides_bytes(file, work_s, bursts_s)


def check_besides_bytes(file: str, work_s: float, bursts_s: float) -> None:
    """Check what the model adds to an iteration for the work of its steps, and for bursts."""
    plan = load(ROOT / "scenarios" / file).plans[0]
    plan = replace(
        plan, events=(), jobs=tuple(replace(job, iterations=1) for job in plan.jobs)
    )
    records, _ = run_alone(SimulationBackend(), plan)
    (run,) = runs_of(records, [plan])
    job = next(iter(run.jobs))
    assert causes._work_s(run, job) == pytest.approx(work_s)
    assert causes._bursts_s(run, job) == pytest.approx(bursts_s, rel=0.02)
