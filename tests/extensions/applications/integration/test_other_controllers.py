"""Packet switches that others look after: Ryu applications, their own managers, Faucet, nobody."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from benchmarks.controllers import faucet_command, own_manager, scenario
from benchmarks.harness import running
from ringlight.containers.image import ROOT
from ringlight.testbed.lab import Lab
from tests.forks import COMMAND
from tests.forks import ringlight as run
from tests.integration.controller_rig import free_port
from tests.integration.labs import traces, until

pytestmark = pytest.mark.root

APPLICATIONS = ROOT / "docs/applications"
LEARNING = APPLICATIONS / "learning_switch.py"
TWO_SWITCHES = APPLICATIONS / "two_switches.yaml"
#: Faucet's program in an environment of its own: it wants another os-ken than ours.
FAUCET = os.environ.get("RINGLIGHT_FAUCET", "")
#: Longest until a controller of others has followed; the learning switch's flows idle out in 10 s.
FOLLOWED_S = 40.0
#: Applications in Ryu's form that ask ryu.topology, each in another way.
TOPOLOGY_APPS = ROOT / "tests/extensions/applications/data/topology_apps"
TRAIN: dict[str, Any] = {
    "workload": "train",
    "gradient_bytes": 96400,
    "compute_s": 0.1,
    "iterations": 40,
    "batch": 8,
}
TRAIN |= {"seed": 7, "learning_rate": 0.05, "peer_timeout_s": 30}
#: g0 is moved to the other switch.
MOVED: list[list[str]] = [
    ["g0", "p1:3"],
    ["g1", "p0:2"],
    ["g2", "p1:1"],
    ["g3", "p1:2"],
]
#: Where g1, which sends nothing by itself, is moved to once another GPU has been moved.
LISTENS_AT = {"g0": "p0:3", "g2": "p1:1"}
#: Longest until it is found there, below any controller's ageing.
ANNOUNCED_S = 8.0


class UpLab:
    """A lab that ``ringlight up`` left standing. ``api``: of our controller, ``app``: of the applications."""

    def __init__(self, scenario: Path, *words: str) -> None:
        rest, self.app_rest = free_port(), free_port()
        where = [
            "--rest",
            f"127.0.0.1:{rest}",
            "--openflow",
            f"127.0.0.1:{free_port()}",
        ]
        where += [
            "--app-rest",
            f"127.0.0.1:{self.app_rest}",
            "--app-openflow",
            f"127.0.0.1:{free_port()}",
        ]
        done = run(
            "up", str(scenario), "--runtime", "namespace", "--json", *where, *words
        )
        assert done.returncode == 0, done.stderr
        self.lab = Lab(json.loads(done.stdout)["lab"])
        self.api = httpx.Client(
            base_url=f"http://127.0.0.1:{rest}", timeout=20, trust_env=False
        )
        self.app = httpx.Client(
            base_url=f"http://127.0.0.1:{self.app_rest}", timeout=20, trust_env=False
        )

    def down(self) -> None:
        self.api.close()
        self.app.close()
        done = run("down", self.lab.id)
        assert done.returncode == 0, done.stderr
        assert traces(self.lab) == []

    def ping(self, *gpus: str) -> subprocess.CompletedProcess[str]:
        return run("ping", *gpus, "--lab", self.lab.id, *(["-c", "1"] if gpus else []))

    def until_pinged(self, timeout_s: float = FOLLOWED_S) -> float:
        """Until every GPU is answered by every other; how long that took, seconds."""
        return until(
            lambda: self.ping().returncode == 0, timeout_s, lambda: self.ping().stdout
        )

    def health(self) -> dict[str, Any]:
        found: dict[str, Any] = self.api.get("/v1/health").raise_for_status().json()
        return found

    def told(self, kind: str) -> list[dict[str, Any]]:
        """The controller's events of a kind so far."""
        text = self.api.get("/v1/events", params={"after": 0, "seconds": 0.5}).text
        data = [
            line.removeprefix("data: ")
            for line in text.splitlines()
            if line.startswith("data: ")
        ]
        events = [json.loads(line) for line in data]
        return [event for event in events if event["event"] == kind]

    def circuits(self) -> list[list[str]]:
        return [
            circuit["ends"]
            for circuit in self.api.get("/v1/circuits").json()["circuits"]
        ]

    def light(self, circuits: list[list[str]]) -> None:
        """Exactly these circuits."""
        done = self.api.put("/v1/circuits", json={"circuits": circuits})
        assert done.status_code == 200, done.text

    def regroup_under_a_job(self, controllers: dict[str, str]) -> float:
        """Two GPUs at two switches train and are brought together; the longest iteration, seconds."""
        job = {"name": "red", "ranks": ["g0", "g2"], **TRAIN}
        assert self.api.post("/v1/jobs", json=job).status_code == 201

        def iterations() -> list[dict[str, Any]]:
            events = self.api.get("/v1/jobs/red/events").json()["events"]
            return [
                event
                for event in events
                if event["event"] == "iteration" and event["rank"] == 0
            ]

        until(lambda: len(iterations()) > 5, 40.0)
        answer = self.api.post("/v1/regroup", json={})
        assert answer.status_code < 300, answer.text
        assert answer.json()["left_to_others"] == controllers
        assert [move["to"] for move in answer.json()["plan"]["moves"]] == ["p0:3"]
        regroup = f"/v1/regroup/{answer.json()['id']}"
        until(lambda: self.api.get(regroup).json()["state"] == "DONE", 20.0)
        until(lambda: self.api.get("/v1/jobs/red").json()["state"] == "SUCCEEDED", 60.0)
        ends = [event["t"] for event in iterations()]
        assert len(ends) == TRAIN["iterations"]
        return round(max(b - a for a, b in itertools.pairwise(ends)), 3)


