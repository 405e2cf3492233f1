"""The cross-check: differences, which side is called off and why, trimmed experiments, wrong input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringlight.experiments.analysis.causes import light_s, series
from ringlight.experiments.analysis.metrics.regroup import dark_intervals
from ringlight.experiments.analysis.reasons import SENTENCES, Reason
from ringlight.experiments.backends.emulation.backend import EmulationBackend
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import Experiment, load, parse
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.record.events import Iteration, Record, RunEnded, WorkerDone
from ringlight.experiments.record.lab_records import LinkRate
from ringlight.experiments.record.light_records import StepSetUps
from ringlight.experiments.record.lines import line_of, read_records
from ringlight.experiments.record.runs import runs_of
from ringlight.experiments.runner.command import carry_out_experiment, load_checked
from ringlight.experiments.runner.progress import Reporter
from ringlight.extensions.crosscheck.command import (
    compared,
    run_crosscheck,
    side,
    trimmed,
    write,
)
from ringlight.extensions.crosscheck.sides import Side, crosscheck
from ringlight.fabric.frames import ETHERNET_BYTES
from tests.simulated import experiment
from tests.unit.test_cli import BUNDLED, MINI, ROOT, one_line, ringlight
from tests.workload_jobs import loaded

WAYS = ("tor0 to tor1", "tor1 to tor0", "g0 to g1", "g2 to g3")


@pytest.fixture(scope="module")
def checked() -> Experiment:
    return load(MINI)


@pytest.fixture(scope="module")
def folder(checked: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated run of the small experiment."""
    parent = tmp_path_factory.mktemp("runs")
    return carry_out_experiment(checked, SimulationBackend(), parent)[0].path


@pytest.fixture(scope="module")
def simulated(folder: Path) -> Side:
    return side(folder)


def altered(
    original: Side,
    change: Callable[[Record], Record],
    reasons: tuple[Reason, ...] = (),
    links: float = 1.0,
    more: Callable[[str], Sequence[Record]] = lambda run: (),
) -> Side:
    """As if it had been emulated, with its records changed, and links that gave so much of what they should.

    ``more``: further records of each run.
    """
    share = original.environment["payload_share"]
    plans = [run.plan for run in original.runs]
    records = [
        found
        for run in original.runs
        for record in run.records
        for found in (
            [*more(run.name), record]
            if isinstance(record, RunEnded)
            else [change(record)]
        )
    ]
    rates = [
        LinkRate(
            t=0.0,
            fabric="fabric",
            link="x",
            direction=way,
            set_bps=1e8,
            measured_bps=links * share * 1e8,
        )
        for way in WAYS
    ]
    said = {"verdict": "good", "reasons": [reason.as_json() for reason in reasons]}
    result = {**original.result, "backend": "emulation", "fidelity": said}
    return Side(
        "runs/y",
        runs_of(records, plans),
        rates,
        result,
        {"run": "y", "runtime": "docker"},
    )


def longer(share: float, part: str = "all_reduce") -> Callable[[Record], Record]:
    """Every iteration's compute or all-reduce takes ``share`` more."""

    def change(record: Record) -> Record:
        if not isinstance(record, Iteration):
            return record
        extra = share * (record.compute_s if part == "compute" else record.all_reduce_s)
        return replace(
            record,
            compute_end=record.compute_end + (extra if part == "compute" else 0),
            allreduce_end=record.allreduce_end + extra,
        )

    return change


def same(record: Record) -> Record:
    return record


def entry_of(
    found: dict[str, Any], run: str = "regrouped", job: str = "red"
) -> dict[str, Any]:
    return next(
        entry
        for entry in found["entries"]
        if (entry["run"], entry["job"]) == (run, job)
    )


def test_a_run_agrees_with_itself(simulated: Side) -> None:
    found = crosscheck(altered(simulated, same), simulated)
    assert len(found["entries"]) == sum(len(run.jobs) for run in simulated.runs)
    assert found["within_limit"]
    assert found["not_compared"] == []
    for entry in found["entries"]:
        for figure in ("iteration_s", "allreduce_s", "completion_s"):
            assert entry[figure]["difference_percent"] == pytest.approx(0.0, abs=1e-9)
        assert (entry["off"], entry["why"]) == ("neither", ["they agree"])
        assert entry["series"]["emulated"] == entry["series"]["simulated"]


