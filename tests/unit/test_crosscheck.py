"""The cross-check: differences, which side is called off and why, trimmed scenarios, wrong input."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.language.text import ScenarioError
from experiments.runner.progress import Reporter
from scenarios import fidelity
from scenarios.cli_crosscheck import compare, run_crosscheck, trimmed
from scenarios.comparison import Comparison, load
from scenarios.crosscheck import Side, crosscheck, light_s, series
from scenarios.fidelity import Reason
from scenarios.records import Event, Run, read_lines, read_runs
from scenarios.runner import Options
from scenarios.schema import Scenario
from scenarios.simulated import SimulationOptions, simulate
from tests.unit.test_cli import BUNDLED, ROOT, one_line, ringlight

MINI = ROOT / "tests" / "data" / "mini.yaml"
ODDL = ROOT / "scenarios" / "oddl_4.yaml"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated run of the small scenario."""
    return simulate(load(MINI), SimulationOptions(tmp_path_factory.mktemp("runs")), Reporter())[0]


def side(folder: Path) -> Side:
    result, environment = (
        json.loads((folder / name).read_text()) for name in ("result.json", "environment.json")
    )
    return Side("runs/x", read_lines(folder / "events.jsonl"), result, environment)


def altered(original: Side, change: Callable[[Event], Event], reasons: tuple[Reason, ...] = ()) -> Side:
    """As if it had been emulated, with its events changed and links that gave all that they should."""
    share = original.environment["simulation"]["payload_share"]
    events = [change(copy.deepcopy(event)) for event in original.events]
    events += [
        {
            "t": 0,
            "event": "link_rate",
            "link": "x",
            "direction": way,
            "set_bps": 1e8,
            "measured_bps": share * 1e8,
        }
        for way in ("tor0 to tor1", "tor1 to tor0", "g0 to g1", "g2 to g3")
    ]
    fidelity = {"verdict": "good", "reasons": [reason.as_json() for reason in reasons]}
    result = {**original.result, "runtime": "docker", "run": "emulated", "fidelity": fidelity}
    return Side("runs/y", events, result, {"runtime": "docker"})


def stretched(event: Event, share: float, part: str) -> Event:
    """The event of a run in which every iteration's compute or all-reduce takes ``share`` more."""
    if event["event"] == "iteration":
        length = {
            "compute": event["compute_end"] - event["compute_start"],
            "all_reduce": event["allreduce_end"] - event["compute_end"],
        }[part]
        if part == "compute":
            event["compute_end"] += share * length
        event["allreduce_end"] += share * length
    return event


def entry_of(found: dict[str, Any], run: str = "a-regrouped-1", job: str = "red") -> dict[str, Any]:
    return next(entry for entry in found["entries"] if (entry["run"], entry["job"]) == (run, job))


def test_a_run_agrees_with_itself(folder: Path) -> None:
    simulated = side(folder)
    found = crosscheck(altered(simulated, lambda event: event), simulated)
    runs = read_runs(simulated.events)
    assert len(found["entries"]) == sum(len(run.jobs) for run in runs)
    assert found["within_limit"]
    assert found["not_compared"] == []
    for entry in found["entries"]:
        for figure in ("iteration_s", "allreduce_s", "completion_s"):
            assert entry[figure]["difference_percent"] == pytest.approx(0.0, abs=1e-9)
        assert entry["off"] == "neither"
        assert entry["series"]["emulated"] == entry["series"]["simulated"]


def test_difference_is_of_the_simulated_from_the_emulated(folder: Path) -> None:
    simulated = side(folder)
    found = crosscheck(altered(simulated, lambda event: stretched(event, 0.25, "all_reduce")), simulated)
    entry = entry_of(found)
    assert entry["allreduce_s"]["difference_percent"] == pytest.approx(-20.0)
    iteration = entry["iteration_s"]
    expected = 100 * (iteration["simulated"] / iteration["emulated"] - 1)
    assert iteration["difference_percent"] == pytest.approx(expected)
    assert not entry["within_limit"]
    strict = crosscheck(
        altered(simulated, lambda event: stretched(event, 0.25, "all_reduce")), simulated, 1.0
    )
    assert not strict["within_limit"]