@contextmanager
def standing(scenario: Path, *words: str) -> Iterator[UpLab]:
    lab = UpLab(scenario, *words)
    try:
        yield lab
    finally:
        lab.down()


def test_a_ryu_application_switches_sees_events_and_answers_and_elephants_get_light() -> (
    None
):
    elephants = APPLICATIONS / "elephants.py"
    with standing(TWO_SWITCHES, "--app", str(LEARNING), "--app", str(elephants)) as lab:
        lab.until_pinged()
        macs = {
            gpu["name"]: gpu["mac"] for gpu in lab.api.get("/v1/fabric").json()["gpus"]
        }
        learned = lab.app.get("/learning/1").json()["learned"]
        assert learned == {macs["g0"]: 1, macs["g1"]: 2, macs["g2"]: 4, macs["g3"]: 4}
        health = lab.api.get("/v1/health").json()
        assert (health["status"], health["packet_switches"]) == ("ok", {})

        def changes_of_port_3() -> int:
            events = lab.app.get("/learning/1").json()["port_events"]
            return int(events.count([3, "changed"]))

        interface, before = lab.lab.interface("p0", 3), changes_of_port_3()
        subprocess.run(["ip", "link", "set", interface, "down"], check=True)
        until(lambda: changes_of_port_3() > before, 15.0)
        subprocess.run(["ip", "link", "set", interface, "up"], check=True)

        words = [*COMMAND, "iperf", "g0", "g2", "-t", "8", "--lab", lab.lab.id]
        with subprocess.Popen(
            words, cwd=ROOT, stdout=subprocess.PIPE, text=True
        ) as iperf:
            until(lambda: lab.app.get("/elephants").json() != [], 20.0)
            (found,) = lab.app.get("/elephants").json()
            lit = [
                circuit["ends"]
                for circuit in lab.api.get("/v1/circuits").json()["circuits"]
            ]
            assert ["p0:3", "p1:3"] in lit
            said, _ = iperf.communicate(timeout=60)
        assert iperf.returncode == 0, said
        assert sorted(found["hosts"]) == sorted([macs["g0"], macs["g2"]])
        until(lambda: lab.app.get("/elephants").json() == [], 20.0)
        lit = [
            circuit["ends"]
            for circuit in lab.api.get("/v1/circuits").json()["circuits"]
        ]
        assert ["p0:3", "p1:3"] not in lit

        lab.light(MOVED)
        lab.until_pinged()
        learned = lab.app.get("/learning/2").json()["learned"]
        assert learned[macs["g0"]] == 3

        process = lab.health()["applications"]
        assert (process["alive"], process["restarts"], process["last_error"]) == (
            True,
            0,
            None,
        )
        os.kill(process["pid"], signal.SIGKILL)
        until(lambda: lab.health()["applications"]["restarts"] == 1, 15.0)
        again = lab.health()
        assert (
            again["applications"]["alive"],
            again["applications"]["last_error"],
        ) == (
            True,
            "killed by SIGKILL",
        )
        lab.until_pinged()
        assert again["applications"]["since"] > process["since"]
        both = {"p0": True, "p1": True}
        until(
            lambda: (
                {n: one["connected"] for n, one in lab.health()["controllers"].items()}
                == both
            ),
            15.0,
        )