def test_difference_is_of_the_simulated_from_the_emulated(simulated: Side) -> None:
    found = crosscheck(altered(simulated, longer(0.25)), simulated)
    entry = entry_of(found)
    assert entry["allreduce_s"]["difference_percent"] == pytest.approx(-20.0)
    iteration = entry["iteration_s"]
    expected = 100 * (iteration["simulated"] / iteration["emulated"] - 1)
    assert iteration["difference_percent"] == pytest.approx(expected)
    assert not entry["within_limit"]


def test_computing_does_not_hide_how_far_the_all_reduce_is_off(simulated: Side) -> None:
    """13 % of the all-reduce within 10 % of the iteration, most of which is computing on either side."""

    def computing_longer(record: Record) -> Record:
        if not isinstance(record, Iteration):
            return record
        return replace(
            record, compute_start=record.compute_start - 4 * record.all_reduce_s
        )

    plans = [run.plan for run in simulated.runs]
    records = [
        computing_longer(record) for run in simulated.runs for record in run.records
    ]
    ours = replace(simulated, runs=runs_of(records, plans))
    theirs = altered(ours, longer(0.15))
    found = crosscheck(theirs, ours)
    for entry in found["entries"]:
        assert abs(entry["iteration_s"]["difference_percent"]) < 5
        assert entry["allreduce_s"]["difference_percent"] == pytest.approx(
            -13.0, abs=0.1
        )
        assert not entry["within_limit"]
        assert entry["off"] != "neither"
    assert not found["within_limit"]
    assert found["worst"]["allreduce_s"]["difference_percent"] == pytest.approx(
        -13.0, abs=0.1
    )
    assert crosscheck(theirs, ours, 14.0)["within_limit"]


def resent(count: int, simulated: Side) -> Callable[[str], Sequence[Record]]:
    """Segments that every rank sent again in a run."""
    runs = {run.name: run for run in simulated.runs}
    return lambda name: [
        WorkerDone(
            t=0.0,
            run=name,
            job=job.name,
            rank=rank,
            parameters_sha256="a",
            retransmits=count,
        )
        for job in runs[name].jobs.values()
        for rank in range(len(job.gpus))
    ]


def test_a_longer_all_reduce_with_losses_is_the_simulations_to_answer_for(
    simulated: Side,
) -> None:
    emulated = altered(simulated, longer(0.4), more=resent(900, simulated))
    entry = entry_of(crosscheck(emulated, simulated))
    assert entry["off"] == "simulation"
    assert "TCP" in entry["why"][0]
    assert entry["causes"]["rest_s"] == pytest.approx(
        entry["causes"]["gap_s"], rel=1e-6
    )


def test_the_time_of_software_that_stands_for_hardware_is_the_emulations(
    simulated: Side,
) -> None:
    entry = entry_of(crosscheck(altered(simulated, longer(0.4)), simulated))
    assert entry["off"] == "emulation"
    assert "software switches" in entry["why"][0]


def test_late_timers_are_the_emulations_fault(simulated: Side) -> None:
    entry = entry_of(crosscheck(altered(simulated, longer(0.1, "compute")), simulated))
    assert entry["off"] == "emulation"
    assert "timers" in entry["why"][0]
    assert entry["causes"]["timers_s"] == pytest.approx(
        entry["causes"]["gap_s"], rel=1e-6
    )


def test_slow_links_are_the_emulations_fault(simulated: Side) -> None:
    entry = entry_of(
        crosscheck(altered(simulated, longer(0.25), links=1 / 1.25), simulated)
    )
    assert entry["off"] == "emulation"
    assert "links" in entry["why"][0]
    assert entry["causes"]["links_s"] == pytest.approx(
        entry["causes"]["gap_s"], rel=1e-6
    )


def test_a_shorter_all_reduce_is_said_to_be_the_simulations(simulated: Side) -> None:
    entry = entry_of(crosscheck(altered(simulated, longer(-0.3)), simulated))
    assert entry["iteration_s"]["difference_percent"] > 0
    assert entry["off"] == "simulation"
    assert (
        "the simulation makes wait" in entry["why"][0]
        or "all-reduced during" in entry["why"][0]
    )


def test_a_rings_changes_of_light_are_counted_by_iteration(simulated: Side) -> None:
    run = next(run for run in simulated.runs if run.name == "regrouped")
    changes = [{"step": step, "total_s": 0.05, "write_s": None} for step in (0, 1, 2)]
    note = StepSetUps(t=run.ended, run=run.name, set_ups=changes)
    assert light_s([run], "red") is None
    noted = replace(run, records=(*run.records, note))
    assert light_s([noted], "red") == pytest.approx(
        3 * 0.05 / len(series(run.jobs["red"]))
    )


