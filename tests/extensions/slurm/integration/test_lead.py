"""Light follows Slurm: a real lab, and a real Slurm with six nodes whose jobs claim their GPUs."""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from ringlight.controller.jobs.laps import Laps
from ringlight.extensions.slurm.follow import CHECK_S
from ringlight.extensions.slurm.process import obstacle
from ringlight.extensions.slurm.prolog import CLAIM_S, RESTART_S
from ringlight.extensions.slurm.steps import lab_of, steps
from ringlight.testbed.emulation.clean import clean
from ringlight.testbed.freezes import families
from tests.extensions.slurm.slurm_lab import HOME, SlurmLab, down, slurm_lab

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(obstacle() is not None, reason=str(obstacle())),
]

NOBODY = 65534
#: Slurm stores its state up to 5 s late, and forgets later starts when it is killed.
STORED_S = 8.0
RINGLIGHT = f"{sys.executable} -m ringlight.experiments.cli.app"


@pytest.fixture(scope="module")
def shared() -> Iterator[SlurmLab]:
    with slurm_lab("lead", "--runtime", "namespace") as lab:
        yield lab


@pytest.fixture
def lab(shared: SlurmLab) -> Iterator[SlurmLab]:
    """The lab, with its first light and without claims before the test and after it."""
    try:
        yield shared
    finally:
        shared.slurm("scancel", "--user=root", "--state=PENDING")
        shared.cancel_all()
        shared.until(lambda: not claims(shared), "no claim")
        shared.until(lambda: set(shared.states().values()) == {"IDLE"}, "idle nodes")
        shared.light(HOME)


def claims(lab: SlurmLab) -> dict[str, Any]:
    """Return the claims that have GPUs, by name."""
    every = lab.call("GET", "/v1/claims")
    return {claim["name"]: claim for claim in every if claim["state"] != "FAILED"}


def switches(lab: SlurmLab, *gpus: str) -> set[str]:
    """Return the packet switches that the light of these GPUs reaches."""
    ports = {gpu["name"]: gpu["attached"] for gpu in lab.call("GET", "/v1/gpus")}
    return {port.partition(":")[0] for gpu in gpus for port in ports[gpu]}


def refuse_light(lab: SlurmLab, count: int) -> None:
    fault = {"kind": "deny", "count": count}
    lab.call("POST", "/v1/optical-switches/ocs0/faults", fault)


def test_a_job_has_its_light_before_it_starts_and_its_claim_until_it_ends(
    lab: SlurmLab,
) -> None:
    assert len(switches(lab, "g0", "g3")) == 2
    job = lab.submit("sleep 60", "-N2", "--nodelist=g0,g3")
    lab.until(lambda: lab.job(job)[0] == "RUNNING", "the job")
    lab.until(lambda: claims(lab).keys() == {f"slurm-{job}"}, "its claim")
    assert len(switches(lab, "g0", "g3")) == 1
    lab.slurm("scancel", job)
    lab.until(lambda: not claims(lab), "a released claim")
    # Light stays.
    assert len(switches(lab, "g0", "g3")) == 1


def test_tasks_of_a_user_are_in_the_network_of_their_gpu(lab: SlurmLab) -> None:
    words = ("srun", "-N4", f"--uid={NOBODY}", "--chdir=/tmp", "--label", "sh", "-c")
    text = lab.slurm(
        *words,
        "id -u; ip -br address show eth0; cat /proc/sys/net/ipv4/tcp_congestion_control",
    )
    addresses = [gpu["ip"] for gpu in lab.call("GET", "/v1/gpus")][:4]
    lines = [line.split() for line in text.splitlines()]
    for rank, address in enumerate(addresses):
        mine = [words[1:] for words in lines if words[0] == f"{rank}:"]
        assert mine[0] == [str(NOBODY)]
        assert mine[1][2] == f"{address}/16"
        assert mine[2] == ["reno"]


def test_jobs_one_after_another_on_the_same_nodes_do_not_meet_old_claims(
    lab: SlurmLab,
) -> None:
    for _ in range(5):
        lab.slurm("srun", "-N2", "--nodelist=g0,g3", "true")