def test_applications_that_ask_for_the_topology_are_answered() -> None:
    """Switches, both directions of the link between them, hosts; also when light has moved."""
    apps = [
        word
        for path in sorted(TOPOLOGY_APPS.glob("*.py"))
        for word in ("--app", str(path))
    ]
    with standing(
        TWO_SWITCHES, *apps, "--app", "ryu.app.rest_topology", "--observe-links"
    ) as lab:
        log = Path(f"/run/ringlight/{lab.lab.id}/apps.log")

        def rows(what: str) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = (
                lab.app.get(f"/v1.0/topology/{what}").raise_for_status().json()
            )
            return found

        def ends(what: str = "links") -> list[tuple[str, str]]:
            pairs = [(row["src"], row["dst"]) for row in rows(what)]
            return sorted(
                (f"{a['dpid']}:{a['port_no']}", f"{b['dpid']}:{b['port_no']}")
                for a, b in pairs
            )

        p0, p1 = f"{1:016x}", f"{2:016x}"
        both = [(f"{p0}:{4:08x}", f"{p1}:{4:08x}"), (f"{p1}:{4:08x}", f"{p0}:{4:08x}")]
        until(lambda: ends() == both, 20.0)
        assert sorted(row["dpid"] for row in rows("switches")) == [p0, p1]
        assert ends(f"links/{p1}") == both[1:]
        assert lab.app.get("/v1.0/topology/links/1").status_code == 404
        until(lambda: log.read_text().count("switches 2 links 2") > 0, 10.0)
        assert {"entered 1", "entered 2"} <= {
            line.rpartition(" INFO ")[2] for line in log.read_text().splitlines()
        }
        lab.until_pinged()
        macs = {
            gpu["name"]: gpu["mac"] for gpu in lab.api.get("/v1/fabric").json()["gpus"]
        }
        until(lambda: {row["mac"] for row in rows("hosts")} >= set(macs.values()), 10.0)
        assert [
            row["port"]["port_no"] for row in rows("hosts") if row["mac"] == macs["g2"]
        ] == [f"{1:08x}"]
        lab.light([["g0", "p0:1"], ["g1", "p0:2"], ["g2", "p1:3"], ["g3", "p1:2"]])
        until(
            lambda: (
                [r["port"]["port_no"] for r in rows("hosts") if r["mac"] == macs["g2"]]
                == [f"{3:08x}"]
            ),
            10.0,
        )
        assert " ERROR " not in log.read_text()


def test_an_application_whose_flows_stay_for_ever_follows_where_they_are_deleted(
    tmp_path: Path,
) -> None:
    scenario = yaml.safe_load(TWO_SWITCHES.read_text())
    scenario["fabrics"]["two"]["moved_flows"] = "delete"
    file = tmp_path / "two.yaml"
    file.write_text(yaml.safe_dump(scenario))
    with standing(file, "--app", str(APPLICATIONS / "simple_switch.py")) as lab:
        lab.until_pinged()
        # Without the key the job's packets go where g2 was, until it fails.
        longest_s = lab.regroup_under_a_job({"p0": "app", "p1": "app"})
        sys.stderr.write(f"longest iteration {longest_s} s\n")
        lab.until_pinged(ANNOUNCED_S)
        # One that only listens.
        lab.light(
            [pair for pair in lab.circuits() if "g1" not in pair]
            + [["g1", LISTENS_AT["g2"]]]
        )
        until(lambda: lab.ping("g0", "g1").returncode == 0, ANNOUNCED_S)
        lab.until_pinged(ANNOUNCED_S)