def test_busy_processors_are_the_emulations_fault_in_their_run_alone(
    simulated: Side,
) -> None:
    reasons = (
        Reason("processors_busy", "bad", {"run": "regrouped", "busy": 0.99}),
        Reason(
            "all_reduce_over_ideal",
            "bad",
            {"run": "regrouped", "job": "red", "over": 2.0},
        ),
    )
    found = crosscheck(altered(simulated, longer(0.4), reasons), simulated)
    assert entry_of(found)["off"] == "emulation"
    assert (
        entry_of(found)["why"][-1] == f"the emulation says of itself: {reasons[0].text}"
    )
    assert entry_of(found, "fragmented")["causes"]["verdict"] == []


def test_only_what_a_run_says_of_a_jobs_own_links_counts(
    simulated: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it is worded. A ring that crosses is held up by the switches' links, another by its GPUs'."""
    ways = (("g0 to g1", 0.84), ("g8 to g9", 0.83), ("tor0 to tor1", 0.82))
    reasons = tuple(
        Reason(
            "link_rate", "bad", {"link": f"of {way}", "direction": way, "ratio": ratio}
        )
        for way, ratio in ways
    )
    monkeypatch.setitem(SENTENCES, "link_rate", "a rate was missed")
    found = crosscheck(altered(simulated, longer(0.4), reasons), simulated)
    assert entry_of(found)["causes"]["verdict"] == [reasons[0].as_json()]
    assert entry_of(found, "fragmented")["causes"]["verdict"] == [reasons[2].as_json()]
    assert (
        entry_of(found)["why"][-1] == "the emulation says of itself: a rate was missed"
    )
    # Another fabric may have nodes of the same names.
    elsewhere = {
        "fabric": "other",
        "link": "of g0 to g1",
        "direction": "g0 to g1",
        "ratio": 0.8,
    }
    reasons = (Reason("link_rate", "bad", elsewhere),)
    found = crosscheck(altered(simulated, longer(0.4), reasons), simulated)
    assert entry_of(found)["causes"]["verdict"] == []


def test_repetitions_are_averaged_and_what_one_side_lacks_is_named(
    simulated: Side,
) -> None:
    once, twice = altered(simulated, longer(0.1)), altered(simulated, longer(0.3))
    again = [run for run in twice.runs if run.name == "regrouped"]
    both = replace(
        once, runs=[run for run in (*once.runs, *again) if run.name != "live"]
    )
    found = crosscheck(both, simulated)
    assert found["not_compared"] == ["live"]
    entry = entry_of(found)
    assert entry["repeats"] == 2
    shown = entry_of(crosscheck(once, simulated))["allreduce_s"]["emulated"]
    assert entry["allreduce_s"]["emulated"] == pytest.approx(
        shown * (1.1 + 1.3) / 2 / 1.1
    )


def test_series_is_of_the_slowest_rank(simulated: Side) -> None:
    job = simulated.runs[0].jobs["red"]
    values = series(job)
    assert len(values) == len(job.by_index)
    assert values[0] == max(
        it.allreduce_end - it.compute_start for it in job.iterations if it.i == 0
    )


def test_nothing_in_common_is_refused(simulated: Side) -> None:
    with pytest.raises(ValueError, match="no finished run in common"):
        crosscheck(replace(altered(simulated, same), runs=[]), simulated)


def as_emulated(
    folder: Path, into: Path, change: Callable[[Record], Record] = same
) -> Path:
    """A copy of a simulated run's folder that looks like an emulated one."""
    emulated = into / "emulated"
    shutil.copytree(folder, emulated)
    records = read_records(folder / "events.jsonl")
    (emulated / "events.jsonl").write_text(
        "".join(line_of(change(record)) for record in records)
    )
    environment = json.loads((folder / "environment.json").read_text())
    environment |= {"backend": "emulation", "label": "measured", "runtime": "docker"}
    (emulated / "environment.json").write_text(json.dumps(environment))
    return emulated


def test_the_page_says_how_far_apart_and_why(
    checked: Experiment, folder: Path, tmp_path: Path
) -> None:
    emulated = as_emulated(folder, tmp_path, longer(0.9))
    found = compared(emulated, folder, 10.0)
    place = write(checked, found, tmp_path)
    assert not found["within_limit"]
    assert json.loads((place / "crosscheck.json").read_text()) == found
    page = (place / "crosscheck.html").read_text()
    assert "are apart by up to" in page
    assert "kernel, software switches and workers" in page
    assert 'class="bad"' in page
    assert {path.name for path in (place / "plots").glob("*.png")} == {
        "differences.png",
        "iterations.png",
    }


# --- what is run ----------------------------------------------------------------------------------


def test_fewer_arms_and_iterations(checked: Experiment) -> None:
    assert trimmed(checked, (), None) is checked
    short = trimmed(load(BUNDLED), ["live"], 9)
    assert short.arms == ("live",)
    assert {job.iterations for plan in short.plans for job in plan.jobs} == {9}
    # An arm comes with those that it is like, and what is compared goes.
    base = load(ROOT / "scenarios" / "examples" / "fat_tree_4.yaml")
    assert trimmed(base, ["hash"], None).arms == ("doubling", "hash")
    with pytest.raises(
        ScenarioError, match="there is no arm torus; there are fragmented"
    ):
        trimmed(checked, ["torus"], None)


def test_an_event_that_never_comes_then_is_refused(checked: Experiment) -> None:
    with pytest.raises(
        ScenarioError, match=r"mini\.yaml: .*events\.1\.when\.iteration"
    ):
        trimmed(checked, (), 2)


def test_of_an_experiment_without_arms_there_is_one() -> None:
    assert trimmed(experiment(), ["base"], 3).plans[0].jobs[0].iterations == 3


def check(path: Path, tmp_path: Path, emulated: Path) -> tuple[Path, dict[str, Any]]:
    return run_crosscheck(
        load_checked(path, auto=True),
        EmulationBackend(),
        SimulationBackend(),
        tmp_path / "new",
        Reporter(),
        emulated=emulated,
        limit_percent=10.0,
    )


def test_a_run_made_before_is_checked_against(folder: Path, tmp_path: Path) -> None:
    _, found = check(MINI, tmp_path, as_emulated(folder, tmp_path))
    assert found["within_limit"]
    assert {entry["run"] for entry in found["entries"]} == {
        "fragmented",
        "regrouped",
        "live",
    }


def test_a_run_that_cannot_be_checked_against_is_refused(
    folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ScenarioError, match="this run was simulated"):
        check(MINI, tmp_path, folder)
    with pytest.raises(ScenarioError, match=r"environment\.json: cannot be read"):
        check(MINI, tmp_path, tmp_path)
    with pytest.raises(ScenarioError, match="a run of mini, not of disaggregation"):
        check(BUNDLED, tmp_path, as_emulated(folder, tmp_path))
    assert not (tmp_path / "new").exists()


def test_an_experiment_of_which_one_side_can_run_nothing_is_refused(
    tmp_path: Path,
) -> None:
    path = tmp_path / "killed.yaml"
    killed = (
        "  {arm}: {{events: [{{when: {{at: 10 ms}}, do: kill, target: {target}}}]}}\n"
    )
    made = experiment().text + "arms:\n" + killed.format(arm="a", target="controller")
    path.write_text(made)
    parse(made, str(path))
    done = ringlight("crosscheck", str(path), "--runs", str(tmp_path / "runs"))
    assert done.returncode == 2
    assert "the simulation cannot kill the controller" in one_line(done)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("arm", "a"),
        ("iterations", "3"),
        ("runtime", "docker"),
        ("rest", "127.0.0.1:8080"),
    ],
)
def test_an_option_of_a_run_yet_to_be_made_is_refused(
    option: str, value: str, tmp_path: Path
) -> None:
    run = ("--emulated", str(tmp_path), "--runs", str(tmp_path))
    done = ringlight("crosscheck", str(MINI), *run, f"--{option}", value)
    assert done.returncode == 2
    assert (
        one_line(done)
        == f"ringlight: --{option}: without effect on a run made before (--emulated)"
    )


