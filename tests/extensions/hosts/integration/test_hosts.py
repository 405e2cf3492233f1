"""Runs on several hosts: spread, brought back, made again where a worker dies, ended with their command."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import yaml

from ringlight.experiments.record.runs import AGAIN
from ringlight.fabric.extension import extensions
from tests.extensions.hosts.integration.hosts_rig import (
    ROOT,
    SCHEDULER,
    Hosts,
    NamespaceHost,
    hosts,
    kill,
)

pytest.importorskip("distributed")
pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

#: Four GPUs on two packet switches; the same through the simulator.
MINI = str(ROOT / "tests/data/mini.yaml")
ON_HOSTS = ("--runtime", "namespace", "--dask", SCHEDULER)
#: Whether links can lose frames.
LOSES = any(item.extension.name == "impairments" for item in extensions())
#: Divides bytes and rates by so much that busy processors carry what is asked of the hosts' network.
PAYLOAD = 1600


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with hosts(tmp_path_factory.mktemp("hosts")) as found:
        yield found


@pytest.fixture(scope="module")
def spread(rig: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of three arms on two hosts, compared with the simulation by the way.

    A second worker of the first host dies while it has a lab.
    """
    runs = tmp_path_factory.mktemp("runs")
    mortal = rig.registered(rig.hosts[0], "--name", "mortal")
    # There are as many arms as workers: Dask may have a worker idle otherwise, and chooses which.
    command = rig.starting(
        "crosscheck", MINI, "--limit", "1000", *ON_HOSTS, "--runs", str(runs)
    )
    try:
        # Its imports, the workers' and the simulation have taken a minute beside five other tests.
        until(
            lambda: len({name for name in labs(rig.hosts[0]) if len(name) == 4}) == 2,
            150,
        )
    except BaseException:
        # Other tests have these hosts, too.
        command.send_signal(signal.SIGINT)
        command.communicate(timeout=60)
        raise
    finally:
        kill(mortal)
    _, err = command.communicate(timeout=240)
    assert command.returncode == 0, err
    (folder,) = (path for path in runs.iterdir() if path.name.endswith("-mini"))
    return folder


def found(host: NamespaceHost, look: str) -> str:
    """What a line of shell says on a host."""
    done = subprocess.run(
        host.command(["sh", "-c", look]), capture_output=True, text=True, timeout=20
    )
    return done.stdout


def labs(host: NamespaceHost) -> list[str]:
    """What is left of labs on a host: state, interfaces, bridges, processes."""
    look = "ls /run/ringlight 2>/dev/null; ip -o link | grep -o 'rl[a-z0-9]*-[^:@]*'; ovs-vsctl list-br; "
    look += "grep -lz RINGLIGHT_LAB= /proc/[0-9]*/environ 2>/dev/null"
    return found(host, look).split()


def until(condition: Any, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def read(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / name).read_text())
    return found


def test_each_run_is_a_lab_on_some_host(spread: Path, rig: Hosts) -> None:
    """What was in the lab of the worker that died is made again by another."""
    environment = read(spread, "environment.json")
    assert {lab["host"] for lab in environment["labs"]} == {"h1", "h2"}
    assert set(environment["hosts"]) == {"h1", "h2", "mortal"}
    records = [
        json.loads(line) for line in (spread / "events.jsonl").read_text().splitlines()
    ]
    # What a host sent is in one piece, and has its lab's link test before it.
    pieces = [
        (event, list(group))
        for event, group in groupby(
            records, key=lambda record: record["run"].removesuffix(AGAIN)
        )
        if event
    ]
    assert sorted(name for name, _ in pieces) == ["fragmented", "live", "regrouped"]
    for _, piece in pieces:
        before = records[records.index(piece[0]) - 1]
        assert before["event"] == "link_rate"
        assert {record["event"] for record in piece} >= {"run_started", "run_ended"}
    # Each lab has its logs, as on one machine.
    logs = [
        {path.name for path in sub.iterdir()} for sub in (spread / "logs").iterdir()
    ]
    assert len(logs) == 3
    assert all({"testbed.log", "controller.log"} <= names for names in logs)
    until(lambda: not any(map(labs, rig.hosts)), 60)