def test_a_run_takes_applications_and_says_which(tmp_path: Path) -> None:
    scenario = yaml.safe_load(TWO_SWITCHES.read_text())
    scenario["training"] |= {"iterations": 2, "compute": "10 ms"}
    scenario["link_test"]["duration"] = "200 ms"
    own = tmp_path / "two.yaml"
    own.write_text(yaml.safe_dump(scenario))
    ports = [f"127.0.0.1:{free_port()}" for _ in range(4)]
    options = ("--rest", "--openflow", "--app-rest", "--app-openflow")
    where = [word for pair in zip(options, ports, strict=True) for word in pair]
    where += ["--runtime", "namespace", "--runs", str(tmp_path / "runs")]

    done = run("run", str(own), *where, "--app", str(LEARNING), "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    (folder,) = (tmp_path / "runs").iterdir()
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["apps"] == {
        str(LEARNING): hashlib.sha256(LEARNING.read_bytes()).hexdigest()
    }
    assert "learning_switch" in next(folder.rglob("apps.log")).read_text()
    assert {row["metric"] for row in result["rows"]} >= {"jct"}
    labs = re.findall(r"lab (\w+) is up", done.stderr)
    assert [trace for lab in labs for trace in traces(Lab(lab))] == []


@pytest.mark.parametrize("whose", ["own manager", "faucet", "none beside ours"])
def test_packets_come_through_again_once_the_other_controller_has_followed(
    whose: str, tmp_path: Path
) -> None:
    if whose == "faucet" and not FAUCET:
        pytest.skip("RINGLIGHT_FAUCET does not name the program of a Faucet from PyPI")
    port = free_port()
    if whose == "none beside ours":
        controllers = {"p0": "none", "p1": "ringlight"}
        command = ["sleep", "300"]
    else:
        controllers = dict.fromkeys(("p0", "p1"), f"tcp:127.0.0.1:{port}")
        command = (
            faucet_command(FAUCET, port, tmp_path)
            if whose == "faucet"
            else own_manager(port)
        )
    with (
        running(command, tmp_path / "log") as other,
        standing(scenario(controllers, tmp_path)) as lab,
    ):
        lab.until_pinged()
        before = lab.api.get("/v1/packet-switches").json()
        assert {s["name"]: s["controller"] for s in before} == controllers
        moved = "g0"
        if whose == "none beside ours":
            lab.light(MOVED)
        else:
            moved = "g2"
            sys.stderr.write(
                f"longest iteration {lab.regroup_under_a_job(controllers)} s\n"
            )
        sys.stderr.write(
            f"every ping answered again after {lab.until_pinged():.1f} s\n"
        )
        after = lab.api.get("/v1/packet-switches").json()
        (place,) = [
            (s["name"], e["port"])
            for s in after
            for e in s["attached"]
            if e["gpu"] == moved
        ]
        assert place == {"g0": ("p1", 3), "g2": ("p0", 3)}[moved]
        told = {event["switch"]: event for event in lab.told("packet_switch_light")}
        assert set(told) == {
            name
            for name, controller in controllers.items()
            if controller != "ringlight"
        }
        gpus = [(entry["port"], entry["gpu"]) for entry in told["p0"]["ports"]]
        assert gpus == {"g0": [(1, None)], "g2": [(3, "g2")]}[moved]
        flows = lab.api.get("/v1/packet-switches/p0/flows")
        assert flows.status_code == 503
        assert "left to" in flows.json()["detail"]
        # One that only listens says where it is: nobody waits until what was learned of it has aged.
        lab.light(
            [pair for pair in lab.circuits() if "g1" not in pair]
            + [["g1", LISTENS_AT[moved]]]
        )
        until(lambda: lab.ping("g0", "g1").returncode == 0, ANNOUNCED_S)
        assert lab.told("gpus_announced")[-1]["gpus"] == ["g1"]

        def connected() -> dict[str, bool]:
            health = lab.health()
            # That another's controller is away is told, and no fault of the lab's.
            assert health["status"] == "ok"
            return {
                name: one["connected"] for name, one in health["controllers"].items()
            }

        theirs = [
            name
            for name, controller in controllers.items()
            if controller.startswith("tcp:")
        ]
        assert connected() == dict.fromkeys(theirs, True)
        other.kill()
        until(lambda: connected() == dict.fromkeys(theirs, False), 15.0)