TREE = """
name: tree
description: Two rings over one root.
scale: {time: 20, payload: 10}
training: {model: resnet50, compute: 10 ms, batch: 16, iterations: 1, gradient: 6.8 MB}
fabric:
  servers: {s: {gpus: {g0: a, g1: a, g2: a, g3: a, g4: a, g5: a}}}
  packet_switches: {root: {ports: 3}, leaf0: {ports: 3}, leaf1: {ports: 3}, leaf2: {ports: 3}}
  links: [
    {ends: [g0, "leaf0:1"], rate: 4.5 Gbit/s}, {ends: [g1, "leaf0:2"], rate: 4.5 Gbit/s},
    {ends: [g2, "leaf1:1"], rate: 4.5 Gbit/s}, {ends: [g3, "leaf1:2"], rate: 4.5 Gbit/s},
    {ends: [g4, "leaf2:1"], rate: 4.5 Gbit/s}, {ends: [g5, "leaf2:2"], rate: 4.5 Gbit/s},
    {ends: ["leaf0:3", "root:1"], rate: 4.5 Gbit/s}, {ends: ["leaf1:3", "root:2"], rate: 4.5 Gbit/s},
    {ends: ["leaf2:3", "root:3"], rate: 4.5 Gbit/s},
  ]
jobs:
  red: {ranks: [g4, g3, g0], training: {collective: ring}}
  blue: {ranks: [g5, g1, g2], training: {collective: bidirectional-ring}}
arms: {both: {title: Both}, blue: {title: Blue, jobs: {blue: {ranks: [g5, g1, g2]}}}}
"""