def test_computing_does_not_hide_how_far_the_all_reduce_is_off(folder: Path) -> None:
    """13 % of the all-reduce within 10 % of the iteration, most of which is computing on either side."""

    def as_emulated(event: Event) -> Event:
        if event["event"] == "iteration":
            exchange = event["allreduce_end"] - event["compute_end"]
            event["compute_start"] -= 4 * exchange
            event["allreduce_end"] += 0.15 * exchange
        return event

    def computing_longer(event: Event) -> Event:
        if event["event"] == "iteration":
            event["compute_start"] -= 4 * (event["allreduce_end"] - event["compute_end"])
        return event

    original = side(folder)
    simulated = Side("runs/x", [computing_longer(copy.deepcopy(e)) for e in original.events], original.result,
                     original.environment)  # fmt: skip
    found = crosscheck(altered(original, as_emulated), simulated)
    for entry in found["entries"]:
        assert abs(entry["iteration_s"]["difference_percent"]) < 5
        assert entry["allreduce_s"]["difference_percent"] == pytest.approx(-13.0, abs=0.1)
        assert not entry["within_limit"]
        assert entry["off"] != "neither"
        assert entry["why"] != ["they agree"]
    assert not found["within_limit"]
    assert abs(found["worst"]["iteration_s"]["difference_percent"]) < 5
    assert found["worst"]["allreduce_s"]["difference_percent"] == pytest.approx(-13.0, abs=0.1)
    # Within a wider limit it is inside.
    assert crosscheck(altered(original, as_emulated), simulated, 14.0)["within_limit"]


def test_a_longer_all_reduce_is_the_simulations_to_answer_for(folder: Path) -> None:
    simulated = side(folder)
    emulated = altered(simulated, lambda event: stretched(event, 0.4, "all_reduce"))
    extra = [
        {"t": 0, "event": "done", "run": run.name, "job": job, "rank": rank, "retransmits": 900}
        for run in read_runs(simulated.events)
        for job, record in run.jobs.items()
        for rank in range(len(record.gpus))
    ]
    emulated = Side(emulated.name, [*emulated.events, *extra], emulated.result, emulated.environment)
    entry = entry_of(crosscheck(emulated, simulated))
    assert entry["off"] == "simulation"
    assert "TCP" in entry["why"][0]
    assert entry["causes"]["rest_s"] == pytest.approx(entry["causes"]["gap_s"], rel=1e-6)


def test_the_time_of_software_that_stands_for_hardware_is_the_emulations(folder: Path) -> None:
    simulated = side(folder)
    entry = entry_of(crosscheck(altered(simulated, lambda e: stretched(e, 0.4, "all_reduce")), simulated))
    assert entry["off"] == "emulation"
    assert "software switches" in entry["why"][0]


def test_late_timers_are_the_emulations_fault(folder: Path) -> None:
    simulated = side(folder)
    entry = entry_of(crosscheck(altered(simulated, lambda e: stretched(e, 0.1, "compute")), simulated))
    assert entry["off"] == "emulation"
    assert "timers" in entry["why"][0]
    assert entry["causes"]["timers_s"] == pytest.approx(entry["causes"]["gap_s"], rel=1e-6)


def test_slow_links_are_the_emulations_fault(folder: Path) -> None:
    simulated = side(folder)
    emulated = altered(simulated, lambda event: stretched(event, 0.25, "all_reduce"))
    events = [
        {**event, "measured_bps": event["measured_bps"] / 1.25} if event["event"] == "link_rate" else event
        for event in emulated.events
    ]
    emulated = Side(emulated.name, events, emulated.result, emulated.environment)
    entry = entry_of(crosscheck(emulated, simulated))
    assert entry["off"] == "emulation"
    assert "links" in entry["why"][0]
    assert entry["causes"]["links_s"] == pytest.approx(entry["causes"]["gap_s"], rel=1e-6)


def test_light_that_comes_later_is_counted_by_iteration(tmp_path_factory: pytest.TempPathFactory) -> None:
    place = simulate(
        trimmed(load(ODDL), ["oddl"], 2), SimulationOptions(tmp_path_factory.mktemp("r")), Reporter()
    )
    simulated = side(place[0])
    run = next(run for run in read_runs(simulated.events) if run.noted("flow"))
    flows, ranks = len(run.noted("flow")), len(run.jobs["train"].gpus)

    def later(event: Event) -> Event:
        if event["event"] == "flow":
            event["t_lit"] += 0.002
        return event

    entry = entry_of(crosscheck(altered(simulated, later), simulated), run.name, "train")
    assert entry["causes"]["set_up_s"] == pytest.approx(0.002 * flows / ranks / 2)
    assert entry["causes"]["rest_s"] == pytest.approx(-entry["causes"]["set_up_s"], abs=1e-3)


