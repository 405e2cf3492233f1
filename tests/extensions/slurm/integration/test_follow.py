"""Slurm follows a lab's light and leaves lost GPUs alone: a real lab, and a real Slurm with six nodes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator

import httpx
import pytest

from ringlight.extensions.slurm.follow import CHECK_S
from ringlight.extensions.slurm.follower_routes import SILENT_S
from ringlight.extensions.slurm.process import obstacle
from ringlight.testbed.faults import FaultClient
from tests.extensions.slurm.slurm_lab import HOME, RINGLIGHT, ROOT, SlurmLab, slurm_lab

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(obstacle() is not None, reason=str(obstacle())),
]

AT_HOME = {"tor0": "g[0-2]", "tor1": "g[3-5]"}
#: g2 and g3 with their places exchanged.
SWAPPED = HOME | {"g2": "tor1:1", "g3": "tor0:3"}
SWAPPED_LEAVES = {"tor0": "g[0-1,3]", "tor1": "g[2,4-5]"}


@pytest.fixture(scope="module")
def shared() -> Iterator[SlurmLab]:
    with slurm_lab("follow") as lab:
        yield lab


@pytest.fixture
def lab(shared: SlurmLab) -> Iterator[SlurmLab]:
    """The lab, as it was at its beginning before the test and after it."""
    try:
        yield shared
    finally:
        shared.cancel_all()
        for gpu in shared.call("GET", "/v1/health")["lost_gpus"]:
            shared.fault("restore", f"gpu {gpu}")
        shared.light(HOME)
        shared.until(lambda: shared.leaves() == AT_HOME, "the light of the beginning")
        shared.until(lambda: set(shared.states().values()) == {"IDLE"}, "idle nodes")


def reconfigurations(lab: SlurmLab) -> int:
    """Return how often slurmctld was reconfigured."""
    log = (lab.folder / "slurmctld.log").read_text()
    return log.count("Processing Reconfiguration Request")


def test_slurm_has_the_light_and_places_jobs_by_it(lab: SlurmLab) -> None:
    assert lab.leaves() == AT_HOME
    job = lab.submit("sleep 60", "-N3", "--switches=1", "--nodelist=g0,g3")
    lab.until(lambda: lab.job(job)[0] == "PENDING", "a job that waits for a switch")
    generation = lab.light(SWAPPED)
    lab.until(lambda: lab.follower()["generation"] == generation, "the report", 3.0)
    assert lab.leaves() == SWAPPED_LEAVES
    lab.until(lambda: lab.job(job) == ("RUNNING", ["g0", "g1", "g3"]), "the job", 15.0)


def test_what_changes_nothing_costs_nothing(lab: SlurmLab) -> None:
    before = reconfigurations(lab)
    # A fibre to another port of the same packet switch, and back.
    assert lab.light(HOME | {"g2": "tor0:4"})
    generation = lab.light(HOME)
    lab.until(lambda: lab.follower()["generation"] == generation, "the report")
    assert reconfigurations(lab) == before


def test_a_refused_change_leaves_slurm_as_it_is(lab: SlurmLab) -> None:
    before = reconfigurations(lab)
    lab.call("POST", "/v1/optical-switches/ocs0/faults", {"kind": "deny", "count": 1})
    body = {"circuits": [list(pair) for pair in SWAPPED.items()]}
    assert lab.api.put("/v1/circuits", json=body).status_code == 502
    generation = lab.call("GET", "/v1/circuits")["generation"]
    lab.until(lambda: lab.follower()["generation"] == generation, "the report")
    assert lab.leaves() == AT_HOME
    assert reconfigurations(lab) == before


def test_a_gpu_without_light_is_a_leaf_alone(lab: SlurmLab) -> None:
    lab.light({gpu: port for gpu, port in HOME.items() if gpu != "g5"})
    leaves = {"dark-g5": "g5", "tor0": "g[0-2]", "tor1": "g[3-4]"}
    lab.until(lambda: lab.leaves() == leaves, "a dark GPU")
    job = lab.submit("true", "--nodelist=g5")
    lab.until(lambda: lab.job(job)[0] == "COMPLETED", "a job of one node")


def test_a_lost_gpu_is_drained_its_job_runs_elsewhere_and_it_comes_back(
    lab: SlurmLab,
) -> None:
    job = lab.submit("sleep 300", "-N1", "--nodelist=g1")
    lab.until(lambda: lab.job(job)[0] == "RUNNING", "the job")
    # The requeued job may run anywhere.
    lab.fault("lose", "gpu g1")
    lab.until(lambda: lab.follower()["drained"] == ["g1"], "the report")
    assert "DRAIN" in lab.states()["g1"]
    assert lab.reason("g1") == "ringlight: GPU g1 is lost"
    lab.slurm("scontrol", "update", f"JobId={job}", "ReqNodeList=")
    lab.until(
        lambda: lab.job(job)[0] == "RUNNING" and lab.job(job)[1] != ["g1"], "a spare"
    )
    lab.fault("restore", "gpu g1")
    lab.until(lambda: lab.states()["g1"] == "IDLE", "the node")
    assert lab.follower()["drained"] == []


def test_a_job_that_slurm_cannot_requeue_is_left_to_its_user(lab: SlurmLab) -> None:
    with subprocess.Popen(
        ["srun", "--nodelist=g2", "sleep", "300"],
        env={**os.environ, "SLURM_CONF": f"{lab.folder}/slurm.conf"},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as srun:
        try:
            lab.until(lambda: lab.states()["g2"] == "ALLOCATED", "the job")
            lab.fault("lose", "gpu g2")
            lab.until(lambda: "is not requeued" in output(lab), "a line about the job")
            # Three checks later, it has not been asked for again.
            time.sleep(3 * CHECK_S)
            assert output(lab).count("is not requeued") == 1
            assert lab.follower()["problem"] is None
            assert srun.poll() is None
        finally:
            srun.terminate()


def output(lab: SlurmLab) -> str:
    return (lab.folder / "follower.out").read_text()


def test_a_node_that_somebody_else_drained_is_left_alone(lab: SlurmLab) -> None:
    lab.slurm("scontrol", "update", "NodeName=g4", "State=DRAIN", "Reason=dust")
    lab.fault("lose", "gpu g4")
    lab.fault("lose", "gpu g5")
    lab.until(lambda: lab.follower()["drained"] == ["g5"], "the other lost one")
    assert lab.reason("g4") == "dust"
    for gpu in ("g4", "g5"):
        lab.fault("restore", f"gpu {gpu}")
    lab.until(lambda: lab.states()["g5"] == "IDLE", "the follower's own node")
    assert "DRAIN" in lab.states()["g4"]
    lab.slurm("scontrol", "update", "NodeName=g4", "State=RESUME")


def test_the_state_of_the_follower_is_shown_and_other_reports_are_refused(
    lab: SlurmLab,
) -> None:
    lab.fault("lose", "gpu g5")
    lab.until(lambda: lab.follower()["drained"] == ["g5"], "the report")
    words = [*RINGLIGHT, "--controller", str(lab.api.base_url), "slurm", "follower"]
    shown = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    )
    assert "g5" in shown.stdout
    answer = lab.api.put("/v1/slurm/follower", json={"generation": "new"})
    assert answer.status_code == 422
    assert "generation" in answer.json()["detail"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("name", ["follower", "slurmctld"])
def test_after_a_kill_or_a_freeze_slurm_catches_up(
    lab: SlurmLab, name: str, number: signal.Signals
) -> None:
    lab.fault("lose", "gpu g1")
    lab.until(lambda: lab.follower()["drained"] == ["g1"], "a drained node")
    pid = lab.pid(name)
    try:
        os.kill(pid, number)
        if number == signal.SIGSTOP:
            lab.until(lambda: name in lab.health(), "its name in health")
        generation = lab.light(SWAPPED)
        lab.fault("restore", "gpu g1")
        lab.fault("lose", "gpu g5")
        assert lab.call("GET", "/v1/circuits")["generation"] == generation
    finally:
        if number == signal.SIGSTOP:
            os.kill(pid, signal.SIGCONT)
    lab.until(lambda: lab.follower().get("generation") == generation, "the light")
    lab.until(lambda: lab.follower()["drained"] == ["g5"], "the lost GPU")
    assert lab.leaves() == SWAPPED_LEAVES
    lab.until(lambda: lab.states()["g1"] == "IDLE", "the node that came back")
    lab.until(lambda: "lurm" not in lab.health(), "health without a word of Slurm")


def test_light_that_moved_while_the_controller_was_away(lab: SlurmLab) -> None:
    health = lab.call("GET", "/v1/health")
    generation = lab.light(SWAPPED)
    # It dies before it has answered.
    with contextlib.suppress(httpx.TransportError):
        lab.fault("kill", "controller", back_after_s=1.0)
    lab.until(lambda: _restarts(lab) > health["restarts"], "a new controller")
    lab.until(lambda: lab.follower().get("generation", 0) >= generation, "the light")
    assert lab.leaves() == SWAPPED_LEAVES


def test_jobs_start_while_the_controller_stands_still_and_slurm_catches_up(
    lab: SlurmLab,
) -> None:
    with lab.frozen_controller():
        job = lab.submit("true", "-N3", "--switches=1")
        lab.until(lambda: lab.job(job)[0] == "COMPLETED", "a job of three nodes")
        lab.until(lambda: "did not answer" in output(lab), "a line of the follower")
        with FaultClient.of_inventory(lab.folder.parent / "inventory.json") as faults:
            faults.ask("lose", "gpu g1")
        # Its last report is then too old for health.
        time.sleep(SILENT_S)
    lab.until(lambda: lab.follower().get("drained") == ["g1"], "the lost GPU")
    lab.fault("restore", "gpu g1")
    # Packet switches come back to the controller, too.
    lab.until(lambda: not lab.health(), "a healthy lab")
    generation = lab.light(SWAPPED)
    lab.until(lambda: lab.follower()["generation"] == generation, "the report")
    assert lab.leaves() == SWAPPED_LEAVES


def _restarts(lab: SlurmLab) -> int:
    try:
        return int(lab.call("GET", "/v1/health")["restarts"])
    except httpx.TransportError:
        return -1