def test_frames_wait_for_one_of_each_other_pair_at_the_links_that_they_share(
    tmp_path: Path,
) -> None:
    scenario = tmp_path / "tree.yaml"
    scenario.write_text(TREE)
    ours = side(
        carry_out_experiment(load(scenario), SimulationBackend(), tmp_path)[0].path
    )
    found = crosscheck(altered(ours, same), ours)
    frame_s = 8 * (9000 + ETHERNET_BYTES) / 4.5e9 * 20 * 10
    # Of each pair of red one way is shared with red and blue's two directions, and the last link with nobody.
    assert entry_of(found, "both", "red")["causes"]["turns_s"] == pytest.approx(
        (2 + 2) * frame_s
    )
    assert entry_of(found, "both", "blue")["causes"]["turns_s"] == pytest.approx(
        (2 + 2 + 1) * frame_s
    )
    assert entry_of(found, "blue", "blue")["causes"]["turns_s"] == 0.0


def test_all_reduces_that_moved_light_met_are_told_of_both_sides(
    tmp_path: Path,
) -> None:
    busy = load(MINI, sets=["training.compute=1 ms"])
    ours = side(
        carry_out_experiment(busy, SimulationBackend(), tmp_path, arms=["live"])[0].path
    )
    (run,) = ours.runs
    (action,) = run.later
    gone = min(since for _, since, _ in dark_intervals(action.result))

    def quicker(record: Record) -> Record:
        """An all-reduce that is over just before the light goes."""
        ended = (
            isinstance(record, Iteration)
            and record.compute_end < gone < record.allreduce_end
        )
        return replace(record, allreduce_end=gone) if ended else record  # type: ignore[call-arg]

    met = entry_of(crosscheck(altered(ours, same), ours), "live")["causes"]["dark_in"]
    assert met["emulated"] == met["simulated"] != []
    other = entry_of(crosscheck(altered(ours, quicker), ours), "live")["causes"][
        "dark_in"
    ]
    assert other == {"emulated": met["emulated"][1:], "simulated": met["simulated"]}


def test_a_job_that_met_another_for_less_time_is_said_to_have_and_no_cause_is_guessed(
    simulated: Side,
) -> None:
    """As if blue's ranks had all-reduced a quarter of the time: the jobs of the file share the uplink."""

    def apart(record: Record) -> Record:
        if not isinstance(record, Iteration):
            return record
        part = 0.75 if record.job == "red" else 0.25
        return replace(
            record, allreduce_end=record.compute_end + part * record.all_reduce_s
        )

    found = crosscheck(altered(simulated, apart), simulated)
    red = entry_of(found, "fragmented")
    causes = red["causes"]
    met = causes["met_s"]
    assert 0 < met["emulated"] < met["simulated"]
    assert causes["meetings_s"] == pytest.approx(
        (met["emulated"] - met["simulated"]) / 2
    )
    words = f"jobs that share links all-reduced during {1000 * met['emulated']:.0f} ms of an all-reduce"
    assert any(words in why for why in red["why"])
    assert not any("fair" in why for why in red["why"])


def test_a_crosscheck_may_shorten_a_workload(tmp_path: Path) -> None:
    whole = loaded(tmp_path, "{collective: all-reduce, size: 1 MB, iterations: 9}")
    assert [job.iterations for job in trimmed(whole, (), 2).plans[0].jobs] == [2]