def test_a_rings_changes_of_light_are_counted_by_iteration(folder: Path) -> None:
    simulated = side(folder)
    run = next(run for run in read_runs(simulated.events) if run.name == "a-regrouped-1")
    iterations = len(series(run.jobs["red"]))

    def noted(total_s: float) -> Run:
        changes = [{"step": step, "total_s": total_s, "write_s": None} for step in (0, 1, 2)]
        return replace(run, notes=({"event": "ring", "set_ups": changes},))

    assert light_s([run], "red") is None
    assert light_s([noted(0.05)], "red") == pytest.approx(3 * 0.05 / iterations)


def test_busy_processors_are_the_emulations_fault(folder: Path) -> None:
    simulated = side(folder)
    reasons = (
        Reason("processors_busy", "bad", {"run": "a-regrouped-1", "busy": 0.99}),
        Reason("all_reduce_over_ideal", "bad", {"case": "a", "over": 2.0}),
    )
    emulated = altered(simulated, lambda event: stretched(event, 0.4, "all_reduce"), reasons)
    found = crosscheck(emulated, simulated)
    assert entry_of(found)["off"] == "emulation"
    assert entry_of(found)["why"][-1] == f"the emulation says of itself: {reasons[0].text}"
    assert entry_of(found, "a-fragmented-1")["why"][-1] != entry_of(found)["why"][-1]


def test_only_what_a_run_says_of_a_jobs_own_links_counts(folder: Path) -> None:
    simulated = side(folder)
    ways = (("g0 to g1", 0.84), ("g8 to g9", 0.83), ("tor0 to tor1", 0.82))
    reasons = tuple(
        Reason("link_rate", "bad", {"link": f"of {way}", "direction": way, "ratio": ratio})
        for way, ratio in ways
    )
    emulated = altered(simulated, lambda event: stretched(event, 0.4, "all_reduce"), reasons)
    found = crosscheck(emulated, simulated)
    assert entry_of(found)["causes"]["verdict"] == [reasons[0].as_json()]
    assert entry_of(found, "a-fragmented-1")["causes"]["verdict"] == [reasons[2].as_json()]


def test_how_a_reason_is_worded_decides_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fidelity._SENTENCES, "link_rate", lambda of: "a rate was missed")
    simulated = side(folder)
    reason = Reason("link_rate", "bad", {"link": "of g0", "direction": "g0 to g1", "ratio": 0.5})
    emulated = altered(simulated, lambda event: stretched(event, 0.4, "all_reduce"), (reason,))
    entry = entry_of(crosscheck(emulated, simulated))
    assert entry["causes"]["verdict"] == [reason.as_json()]
    assert entry["why"][-1] == "the emulation says of itself: a rate was missed"


def test_a_shorter_all_reduce_is_said_to_be_the_simulations(folder: Path) -> None:
    simulated = side(folder)
    emulated = altered(simulated, lambda event: stretched(event, -0.3, "all_reduce"))
    entry = entry_of(crosscheck(emulated, simulated))
    assert entry["iteration_s"]["difference_percent"] > 0
    assert entry["off"] == "simulation"
    assert "passes on the part of a chunk" in entry["why"][0]


def test_repetitions_are_averaged_and_what_one_side_lacks_is_named(folder: Path) -> None:
    simulated = side(folder)
    emulated = altered(simulated, lambda event: stretched(event, 0.1, "all_reduce"))
    again = [
        stretched(copy.deepcopy(event), 0.2, "all_reduce") | {"run": "a-regrouped-2"}
        for event in emulated.events
        if event.get("run") == "a-regrouped-1"
    ]
    events = [event for event in emulated.events if event.get("run") != "live"]
    both = Side(emulated.name, [*events, *again], emulated.result, emulated.environment)
    found = crosscheck(both, simulated)
    assert found["not_compared"] == ["live"]
    entry = entry_of(found)
    assert entry["repeats"] == 2
    once = entry_of(crosscheck(emulated, simulated))["allreduce_s"]["emulated"]
    assert entry["allreduce_s"]["emulated"] == pytest.approx(once * (1.1 + 1.1 * 1.2) / 2 / 1.1)