def test_two_jobs_at_once_both_have_their_light(lab: SlurmLab) -> None:
    pairs = [("g0", "g3"), ("g1", "g4")]
    jobs = [lab.submit("sleep 60", "-N2", f"--nodelist={','.join(p)}") for p in pairs]
    for job in jobs:
        lab.until(lambda job=job: lab.job(job)[0] == "RUNNING", "the job")  # type: ignore[misc]
    assert claims(lab).keys() == {f"slurm-{job}" for job in jobs}
    assert [len(switches(lab, *pair)) for pair in pairs] == [1, 1]


def test_a_refused_job_runs_once_light_can_be_had(lab: SlurmLab) -> None:
    refuse_light(lab, 1)
    job = lab.submit("sleep 60", "-N2", "--nodelist=g0,g3")

    def shown() -> str:
        return lab.slurm("scontrol", "show", "job", job)

    refused = "AdminComment=ringlight: refusal 1 of 3: optical switch ocs0: "
    lab.until(lambda: refused in shown(), "the reason of the refusal")
    lab.until(lambda: lab.job(job)[0] == "RUNNING", "the job")
    assert "Restarts=1" in shown()
    assert f"AdminComment=ringlight: claim slurm-{job}, " in shown()
    assert set(lab.states().values()) <= {"IDLE", "ALLOCATED"}


def test_a_job_is_held_after_its_third_refusal(lab: SlurmLab) -> None:
    refuse_light(lab, 3)
    job = lab.submit("sleep 60", "-N2", "--nodelist=g0,g3")
    lab.until(lambda: _is_held(lab, job), "a held job")
    assert not claims(lab)
    assert set(lab.states().values()) == {"IDLE"}
    lab.slurm("scontrol", "release", job)
    lab.until(lambda: lab.job(job)[0] == "RUNNING", "the released job")


def _is_held(lab: SlurmLab, job: str) -> bool:
    shown = lab.slurm("scontrol", "show", "job", job)
    return "Priority=0" in shown and lab.job(job)[0] == "PENDING"


def test_a_job_of_more_nodes_than_a_packet_switch_has_is_refused_at_once(
    lab: SlurmLab,
) -> None:
    with pytest.raises(AssertionError, match="Node count specification invalid"):
        lab.slurm("srun", "-N5", "true")


def test_a_gpu_that_a_job_of_ringlight_holds_is_not_entered(lab: SlurmLab) -> None:
    spec = {"name": "own", "ranks": ["g0", "g3"], "gradient_bytes": 9640}
    spec |= {"compute_s": 0, "iterations": 1, "hold": True}
    lab.call("POST", "/v1/jobs", spec)
    lab.until(lambda: lab.call("GET", "/v1/jobs/own")["state"] == "READY", "READY")
    try:
        with pytest.raises(AssertionError, match="PrologSlurmctld failed"):
            lab.slurm("srun", "-N1", "--nodelist=g0", "true")
    finally:
        lab.call("DELETE", "/v1/jobs/own")
    lab.until(lambda: not claims(lab), "the end of the job")
    lab.slurm("srun", "-N1", "--nodelist=g0", "true")


def test_an_all_reduce_under_srun_is_as_fast_as_our_own_job(lab: SlurmLab) -> None:
    """With the same GPUs, bytes and algorithm, after a claim and after a regrouping of ours."""
    bytes_, rounds = 2_000_000, 6
    words = f"slurm allreduce --bytes {bytes_}B --repeat {rounds} --json"
    gpus = ["g0", "g1", "g3", "g4"]
    task = ("sh", "-c", f"{RINGLIGHT} {words}")
    text = lab.slurm("srun", "-N4", f"--nodelist={','.join(gpus)}", *task)
    slurms = json.loads(text)
    assert slurms["exact"]
    lab.until(lambda: not claims(lab), "a released claim")
    spec = {"name": "ring", "ranks": gpus, "gradient_bytes": bytes_, "compute_s": 0}
    lab.call("POST", "/v1/jobs", spec | {"iterations": rounds, "seed": 7})
    ended = ("SUCCEEDED", "FAILED", "CANCELLED")
    lab.until(lambda: lab.call("GET", "/v1/jobs/ring")["state"] in ended, "the job")
    assert lab.call("GET", "/v1/jobs/ring")["state"] == "SUCCEEDED"
    events = lab.call("GET", "/v1/jobs/ring/events")["events"]
    iterations = [event for event in events if event["event"] == "iteration"]
    ours = [lap.allreduce_s for lap in Laps("ring", len(gpus)).of(iterations)]
    assert len(ours) == rounds
    print(f"srun {slurms['median_s']:.4f} s, own {statistics.median(ours):.4f} s")  # noqa: T201
    assert slurms["median_s"] < 3 * statistics.median(ours)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("name", ["slurmctld", "slurmd of g0", "munged", "supervisor"])