def test_the_folder_is_like_that_of_one_machine(
    spread: Path, rig: Hosts, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if not request.config.getoption("--long"):
        pytest.skip("one more run; with --long")
    host = rig.hosts[0]
    words = [
        "run",
        MINI,
        "--arm",
        "fragmented",
        "--runtime",
        "namespace",
        "--runs",
        str(tmp_path),
    ]
    command = host.command(
        [sys.executable, "-m", "ringlight.experiments.cli.app", *words]
    )
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=rig.environment
    )
    assert done.returncode == 0, done.stderr
    (alone,) = tmp_path.iterdir()
    # A cross-check draws no pages beside its report.
    pages = {name for installed in extensions() for name in installed.extension.pages}
    assert {path.name for path in spread.iterdir()} == {
        path.name for path in alone.iterdir()
    } - pages

    def of_runs(folder: Path) -> set[tuple[str, ...]]:
        # The same arm; comparisons are of both.
        rows = read(folder, "result.json")["rows"]
        return {
            (row["subject"], row["metric"], row["unit"], row["label"])
            for row in rows
            if row["arm"] == "fragmented"
        }

    assert of_runs(alone) <= of_runs(spread)
    logs = [
        {path.name for path in sub.iterdir()} for sub in (spread / "logs").iterdir()
    ]
    assert (
        logs
        == [{path.name for path in sub.iterdir()} for sub in (alone / "logs").iterdir()]
        * 3
    )
    assert (
        read(alone, "environment.json").keys() | {"hosts"}
        == read(spread, "environment.json").keys()
    )


def signalled(rig: Hosts, name: str) -> None:
    """Stop what trains on the hosts, or let it go on."""
    for host in rig.hosts:
        found(host, f"pkill -{name} -f [r]inglight.containers.worker")


def training(rig: Hosts, *words: str) -> subprocess.Popen[str]:
    """A command whose lab is over both hosts; its jobs have begun, and their processes are stopped."""
    command = rig.starting(*words, *ON_HOSTS)
    trains = (
        "grep -l '\"iteration\"' /run/ringlight/*/workers/*/events.jsonl 2>/dev/null"
    )
    until(lambda: found(rig.hosts[1], trains) or command.poll() is not None, 60)
    assert command.poll() is None, command.communicate(timeout=20)[1]
    # The run must not be over before hosts have workers again.
    signalled(rig, "STOP")
    return command