def test_series_is_of_the_slowest_rank(folder: Path) -> None:
    run = read_runs(side(folder).events)[0]
    job = run.jobs["red"]
    values = series(job)
    assert len(values) == len({it.index for it in job.iterations})
    assert values[0] == max(it.end - it.start for it in job.iterations if it.index == 0)


def test_nothing_in_common_is_refused(folder: Path) -> None:
    simulated = side(folder)
    empty = Side("runs/y", [], simulated.result, {})
    with pytest.raises(ValueError, match="no finished run in common"):
        crosscheck(empty, simulated)


def test_the_page_says_how_far_apart_and_why(folder: Path, tmp_path: Path) -> None:
    emulated = tmp_path / "emulated"
    shutil.copytree(folder, emulated)
    simulated = side(folder)
    slow = altered(simulated, lambda event: stretched(event, 0.9, "all_reduce"))
    (emulated / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in slow.events))
    (emulated / "result.json").write_text(json.dumps(slow.result))
    place, found = compare(load(MINI), emulated, folder, tmp_path, 10.0)
    assert not found["within_limit"]
    assert json.loads((place / "crosscheck.json").read_text()) == found
    page = (place / "crosscheck.html").read_text()
    assert "are apart by up to" in page
    assert "kernel, software switches and workers" in page
    assert 'class="bad"' in page
    assert {path.name for path in (place / "plots").glob("*.png")} == {"differences.png", "iterations.png"}


def test_fewer_iterations_leave_out_a_regroup_that_they_are_too_few_for() -> None:
    checked = load(BUNDLED)
    assert isinstance(checked, Scenario)
    assert trimmed(checked, (), None) is checked
    short = trimmed(checked, (), 9)
    assert short.iterations(4) == short.iterations(2) == 9
    assert isinstance(short, Scenario)
    assert short.spec.live == checked.spec.live
    shorter = trimmed(checked, (), 3)
    assert isinstance(shorter, Scenario)
    assert shorter.spec.live is None
    assert shorter.spec.cases == checked.spec.cases


def test_one_fabric_is_compared_with_the_baseline_alone() -> None:
    checked = load(ODDL)
    assert isinstance(checked, Comparison)
    other = next(name for name in checked.settings if name != checked.spec.baseline)
    short = trimmed(checked, [other], 2)
    assert isinstance(short, Comparison)
    assert set(short.settings) == {other, checked.spec.baseline}
    assert short.spec.trouble == {}
    with pytest.raises(ScenarioError, match="there is no fabric torus; there are"):
        trimmed(checked, ["torus"], None)
    with pytest.raises(ScenarioError, match="leave --fabric out"):
        trimmed(load(BUNDLED), ["a"], None)


def check(path: Path, tmp_path: Path, **options: Any) -> None:
    run_crosscheck(
        path,
        Options(folder=tmp_path),
        SimulationOptions(tmp_path),
        Reporter(),
        limit_percent=10.0,
        **options,
    )


def test_a_run_that_cannot_be_checked_against_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="this run was simulated"):
        check(MINI, tmp_path, emulated=folder)
    with pytest.raises(ScenarioError, match=r"environment\.json: cannot be read"):
        check(MINI, tmp_path, emulated=tmp_path)
    emulated = tmp_path / "emulated"
    shutil.copytree(folder, emulated)
    (emulated / "environment.json").write_text(json.dumps({"runtime": "docker"}))
    with pytest.raises(ScenarioError, match="a run of scenario mini, not of disaggregation"):
        check(BUNDLED, tmp_path, emulated=emulated)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("fabric", "a"),
        ("iterations", "3"),
        ("runtime", "docker"),
        ("repeat", "1"),
        ("rest", "127.0.0.1:8080"),
    ],
)
def test_an_option_of_a_run_yet_to_be_made_is_refused(option: str, value: str, tmp_path: Path) -> None:
    run = ("--emulated", str(tmp_path), "--runs", str(tmp_path))
    done = ringlight("crosscheck", str(MINI), *run, f"--{option}", value)
    assert done.returncode == 2
    assert one_line(done) == f"ringlight: --{option}: without effect on a run made before (--emulated)"


def test_wrong_input_is_one_line(tmp_path: Path) -> None:
    done = ringlight("crosscheck", str(ODDL), "--fabric", "torus", "--runs", str(tmp_path))
    assert done.returncode == 2
    assert "there is no fabric torus" in one_line(done)
    assert not list(tmp_path.iterdir())
