"""A comparison from the command line to the run folder, on real labs: packet switch, then grid of O-NICs."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from ringlight.experiments.record.runs import AGAIN
from tests.integration.figures import Figures
from tests.integration.test_run import assert_gone, running_command

pytestmark = pytest.mark.root

MINI = Path(__file__).parents[1] / "data" / "mini_oddl.yaml"
TWO_JOBS = MINI.with_name("mini_two_jobs.yaml")


@pytest.mark.labs
def test_a_comparison_end_to_end(tmp_path: Path) -> None:
    with running_command(
        tmp_path / "runs", "--runtime", "namespace", scenario=MINI
    ) as running:
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
    found = Figures(printed)
    found.assert_exact(4)
    assert found.of("oddl", "job train", "parameters_equal") is True
    assert found.number("oddl", "job train", "jct_ratio") > 0.5
    assert len(found.all("link_rate")) == 4 + 8
    assert set(printed["fidelity"]["switches_restarted"].values()) == {0}
    # What the events killed, and nothing else; all of it was back.
    died = {
        run.removesuffix(AGAIN): [
            (one["kind"], one["name"], one["planned"]) for one in deaths
        ]
        for run, deaths in printed["fidelity"]["processes_restarted"].items()
    }
    assert died["both"] == [("O-NIC agent", "n1", True)]
    assert died["controller"] == [("controller", "controller", True)]
    assert died["ideal"] == died["oddl"] == []

    fabric = "fabric oddl"
    assert (
        found.of("oddl", fabric, "flows")
        == found.of("oddl", fabric, "flows_expected")
        == 8 * 4 * 4
    )
    assert found.number("oddl", fabric, "setup_p50") > 0
    for arm in ("oddl", "both", "controller"):
        assert found.of(arm, "run", "payload_lost") == 0
        for counter in ("collisions", "receiver_overlaps", "misdirected"):
            assert found.of(arm, fabric, counter) == 0
    assert found.of("both", fabric, "agents_restarted") == 1
    assert (
        sum(row.value for row in found.all("control_faults") if row.arm == "both") > 0
    )
    assert found.number("controller", "event 1", "away") >= 1.0
    assert found.of("controller", fabric, "agents_restarted") == 0

    trace = json.loads((folder / "trace.json").read_text())
    assert sum(event["ph"] == "X" for event in trace["traceEvents"]) > 1000
    for name in ("report.html", "rows.csv"):
        assert (folder / name).stat().st_size > 0
    facts = json.loads((folder / "environment.json").read_text())["labs"]
    assert [(lab["fabric"], lab["lab"]) for lab in facts] == [
        ("ideal", labs[0].id),
        ("oddl", labs[1].id),
    ]
    assert facts[1]["onic_timings"]["lease_s"] > 0


def test_two_jobs_on_one_wss_end_to_end(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with running_command(runs, "--runtime", "namespace", scenario=TWO_JOBS) as command:
        code, output = command.end()
    assert code == 0, "\n".join(command.lines)
    found = Figures(json.loads(output))
    # Each job in one process, with its own seed: nothing came from the other.
    found.assert_exact(1 + 2)
    fabric = ("shared", "fabric fabric")
    assert (found.of(*fabric, "lit_pairs"), found.of(*fabric, "lit_between_jobs")) == (
        4,
        0,
    )
    assert (
        found.of(*fabric, "flows")
        == found.of(*fabric, "flows_expected")
        == 2 * 6 * 2 * 2
    )
    for counter in ("collisions", "receiver_overlaps", "misdirected", "unset_drops"):
        assert found.of(*fabric, counter) == 0
    assert found.of("shared", "run", "payload_lost") == 0


def test_ctrl_c_while_an_agent_is_away_leaves_nothing(tmp_path: Path) -> None:
    arguments = (tmp_path / "runs", "--runtime", "namespace", "--arm", "both")
    with running_command(*arguments, scenario=MINI) as running:
        running.wait_for("kill agent n1")
        lab = running.lab()
        running.process.send_signal(signal.SIGINT)
        code, output = running.end()
    assert code == 130
    assert output == ""
    assert running.lines[-1] == "ringlight: interrupted"
    assert_gone(lab)