@pytest.fixture(scope="module")
def over(rig: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of one lab over both hosts, compared with the simulation by the way.

    The fibre that is cut loses frames until light is moved. Workers die in the middle, and come back.
    """
    runs = tmp_path_factory.mktemp("over")
    scenario = yaml.safe_load(Path(MINI).read_text())
    scenario["scale"]["payload"] = PAYLOAD
    scenario["training"]["samples"] = 768
    bad = {
        "do": "impair",
        "target": "link tor0:3 tor1:3",
        "impairments": {"loss": 0.02},
    }
    scenario["arms"]["live"]["events"] = [
        *([{"when": {"job": "red", "iteration": 1}, **bad}] if LOSES else []),
        {"when": {"job": "red", "iteration": 12}, "do": "regroup"},
    ]
    (runs / "lossy.yaml").write_text(yaml.safe_dump(scenario))
    words = ("--arm", "live", "--hosts", "2", "--limit", "1000", "--runs", str(runs))
    command = training(rig, "crosscheck", str(runs / "lossy.yaml"), *words)
    for host in rig.hosts:
        kill(rig.workers.pop(host.name))
    time.sleep(2.5)
    for host in rig.hosts:
        rig.start(host)
    signalled(rig, "CONT")
    _, err = command.communicate(timeout=240)
    assert command.returncode == 0, err
    (folder,) = (path for path in runs.iterdir() if path.name.endswith("-mini"))
    return folder


def test_one_lab_is_over_both_hosts(over: Path, rig: Hosts) -> None:
    """Bit by bit the same parameters; light moves from one host's packet switch to the other's."""
    result, environment = read(over, "result.json"), read(over, "environment.json")
    assert {
        row["value"]
        for row in result["rows"]
        if row["metric"] == "parameters_identical"
    } == {1}
    (lab,) = environment["labs"]
    assert lab["host"] == "h1"
    # One kernel, one clock; the question for it took its time.
    clock = lab["clocks"]["h2"]
    assert abs(clock["offset_s"]) <= clock["error_s"] < 0.1
    assert [(way["a"], way["b"]) for way in environment["network"]] == [
        ("h1", "h2"),
        ("h2", "h1"),
    ]
    assert result["fidelity"]["network"] == environment["network"]
    assert "The network between hosts" in (over / "report.html").read_text()
    records = [
        json.loads(line) for line in (over / "events.jsonl").read_text().splitlines()
    ]
    *bad, moved = (record for record in records if record["event"] == "action_ended")
    assert (moved["error"], moved["result"]["state"]) == (None, "DONE")
    if LOSES:
        assert [(record["error"], record["result"]["state"]) for record in bad] == [
            (None, "in force")
        ]
        (impaired,) = (
            record["links"] for record in records if record["event"] == "impaired"
        )
        # Each host impairs what it receives.
        assert {(way["from"], way["to"]) for way in impaired} == {
            ("tor0:3", "tor1:3"),
            ("tor1:3", "tor0:3"),
        }
        assert all(0 < way["lost"] < 0.1 * way["frames"] for way in impaired)
    # Links over the cut are measured as the others.
    assert "tor0:3 - tor1:3" in {
        record["link"] for record in records if record["event"] == "link_rate"
    }


def test_events_of_hosts_with_other_clocks_are_on_one(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if not request.config.getoption("--long"):
        pytest.skip("hosts of its own; with --long")
    with hosts(tmp_path / "rig", later_s=5000) as rig:
        words = ("--arm", "live", "--hosts", "2", "--runs", str(tmp_path / "runs"))
        done = rig.ringlight("run", MINI, *words, *ON_HOSTS)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    clock = read(folder, "environment.json")["labs"][0]["clocks"]["h2"]
    assert abs(clock["offset_s"] - 5000) <= clock["error_s"] < 0.01
    records = [
        json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()
    ]
    for number in range(8):
        ends = [
            r["t"]
            for r in records
            if r["event"] == "iteration" and r["i"] == number and r["job"] == "red"
        ]
        assert len(ends) == 2
        assert abs(ends[0] - ends[1]) < 0.1


@pytest.mark.parametrize("dies", ["host", "network", "part"])
def test_a_host_that_is_lost_leaves_no_half_lab(
    dies: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Its jobs fail in one line with the host's name; what is left of the lab goes, on both sides."""
    if not request.config.getoption("--long"):
        pytest.skip("hosts of its own; with --long")
    with hosts(tmp_path / "rig") as rig:
        first, second = rig.hosts
        words = (
            "--arm",
            "fragmented",
            "--hosts",
            "2",
            "--set",
            "training.samples=2048",
        )
        command = rig.starting(
            "run", MINI, *words, *ON_HOSTS, "--runs", str(tmp_path / "runs")
        )
        trains = "grep -l '\"iteration\"' /run/ringlight/*/workers/*/events.jsonl 2>/dev/null"
        until(lambda: found(second, trains), 60)
        if dies == "host":
            second.process.kill()
        elif dies == "network":
            subprocess.run(
                [*rig.inside, *["ip", "link", "set", "h2", "down"]],
                check=True,
                timeout=20,
            )
        else:
            found(second, "kill -9 $(cat /run/ringlight/*/testbed.pid)")
        _, err = command.communicate(timeout=90)
        assert command.returncode == 1
        assert "host h2 is lost" in err
        alive = [first] if dies == "host" else [first, second]
        # A part that hears nothing for 30 s ends by itself.
        until(lambda: not any(map(labs, alive)), 60)


def test_parts_go_on_without_their_workers(over: Path, rig: Hosts) -> None:
    records = [
        json.loads(line) for line in (over / "events.jsonl").read_text().splitlines()
    ]
    told = [(r["kind"], r["name"]) for r in records if r["event"] == "process_ended"]
    assert {*told} == {("Dask worker of host", "h1"), ("Dask worker of host", "h2")}
    # The next workers of the hosts have found the run and the part, and brought their logs.
    (logs,) = (over / "logs").iterdir()
    assert (logs / "testbed-h2.log").stat().st_size
    until(lambda: not any(map(labs, rig.hosts)), 20)


def test_a_lab_goes_on_without_the_scheduler(
    rig: Hosts, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The command ends; another scheduler's workers find the lab for the command that goes on."""
    if not request.config.getoption("--long"):
        pytest.skip("one more run; with --long")
    words = (
        "--arm",
        "live",
        "--hosts",
        "2",
        "--runs",
        str(tmp_path),
        "--set",
        "training.samples=768",
    )
    command = training(rig, "run", MINI, *words)
    names = labs(rig.hosts[0])
    rig.end_scheduler()
    _, err = command.communicate(timeout=240)
    assert command.returncode == 1
    (folder,) = tmp_path.iterdir()
    # One line, and nothing of Dask's own.
    assert err.splitlines()[-1].endswith(
        f"its scheduler is gone. Go on with: --resume {folder}"
    )
    assert "Traceback" not in err
    rig.start_again()
    assert {*names} <= {*labs(rig.hosts[0])}
    signalled(rig, "CONT")
    done = rig.ringlight("run", MINI, *words, *ON_HOSTS, "--resume", str(folder))
    assert done.returncode == 0, done.stderr
    (lab,) = read(folder, "environment.json")["labs"]
    assert lab["lab"] in names
    # No task was left to bring what the other part said.
    (logs,) = (folder / "logs").iterdir()
    assert (logs / "testbed-h2.log").stat().st_size
    until(lambda: not any(map(labs, rig.hosts)), 20)


def test_each_pair_of_hosts_is_probed(rig: Hosts) -> None:
    done = rig.ringlight(
        "hosts", "check", *ON_HOSTS, "--mtu", "9000", "--rate", "100 Mbit/s", "--json"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [host["name"] for host in found["hosts"]] == ["h1", "h2"]
    assert [(way["a"], way["b"], way["mtu_bytes"]) for way in found["ways"]] == [
        ("h1", "h2", 9000),
        ("h2", "h1", 9000),
    ]


def test_what_does_not_fit_is_named_with_the_pair_and_the_figure(
    rig: Hosts, tmp_path: Path
) -> None:
    """One host behind a link of 1,500 bytes and 20 Mbit/s, with a clock that is three seconds ahead."""
    host = rig.hosts[1]
    shifted = rig.folder / "shifted.py"
    # Dask loads it in the worker's process more than once.
    once = "if not hasattr(time, 'shifted'):\n    time.shifted, now = True, time.time\n"
    shifted.write_text(
        f"import time\n{once}    time.time = lambda now=now: now() + 3\n"
    )
    kill(rig.workers.pop("h2"))
    rig.start(host, "--preload", str(shifted))
    try:
        rig.limit(host, mtu=1500, rate="20mbit")
        done = rig.ringlight("hosts", "check", *ON_HOSTS, "--rate", "400 Mbit/s")
        refused = rig.ringlight(
            "run", MINI, *ON_HOSTS, "--hosts", "2", "--runs", str(tmp_path)
        )
    finally:
        rig.limit(host)
        kill(rig.workers.pop("h2"))
        rig.start(host)
    assert done.returncode == 1
    # On a busy machine the round trip through the slow link may be too long as well.
    said, asked = (
        [
            line
            for line in text.replace("ringlight: ", "").splitlines()
            if "a round trip takes" not in line
        ]
        for text in (done.stderr, refused.stderr)
    )
    for way in ("h1 to h2", "h2 to h1"):
        (mtu, clock, rate) = (line for line in said if line.startswith(way))
        assert mtu.endswith(
            "packets of 1550 bytes do not arrive whole, the largest that do have 1500 (MTU)"
        )
        assert "Mbit/s, and 400 Mbit/s is needed (rate)" in rate
        which = "h2 is 3.0" if way == "h1 to h2" else "h1 is 3.0"
        assert (
            f"the clock of {which}" in clock
            or f"the clock of {which[:2]} is 2.9" in clock
        )
        # What a lab over both needs is asked for before it is built.
        lines = [line for line in asked if f"{way}: " in line]
        assert len(lines) == 3
        assert (
            "packets of 4050 bytes do not arrive whole, the largest that do have 1500 (MTU)"
            in lines[0]
        )
        assert "is needed (rate)" in lines[2]
    assert refused.returncode == 1
    assert not any(map(labs, rig.hosts))


def test_light_that_would_not_be_encrypted_is_refused_where_it_must_be(
    rig: Hosts, tmp_path: Path
) -> None:
    done = rig.ringlight(
        "run", MINI, *ON_HOSTS, "--hosts", "2", "--wireguard", "--runs", str(tmp_path)
    )
    assert done.returncode == 1
    said = "ringlight: host h1: --wireguard: 10.99.0.1, of interface eth0, is no WireGuard address; "
    assert done.stderr.splitlines()[-1].startswith(said)
    # What it tried is gone.
    assert not any(map(labs, rig.hosts))


def test_a_number_that_is_taken_is_refused(rig: Hosts, tmp_path: Path) -> None:
    host = rig.hosts[1]
    taken = "ip link add theirs type vxlan id 4712 dstport 14789 remote 10.99.0.1"
    subprocess.run(host.command(taken.split()), check=True, timeout=20)
    try:
        words = ("--hosts", "2", "--vxlan-number", "4711", "--runs", str(tmp_path))
        done = rig.ringlight("run", MINI, *ON_HOSTS, *words)
    finally:
        subprocess.run(
            host.command(["ip", "link", "del", "theirs"]), check=True, timeout=20
        )
    assert done.returncode == 1
    said = "VXLAN number 4712 at UDP port 14789 is that of interface theirs"
    assert f"host h2: {said}; choose others with --vxlan-number" in done.stderr


def test_clean_removes_labs_of_all_hosts_and_nothing_else(rig: Hosts) -> None:
    """One that somebody left up, as a living lab; what is not ours stays."""
    host = rig.hosts[1]
    for line in (
        "ip netns add other",
        "ip link add rlx-1 type bridge",
        "ovs-vsctl add-br other0",
    ):
        subprocess.run(host.command(line.split()), check=True, timeout=20)
    up = [
        sys.executable,
        "-m",
        "ringlight.experiments.cli.app",
        "up",
        MINI,
        "--arm",
        "fragmented",
    ]
    command = host.command([*up, "--runtime", "namespace", "--json"])
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=90, env=rig.environment
    )
    lab = json.loads(done.stdout)["lab"]
    assert any(lab in name for name in labs(host))
    done = rig.ringlight("hosts", "clean", "--dask", SCHEDULER)
    assert done.returncode == 0, done.stderr
    assert all(line.startswith("host h2: ") for line in done.stdout.splitlines()[:-1])
    assert not any(lab in name for name in labs(host))
    assert {"rlx-1", "other0"} <= {*labs(host)}
    assert (
        rig.ringlight("hosts", "clean", "--dask", SCHEDULER).stdout
        == "nothing to remove\n"
    )
    for line in ("ip netns del other", "ip link del rlx-1", "ovs-vsctl del-br other0"):
        subprocess.run(host.command(line.split()), check=True, timeout=20)


PROMPTED = """ping g0 g2 3
ping g0 g3 3
g2 ping -c1 g0
links
iperf g0 g2 1
capture tor1:1
"""


def test_a_lab_stands_over_both_hosts_for_hands(rig: Hosts, tmp_path: Path) -> None:
    """Its first host's worker dies meanwhile; the next one finds it, and ends it when told to.

    Fibres that are cut delay what comes from either host.
    """
    scenario = yaml.safe_load(Path(MINI).read_text())
    scenario["scale"]["payload"] = PAYLOAD
    for link in scenario["fabric"]["links"]:
        if link["ends"] in (["g2", "ocs0:3"], ["tor0:3", "tor1:3"]):
            link["delay"] = "10 ms"
    (tmp_path / "delayed.yaml").write_text(yaml.safe_dump(scenario))
    up = rig.ringlight(
        *("hosts", "up", str(tmp_path / "delayed.yaml")),
        "--arm",
        "fragmented",
        "--hosts",
        "2",
        "--json",
        *ON_HOSTS,
    )
    assert up.returncode == 0, up.stderr
    lab = json.loads(up.stdout)
    assert (lab["host"], lab["hosts"]) == ("h1", ["h1", "h2"])
    assert all(map(labs, rig.hosts))
    kill(rig.workers.pop("h1"))
    rig.start(rig.hosts[0])
    (tmp_path / "lines").write_text(PROMPTED)
    done = rig.ringlight(
        "hosts",
        "shell",
        lab["lab"],
        "--file",
        str(tmp_path / "lines"),
        "--dask",
        SCHEDULER,
    )
    # Refused, and no more: all that is at a node of another host is done there.
    assert done.returncode == 1
    assert (
        "line 6: *** tcpdump: only on host h2 itself, where that node is" in done.stdout
    )
    assert re.search(r"Results: [\d.]+ Mbit/s received", done.stdout)
    assert "1 packets transmitted, 1 received" in done.stdout
    took = {
        far: re.findall(rf"g0 -> {far}: ([\d.]+) ms", done.stdout)
        for far in ("g2", "g3")
    }
    shortest = {far: min(map(float, times)) for far, times in took.items()}
    assert 40 < shortest["g2"] < 60
    assert 20 < shortest["g3"] < 35
    assert "tor0:3<->tor1:3 (OK OK)" in done.stdout
    other = rig.ringlight("hosts", "down", "none", "--dask", SCHEDULER)
    assert (other.returncode, "lab none does not stand" in other.stderr) == (1, True)
    assert (
        rig.ringlight("hosts", "down", "--dask", SCHEDULER).stdout
        == f"ended: {lab['lab']}\n"
    )
    until(lambda: not any(map(labs, rig.hosts)), 20)


def test_bench_measures_on_some_host(
    rig: Hosts, request: pytest.FixtureRequest
) -> None:
    if not request.config.getoption("--long"):
        pytest.skip("one more lab; with --long")
    done = rig.ringlight(
        *(
            "bench",
            MINI,
            "--arm",
            "fragmented",
            "--sizes",
            "1MiB",
            "--calls",
            "1",
            "--json",
            "--hosts",
            "2",
        ),
        *ON_HOSTS,
    )
    assert done.returncode == 0, done.stderr
    (size,) = json.loads(done.stdout)["sizes"]
    assert size["time_s"] > 0


def test_an_interrupted_command_leaves_no_lab(rig: Hosts, tmp_path: Path) -> None:
    command = rig.starting("run", MINI, *ON_HOSTS, "--runs", str(tmp_path))
    # There is one on each host at the same time.
    until(lambda: all(map(labs, rig.hosts)), 60)
    command.send_signal(signal.SIGINT)
    _, err = command.communicate(timeout=60)
    assert command.returncode == 130, err
    assert "go on with: ringlight run" in err
    until(lambda: not any(map(labs, rig.hosts)), 90)
