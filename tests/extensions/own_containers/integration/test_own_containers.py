"""Jobs of containers on the testbed: they exchange over its light, end as commands do, may do little."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from ringlight.containers.image import image_present
from ringlight.containers.image_build import build_from_packages, ensure_image
from ringlight.experiments.analysis import machine_faults
from ringlight.experiments.backends.emulation import linktest
from ringlight.experiments.backends.emulation.backend import EmulationBackend
from ringlight.experiments.language.expand import Experiment, parse
from ringlight.experiments.language.paths import put
from ringlight.experiments.language.text import parse_yaml, read_text
from ringlight.experiments.record.lines import read_records
from ringlight.experiments.record.runs import Run, runs_of
from ringlight.experiments.runner.command import carry_out_experiment
from ringlight.testbed.addresses import Addresses
from tests.examples import ROOT
from tests.integration.controller_rig import free_port
from tests.integration.figures import Figures

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

EXAMPLES = ROOT / "scenarios" / "containers"
#: What a container may do: user, capabilities, ways to gain some, its file systems, its interfaces.
RIGHTS = """
import os, pathlib, socket
status = dict(line.split(":\\t", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
print("uid", os.getuid(), "caps", status["CapEff"], status["CapBnd"], "nnp", status["NoNewPrivs"])
for path in ("/x", "/app/x", "/job/x", "/tmp/x", "/data/x"):
    try:
        pathlib.Path(path).write_text("x")
        print(path, "written")
    except OSError as error:
        print(path, "refused")
print("nics", [name for _, name in socket.if_nameindex() if name != "lo"], os.environ["RINGLIGHT_INTERFACE"])
print("device", os.path.exists("/dev/null"), os.path.exists("/dev/kvm"), os.environ["STEPS"])
"""
#: Both ranks on one packet switch.
TOGETHER = [["g0", "tor0:1"], ["g2", "tor0:2"], ["g1", "tor1:1"], ["g3", "tor1:2"]]
#: Rank 1 ends badly while rank 0 would go on.
FALLS = """
import os, sys, time
print("on it", flush=True)
if os.environ["RANK"] == "1":
    time.sleep(0.3)
    sys.exit("out of luck")
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def nothing_is_made_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much others take of the processors: no time counts here."""
    for module in (machine_faults, linktest):
        monkeypatch.setattr(module, "TAKEN", 2.0)


def changed(name: str, changes: Mapping[str, object]) -> Experiment:
    path = EXAMPLES / f"{name}.yaml"
    raw = parse_yaml(read_text(path), str(path))
    for key, value in {**changes, "link_test.duration": "200 ms"}.items():
        # Which arms there are is the same in all runs, so that no path leads there.
        raw = {**raw, key: value} if key == "arms" else put(raw, key, value)
    return parse(yaml.safe_dump(raw, sort_keys=False), str(path))


def carried_out(
    experiment: Experiment, folder: Path
) -> tuple[dict[str, Run], Figures, Path, Sequence[str]]:
    """Its runs by arm, their figures, where they are, and which jobs failed that were not to."""
    ensure_image(lambda _: None)
    backend = EmulationBackend(
        "docker", Addresses(f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}")
    )
    done, result = carry_out_experiment(experiment, backend, folder)
    runs = runs_of(read_records(done.path / "events.jsonl"), experiment.plans)
    assert not result["not_run"]
    return (
        {run.plan.arm: run for run in runs},
        Figures(result),
        done.path,
        done.failures,
    )


def said(folder: Path, run: str, rank: str, stream: str = "stdout") -> str:
    (path,) = (folder / "logs").glob(f"*/output/{run}/{rank}.{stream}.txt")
    return path.read_text()


def test_containers_exchange_over_the_light_and_end_as_their_commands_do(
    tmp_path: Path,
) -> None:
    writable = tmp_path / "work"
    writable.mkdir(mode=0o777)
    writable.chmod(0o777)
    tmp_path.chmod(0o755)
    own = {"image": "ringlight-worker", "deadline": "30 s"}
    python = ["python3", "-c"]
    fails = {"jobs.pair.may_fail": True, "jobs.rights.may_fail": True}
    jobs = {
        "rights": {
            **own,
            "ranks": ["g1", "g3"],
            "command": [*python, RIGHTS],
            "environment": {"STEPS": 3},
            "mounts": {
                "/app": "exchange",
                "/data": {"path": str(writable), "write": True},
            },
            "devices": ["/dev/null"],
        }
    }
    experiment = changed(
        "exchange",
        {
            "jobs.rights": jobs["rights"],
            "arms": {
                "whole": {},
                "moved": {
                    "jobs.pair.command": ["python3", "/app/exchange.py", "30000000"],
                    "jobs.pair.beacon": "5 ms",
                    "events": [
                        {"when": {"at": "1 s"}, "do": "circuits", "circuits": TOGETHER}
                    ],
                },
                # Two jobs at once, each with an end of its own.
                "falls": {
                    "jobs.pair.command": [*python, FALLS],
                    "jobs.rights.command": ["sleep", "60"],
                    "events": [
                        {
                            "when": {"at": "1 s"},
                            "do": "kill",
                            "target": "worker rights 1",
                        }
                    ],
                    **fails,
                },
                "hangs": {
                    "jobs.pair.command": ["sleep", "60"],
                    "jobs.pair.deadline": "1 s",
                    "jobs.rights.command": ["no-such-program"],
                    **fails,
                },
            },
        },
    )
    runs, figures, folder, failures = carried_out(experiment, tmp_path)
    assert not failures
    assert {arm: run.jobs["pair"].state for arm, run in runs.items()} == {
        **dict.fromkeys(("whole", "moved"), "SUCCEEDED"),
        **dict.fromkeys(("falls", "hangs"), "FAILED"),
    }

    # What it sent is on the links, and in both directions.
    for arm, count in (("whole", 2_000_000), ("moved", 30_000_000)):
        assert f"sent {count}, received {count}" in said(folder, arm, "pair-1")
        assert figures.number(arm, "job pair", "nic_sent") > 2 * count
        for direction in ("tor0:3 > tor1:3", "tor1:3 > tor0:3"):
            carried = figures.number(arm, f"traffic pair {direction}", "link_bytes")
            # Once both are on one switch, nothing crosses any more.
            assert carried < count if arm == "moved" else count < carried < 1.2 * count
        assert figures.number(arm, "job pair", "commands_failed") == 0
    assert figures.number("moved", "job pair", "regroups_under") == 1
    assert figures.number("moved", "event 1", "blackout") > 0

    # Who failed is named, with its last words; the other is ended, and what it had said is kept.
    falls, hangs = runs["falls"].jobs["pair"], runs["hangs"].jobs["pair"]
    assert falls.reason == "rank 1 on GPU g2 ended with exit code 1: out of luck"
    # Nor did the other end with exit code 0.
    assert figures.number("falls", "job pair", "commands_failed") == 2
    assert said(folder, "falls", "pair-1", "stderr") == "out of luck\n"
    assert "its command had not ended 1 s after the start" in str(hangs.reason)
    assert (
        runs["falls"].jobs["rights"].reason == "rank 1 on GPU g3 was killed by SIGKILL"
    )
    assert "no-such-program" in str(runs["hangs"].jobs["rights"].reason)

    told = said(folder, "whole", "rights-0").splitlines()
    none = "0" * 16
    assert told[0] == f"uid 61000 caps {none} {none} nnp 1"
    written = {line.split()[0]: line.split()[1] for line in told[1:6]}
    refused = dict.fromkeys(("/x", "/app/x"), "refused")
    assert written == {
        **refused,
        **dict.fromkeys(("/job/x", "/tmp/x", "/data/x"), "written"),
    }
    assert told[6:] == ["nics ['eth0'] eth0", "device True False 3"]


IMAGES = {
    "ringlight-torch": ["python3-torch"],
    "ringlight-mpi": ["openmpi-bin", "python3-mpi4py"],
}


@pytest.fixture(scope="module")
def frameworks() -> None:
    """The images that the examples name, as their first lines say; minutes on a machine that has them not."""
    for name, packages in IMAGES.items():
        if not image_present(f"{name}:latest"):
            build_from_packages(name, packages, lambda _: None)


#: The fat tree of the example takes three times as long to build.
OPTICAL = {"optical": {"fabric": "optical"}}
#: Those of the example, with light that is moved after half the time.
SOONER = {
    "still": {},
    "moved": {"events": [{"name": "move", "when": {"at": "8 s"}, "do": "regroup"}]},
}
LOSS = re.compile(r"^(step \d+ loss \S+) at \S+ s$", re.MULTILINE)


@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("frameworks")
def test_pytorch_trains_alike_whether_light_is_moved_under_it_or_not(
    tmp_path: Path,
) -> None:
    experiment = changed("ddp", {"parameters.steps.value": "80", "arms": SOONER})
    runs, figures, folder, failures = carried_out(experiment, tmp_path)
    assert not failures
    losses = {arm: LOSS.findall(said(folder, arm, "ddp-0")) for arm in runs}
    assert len(losses["still"]) == 80
    assert losses["moved"] == losses["still"]
    assert figures.number("moved", "job ddp", "regroups_under") == 1
    assert figures.number("moved", "event move", "blackout") > 0


@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("frameworks")
def test_open_mpi_reduces_over_two_packet_switches(tmp_path: Path) -> None:
    _, figures, folder, failures = carried_out(
        changed("mpi", {"arms": OPTICAL}), tmp_path
    )
    assert not failures
    told = re.findall(
        r"rank \d of 4 on g\d+: 1600000 bytes in .* s, exact",
        said(folder, "optical", "mpi-0"),
    )
    assert len(told) == 4
    assert figures.number("optical", "job mpi", "nic_received") > 4 * 1_600_000