def test_a_job_and_its_claim_outlast_a_process_of_slurm(
    lab: SlurmLab, name: str, number: signal.Signals
) -> None:
    job = lab.submit("sleep 600", "-N2", "--nodelist=g0,g3")
    lab.until(lambda: lab.job(job)[0] == "RUNNING", "the job")
    lab.until(lambda: len(steps(lab.folder)) == 1, "its step")
    if name in ("slurmctld", "supervisor") and number == signal.SIGKILL:
        time.sleep(STORED_S)
    before = claims(lab)[f"slurm-{job}"]
    light = lab.call("GET", "/v1/circuits")["generation"]
    pid = lab.pid(name)
    os.kill(pid, number)
    try:
        lab.until(lambda: name in lab.health(), "its name in health", pace_s=0.002)
        assert claims(lab)[f"slurm-{job}"] == before
    finally:
        if number == signal.SIGSTOP:
            os.kill(pid, signal.SIGCONT)
    lab.until(lambda: "lurm" not in lab.health(), "health without a word of Slurm")
    lab.until(lambda: _answers(lab), "slurmctld")
    assert lab.job(job)[0] == "RUNNING"
    assert len(steps(lab.folder)) == 1
    assert lab.call("GET", "/v1/circuits")["generation"] == light
    lab.slurm("scancel", job)
    lab.until(lambda: not claims(lab), "a released claim")


def _answers(lab: SlurmLab) -> bool:
    try:
        return "UP" in lab.slurm("scontrol", "ping")
    except AssertionError:
        return False


def test_a_claim_outlasts_the_controller_and_an_end_meanwhile_releases_it(
    lab: SlurmLab,
) -> None:
    job = lab.submit("sleep 600", "-N2", "--nodelist=g0,g3")
    lab.until(lambda: lab.job(job)[0] == "RUNNING", "the job")
    standing = json.loads((lab.folder.parent / "standing.json").read_text())
    os.kill(standing["pids"]["controller"], signal.SIGKILL)
    lab.slurm("scancel", job)
    lab.until(lambda: _claims_or_none(lab) == {}, "a released claim")
    assert len(switches(lab, "g0", "g3")) == 1


def test_jobs_wait_for_a_controller_that_stands_still_and_go_on_with_it(
    lab: SlurmLab,
) -> None:
    ended = lab.submit("sleep 600", "-N2", "--nodelist=g0,g3")
    lab.until(lambda: lab.job(ended)[0] == "RUNNING", "the job")
    with lab.frozen_controller():
        lab.slurm("scancel", ended)
        job = lab.submit("sleep 600", "-N2", "--nodelist=g1,g4")
        lab.until(lambda: lab.job(job)[0] == "CONFIGURING", "a job in its prolog")
        # A prolog and an epilog wait for longer.
        time.sleep(5)
        assert lab.job(job)[0] == "CONFIGURING"
    lab.until(lambda: lab.job(job)[0] == "RUNNING", "the job")
    lab.until(lambda: claims(lab).keys() == {f"slurm-{job}"}, "the other's released")
    assert len(switches(lab, "g1", "g4")) == 1
    assert "Restarts=0" in lab.slurm("scontrol", "show", "job", job)
    lab.until(lambda: "lurm" not in lab.health(), "health without a word of Slurm")


def test_a_prolog_gives_up_in_time_and_its_job_runs_once_the_controller_goes_on(
    lab: SlurmLab,
) -> None:
    def shown() -> str:
        return lab.slurm("scontrol", "show", "job", job)

    ended = lab.submit("sleep 600", "-N2", "--nodelist=g0,g3")
    lab.until(lambda: lab.job(ended)[0] == "RUNNING", "the job")
    with lab.frozen_controller():
        lab.slurm("scancel", ended)
        job = lab.submit("sleep 600", "-N2", "--nodelist=g1,g4")
        silent = "AdminComment=ringlight: no controller answers"
        waited_s = lab.until(lambda: silent in shown(), "the reason", 3 * CLAIM_S)
        assert waited_s > CLAIM_S - 2
        lab.until(lambda: "Restarts=1" in shown(), "a requeued job")
        lab.until(lambda: not _epilogs(), "the end of the epilog", 3 * RESTART_S)
        assert set(lab.states().values()) <= {"IDLE", "ALLOCATED"}
    lab.until(lambda: lab.job(job)[0] == "RUNNING", "the job")
    lab.until(lambda: claims(lab).keys() == {f"slurm-{job}"}, "the other's released")
    assert len(switches(lab, "g1", "g4")) == 1
    time.sleep(3 * CHECK_S)
    # What the controller was asked while it stood still has taken nothing from the job.
    assert claims(lab).keys() == {f"slurm-{job}"}
    assert lab.job(job)[0] == "RUNNING"


