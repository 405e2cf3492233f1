"""A comparison from the command line to the run folder, on real labs: packet switch, then grid of O-NICs."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import yaml

from tests.integration.test_run import assert_gone, running_command

pytestmark = [pytest.mark.root, pytest.mark.alone]

MINI = Path(__file__).parents[1] / "data" / "mini_oddl.yaml"
TWO_JOBS = MINI.with_name("mini_two_jobs.yaml")


def test_a_comparison_end_to_end(tmp_path: Path) -> None:
    with running_command(tmp_path / "runs", "--runtime", "namespace", scenario=MINI) as running:
        code, output = running.end()
    assert code == 0, "\n".join(running.lines)
    labs = running.labs()
    assert len(labs) == 2
    for lab in labs:
        assert_gone(lab)
    printed = json.loads(output)
    (folder,) = (tmp_path / "runs").iterdir()
    assert printed == json.loads((folder / "result.json").read_text())
    assert printed["complete"] is True
    assert printed["comparison"]["parameters_identical"] is True
    assert printed["comparison"]["accuracy_equal"] is True
    assert printed["comparison"]["ratios"]["oddl"]["training_time"] > 0.5
    assert len(printed["fidelity"]["links"]) == 4 + 8
    assert set(printed["fidelity"]["switches_restarted"].values()) == {0}

    oddl = printed["fabrics"]["oddl"]
    assert oddl["flows"]["count"] == oddl["flows"]["expected"] == 8 * 4 * 4
    assert oddl["flows"]["setup_ms"]["p50"] > 0
    for run in (oddl, *printed["trouble"].values()):
        assert run["payload"]["lost_bytes"] == 0
        assert run["parameters_identical"] is True
        for counter in ("collisions", "receiver_overlaps", "misdirected"):
            assert run["light"][counter] == 0
    assert printed["trouble"]["both"]["light"]["agents_restarted"] == 1
    assert sum(printed["trouble"]["both"]["control_network"].values()) > 0
    assert printed["trouble"]["controller"]["away_s"] >= 1.0
    assert printed["trouble"]["controller"]["light"]["agents_restarted"] == 0

    trace = json.loads((folder / "trace.json").read_text())
    assert sum(event["ph"] == "X" for event in trace["traceEvents"]) > 1000
    for name in ("report.html", "plots/grid-oddl.png", "plots/flows-oddl.svg", "plots/trouble-both.png"):
        assert (folder / name).stat().st_size > 0
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["labs"] == {"ideal": labs[0].id, "oddl": labs[1].id}
    assert environment["onic_timings"]["oddl"]["lease_s"] > 0


def test_two_jobs_on_one_wss_end_to_end(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with running_command(runs, "--runtime", "namespace", scenario=TWO_JOBS) as command:
        code, output = command.end()
    assert code == 0, "\n".join(command.lines)
    shared = json.loads(output)["fabrics"]["shared"]
    # Each job in one process, with its own seed: nothing came from the other.
    assert [job["parameters_identical"] for job in shared["jobs"].values()] == [True, True]
    assert shared["lit"] == {"pairs": 4, "between_jobs": 0}
    assert shared["flows"]["count"] == shared["flows"]["expected"] == 2 * 6 * 2 * 2
    for counter in ("collisions", "receiver_overlaps", "misdirected", "unset_drops"):
        assert shared["light"][counter] == 0
    assert shared["payload"]["lost_bytes"] == 0


def test_ctrl_c_while_an_agent_is_away_leaves_nothing(tmp_path: Path) -> None:
    scenario = yaml.safe_load(MINI.read_text())
    # The grid first: nothing else is run before its agent is killed.
    scenario["fabrics"] = dict(reversed(scenario["fabrics"].items()))
    scenario["training"]["iterations"] = 2
    (tmp_path / "grid_first.yaml").write_text(yaml.safe_dump(scenario, sort_keys=False))
    arguments = (tmp_path / "runs", "--runtime", "namespace")
    with running_command(*arguments, scenario=tmp_path / "grid_first.yaml") as running:
        running.wait_for("agent of n1 killed")
        lab = running.lab()
        running.process.send_signal(signal.SIGINT)
        code, output = running.end()
    assert code == 130
    assert output == ""
    assert running.lines[-1] == "ringlight: interrupted"
    assert_gone(lab)