def _epilogs() -> list[Path]:
    """Return the processes of epilogs of any cluster."""
    module = b"\0ringlight.extensions.slurm.epilog\0"
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if module in (process / "cmdline").read_bytes():
                found.append(process)
    return found


def _claims_or_none(lab: SlurmLab) -> dict[str, Any] | None:
    try:
        return claims(lab)
    except httpx.TransportError:
        return None


def test_a_claim_that_no_epilog_releases_is_released(lab: SlurmLab) -> None:
    body = {"name": "slurm-99999", "gpus": ["g0"], "wait_s": 20}
    lab.call("POST", "/v1/claims", body)
    lab.until(lambda: not claims(lab), "a released claim")


def test_a_lost_gpu_is_drained_and_its_job_runs_on_a_spare(lab: SlurmLab) -> None:
    job = lab.submit("sleep 600", "-N2", "--exclude=g4,g5")
    lab.until(lambda: lab.job(job)[0] == "RUNNING", "the job")
    lost = lab.job(job)[1][0]
    lab.fault("lose", f"gpu {lost}")
    try:
        began = time.monotonic()
        lab.until(lambda: "DRAIN" in lab.states()[lost], "a drained node")
        lab.until(
            lambda: lab.job(job)[0] == "RUNNING" and lost not in lab.job(job)[1],
            "the job on a spare",
        )
        # The bar is 8 s on a quiet machine.
        assert time.monotonic() - began < 24
        assert lost not in claims(lab)[f"slurm-{job}"]["gpus"]
    finally:
        lab.fault("restore", f"gpu {lost}")


@pytest.mark.parametrize("end", [down, clean])
@pytest.mark.parametrize("also", ["", "supervisor", "slurmscriptd"])
def test_nothing_is_left_after_the_lab(end: Callable[[str], object], also: str) -> None:
    """``also``: a process that is killed beside the testbed, or frozen if Slurm itself keeps it."""
    with slurm_lab("lead", "--runtime", "namespace", end=end) as lab:
        folder = lab.folder
        job = lab.submit("env -i sleep 600 & srun sleep 600", "-N2")
        lab.until(lambda: lab.job(job)[0] == "RUNNING", "the job")
        # The batch script's on one node, and that of srun on both.
        lab.until(lambda: len(steps(folder)) == 3, "its steps")
        mine = of_lab(lab.name)
        assert {"slurmstepd", "sleep", "slurmscriptd"} <= set(mine.values())
        # Then nothing ends the controller and the cluster but the command.
        standing = json.loads((folder.parent / "standing.json").read_text())
        if also == "slurmscriptd":
            (script_daemon,) = families()[lab.pid("slurmctld")]
            os.kill(script_daemon, signal.SIGSTOP)
        os.kill(standing["pids"]["testbed"], signal.SIGKILL)
        if also == "supervisor":
            os.kill(lab.pid("supervisor"), signal.SIGKILL)
    assert not folder.parent.exists()
    assert not steps(folder)
    assert not _holding(folder)
    assert not {pid: name for pid, name in mine.items() if _name(pid) == name}


def of_lab(name: str) -> dict[int, str]:
    """Return the processes of a lab with their names, by their ids: Slurm's and what they have started."""
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return {pid: _name(pid) for pid in pids if lab_of(pid) == name}


def _name(pid: int) -> str:
    """Return the name of a process, "" if it has ended."""
    with suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        if stat.rpartition(")")[2].split()[0] != "Z":
            return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _holding(folder: Path) -> list[str]:
    """Return the processes that name the folder in their command."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(folder) in words:
            found.append(words.replace("\0", " "))
    return found
