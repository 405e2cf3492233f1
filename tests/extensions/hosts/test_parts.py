"""Parts of a lab over several hosts: their plan, doors, pulses, and the server agent for all."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from ringlight.extensions.hosts import spread
from ringlight.extensions.hosts.certificates import make_certificates
from ringlight.extensions.hosts.cluster import Host
from ringlight.extensions.hosts.part import free_door, numbers_taken
from ringlight.extensions.hosts.parts import joint
from ringlight.extensions.hosts.parts import pulse as pulses
from ringlight.extensions.hosts.parts.door import Door
from ringlight.extensions.hosts.parts.front import OtherPart, WorkersOfAll
from ringlight.extensions.hosts.parts.joint import take_deaths
from ringlight.extensions.hosts.parts.plan import CutEnds, Parts, Place, Tls, Tunnel
from ringlight.extensions.hosts.parts.pulse import Pulse
from ringlight.fabric.parts import Port
from ringlight.fabric.topology import Fabric
from ringlight.testbed.addresses import Addresses
from ringlight.testbed.deaths import DeathLog, Deaths
from ringlight.testbed.devices import Site
from ringlight.testbed.emulation.agent.refusals import AgentError
from ringlight.testbed.emulation.agent.worker_requests import WorkerRequest
from ringlight.testbed.emulation.agent.workers import Workers
from ringlight.testbed.emulation.bridges import ControllerAddress
from ringlight.testbed.lab import Lab
from ringlight.testbed.processes import LabProcesses


def plan(tls: Tls | None = None) -> Parts:
    places = (
        Place("a", "127.0.0.1", free_door("127.0.0.1"), ("g0", "tor0")),
        Place("b", "127.0.0.1", free_door("127.0.0.1"), ("g1", "tor1")),
    )
    return Parts(
        "5ec4e7", places, (CutEnds(77, "tor0:3", "tor1:3", (0, 1)),), 14789, tls=tls
    )


def test_a_part_reads_what_another_wrote(tmp_path: Path) -> None:
    parts = plan(Tls("ca", "cert", "key")).as_read_by(1)
    parts.write(tmp_path / "part.json")
    assert Parts.read(tmp_path / "part.json") == parts
    assert (tmp_path / "part.json").stat().st_mode & 0o077 == 0


def test_each_end_of_a_cut_fibre_leads_to_the_other_host() -> None:
    parts = replace(
        plan(),
        places=(Place("a", "10.0.0.1", 1, ("x",)), Place("b", "10.0.0.2", 2, ("y",))),
    )
    assert parts.tunnels == {Port("tor0", 3): Tunnel(77, "10.0.0.1", "10.0.0.2", 14789)}
    assert parts.as_read_by(1).tunnels == {
        Port("tor1", 3): Tunnel(77, "10.0.0.2", "10.0.0.1", 14789)
    }
    assert parts.here == {"x"}
    assert parts.as_read_by(1).place_of == {"x": 0, "y": 1}


@dataclass
class Doors:
    parts: Parts
    first: Door
    second: Door
    told: list[str] = field(default_factory=list)


@pytest.fixture(params=["plain", "tls"])
def doors(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Doors]:
    tls = None
    if request.param == "tls":
        made = make_certificates(tmp_path / "certificates").parent
        tls = Tls(*(str(made / f"{name}.pem") for name in ("ca", "cert", "key")))
    parts = plan(tls)
    told: list[str] = []
    first, second = (
        Door(parts, {}, lambda: None),
        Door(parts.as_read_by(1), {}, lambda: told.append("end")),
    )
    try:
        second.open()
        yield Doors(parts, first, second, told)
    finally:
        first.close()
        second.close()


def echoing(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def answer(caller: socket.socket) -> None:
        with caller:
            while said := caller.recv(1 << 16):
                caller.sendall(said.upper())

    def serve() -> None:
        while True:
            try:
                caller, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(caller,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    return listener


def test_a_server_of_another_host_is_reached_by_a_socket_here(
    doors: Doors, tmp_path: Path
) -> None:
    with echoing(tmp_path / "echo"):
        doors.second.servers = {"echo": tmp_path / "echo"}
        doors.first.to_unix(tmp_path / "here", doors.parts.places[1], "echo")
        address = doors.first.to_tcp(doors.parts.places[1], "echo")
        assert (tmp_path / "here").stat().st_mode & 0o077 == 0
        with (
            socket.socket(socket.AF_UNIX) as unix,
            socket.create_connection(address, timeout=5) as tcp,
        ):
            unix.settimeout(5)
            unix.connect(str(tmp_path / "here"))
            for connection in (unix, tcp):
                connection.sendall(b"light" * 10_000)
                with connection.makefile("rb") as replies:
                    assert replies.read(50_000) == b"LIGHT" * 10_000


def test_a_door_lets_nobody_in_without_the_token_or_to_what_is_not_named(
    doors: Doors, tmp_path: Path
) -> None:
    with echoing(tmp_path / "echo"):
        doors.second.servers = {"echo": tmp_path / "echo"}
        stranger = Door(replace(doors.parts, token="other"), {}, lambda: None)
        try:
            for door, name in ((stranger, "echo"), (doors.first, "agent")):
                with socket.create_connection(
                    door.to_tcp(doors.parts.places[1], name), timeout=5
                ) as caller:
                    caller.sendall(b"light")
                    assert caller.recv(10) == b""
        finally:
            stranger.close()


def test_a_pulse_tells_the_clock_and_ends_the_part(doors: Doors) -> None:
    pulse = Pulse(doors.parts, doors.parts.places[1], lambda _: None)
    pulse.start()
    assert pulse.answered.wait(5)
    # Both read one clock.
    assert abs(pulse.offset_s) <= pulse.error_s < 1
    pulse.end()
    deadline = time.monotonic() + 5
    while not doors.told and time.monotonic() < deadline:
        time.sleep(0.01)
    assert doors.told == ["end"]
    doors.second.close()
    assert pulse.await_end(5)


def test_a_part_that_does_not_answer_is_lost_once(
    doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulses, "LOST_S", 0.3)
    monkeypatch.setattr(pulses, "EVERY_S", 0.05)
    lost: list[str] = []
    pulse = Pulse(
        doors.parts, doors.parts.places[1], lambda place: lost.append(place.host)
    )
    pulse.start()
    assert pulse.answered.wait(5)
    doors.second.close()
    deadline = time.monotonic() + 5
    while not lost and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.2)
    assert lost == ["b"]
    pulse.end()


def test_a_host_that_was_never_heard_is_lost_and_one_without_a_door_yet_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While parts come up: a network that is cut says nothing, and a host refuses."""
    monkeypatch.setattr(pulses, "LOST_S", 0.3)
    monkeypatch.setattr(pulses, "ANSWER_S", 0.2)
    lost: list[str] = []
    with socket.create_server(("127.0.0.1", 0), backlog=1) as silent:
        door = silent.getsockname()[1]
        parts = plan(None)
        places = [replace(parts.places[1], host="silent", ip="127.0.0.1", door=door)]
        places.append(replace(places[0], host="refusing", door=1))
        found = [
            Pulse(parts, place, lambda place: lost.append(place.host))
            for place in places
        ]
        for pulse in found:
            pulse.start()
        deadline = time.monotonic() + 5
        while not lost and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        for pulse in found:
            pulse.end()
    assert lost == ["silent"]


class Own:
    """The first part's own workers."""

    workloads = Path()

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.removed: list[str] = []
        self.released: list[tuple[list[str], float]] = []

    def start_all(self, wanted: list[WorkerRequest]) -> list[dict[str, Any]]:
        return [
            {"id": one.worker, "gpu": one.gpu, "state": "running"} for one in wanted
        ]

    def report(self, cursor: int) -> dict[str, Any]:
        return {
            "cursor": len(self.events),
            "workers": [],
            "events": self.events[cursor:],
            "lost_gpus": [],
        }

    def ends(self, known: int, wait_s: float) -> int:
        time.sleep(0.01)
        return 0

    def remove(self, name: str) -> None:
        self.removed.append(name)

    def release(self, ids: list[str], at: float) -> None:
        self.released.append((list(ids), at))


class Far(OtherPart):
    """Another part, whose clock is 100 s later."""

    def __init__(self) -> None:
        place = Place("b", "127.0.0.1", 1, ("g1", "tor1"))
        pulse = cast(
            Pulse, type("P", (), {"place": place, "lost": False, "offset_s": 100.0})()
        )
        super().__init__(pulse, Path("/nowhere"))
        self.asked: list[tuple[str, str, Any]] = []
        self.refuses = False

    def ask(self, method: str, path: str, body: Any = None, **_more: Any) -> Any:
        if path.startswith("/v1/ends"):
            time.sleep(0.01)
            return {"ends": 0}
        self.asked.append((method, path, body))
        if self.refuses:
            raise AgentError(500, "host b: no room")
        if path == "/v1/workers/batch":
            return [
                {
                    "id": f"{one['job']}-{one['rank']}",
                    "gpu": one["gpu"],
                    "state": "running",
                }
                for one in body
            ]
        worker = {"id": "j-1", "job": "j", "rank": 1, "gpu": "g1", "state": "running"}
        event = {
            "t": 105.0,
            "event": "iteration",
            "compute_start": 104.0,
            "i": 3,
            "rank": 1,
        }
        event |= {
            "stalls": [[101.0, 102.0]],
            "beacon_gaps": [{"t_start": 101.0, "t_end": 103.0, "lost": 2}],
        }
        return {
            "cursor": 1,
            "workers": [worker],
            "events": [event] if path.endswith("=0") else [],
        }


@pytest.fixture
def all_of() -> Iterator[tuple[WorkersOfAll, Own, Far]]:
    own, far = Own(), Far()
    fabric = cast(Fabric, type("F", (), {"gpus": {"g0": None, "g1": None}})())
    found = WorkersOfAll(fabric, cast(Workers, own), [far])
    yield found, own, far
    found.close()


def wanted() -> list[WorkerRequest]:
    return [
        WorkerRequest(job="j", rank=rank, gpu=f"g{rank}", spec={}) for rank in (0, 1)
    ]


def test_workers_start_where_their_gpus_are(
    all_of: tuple[WorkersOfAll, Own, Far],
) -> None:
    found, own, far = all_of
    assert [one["id"] for one in found.start_all(wanted())] == ["j-0", "j-1"]
    assert [(method, path) for method, path, _ in far.asked] == [
        ("POST", "/v1/workers/batch")
    ]
    found.release(["j-0", "j-1"], 5.0)
    assert own.released == [(["j-0"], 5.0)]
    assert far.asked[-1][2] == {"ids": ["j-1"], "at": 105.0}


def test_all_workers_start_or_none(all_of: tuple[WorkersOfAll, Own, Far]) -> None:
    found, own, far = all_of
    far.refuses = True
    with pytest.raises(AgentError, match="host b: no room"):
        found.start_all(wanted())
    assert own.removed == ["j-0"]


def test_times_of_another_host_become_those_of_this_one(
    all_of: tuple[WorkersOfAll, Own, Far],
) -> None:
    found, own, _ = all_of
    own.events.append({"t": 4.5, "event": "iteration", "rank": 0})
    report = found.report(0)
    assert [event["t"] for event in report["events"]] == [4.5, 5.0]
    theirs = report["events"][1]
    assert theirs["compute_start"] == 4.0
    assert theirs["stalls"] == [[1.0, 2.0]]
    assert theirs["beacon_gaps"] == [{"t_start": 1.0, "t_end": 3.0, "lost": 2}]
    # Nobody hears anything twice.
    assert found.report(report["cursor"])["events"] == []


def test_workers_of_a_lost_host_have_ended_and_its_gpus_are_lost(
    all_of: tuple[WorkersOfAll, Own, Far],
) -> None:
    found, _, far = all_of
    found.start_all(wanted())
    cursor = found.report(0)["cursor"]
    far.pulse.lost = True
    report = found.report(cursor)
    assert report["lost_gpus"] == ["g1"]
    assert [(e["event"], e["worker"], e["error"]) for e in report["events"]] == [
        ("exited", "j-1", "host b is lost")
    ]
    assert found.ends(0, 1.0) == 1
    assert found.report(report["cursor"])["events"] == []
    found.remove("j-1")
    assert found.report(report["cursor"])["workers"] == []


def test_a_number_of_a_living_lab_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("testbed.lab", "extensions.hosts.part"):
        monkeypatch.setattr(f"ringlight.{module}.STATE_ROOT", tmp_path)
    lab = Lab("abcd")
    with lab.hold():
        plan().write(lab.state_dir / "part.json")
        taken = numbers_taken(14789, [76, 77])
        assert taken == "VXLAN number 77 at UDP port 14789 is a fibre of lab abcd"
        assert numbers_taken(4789, [77]) is None
        assert numbers_taken(14789, [78]) is None
    # It has ended without an owner: what is left of it is stale.
    assert numbers_taken(14789, [77]) is None


def test_what_ends_on_another_host_is_on_record_here(tmp_path: Path) -> None:
    far = Far()
    there = [
        {
            "t": 105.0,
            "kind": "optical switch",
            "name": "ocs0",
            "how": "by signal 9",
            "asked": True,
        }
    ]
    far.ask = lambda *_: there[far.deaths :]  # type: ignore[method-assign]
    noted = Deaths(tmp_path / "deaths.jsonl")
    take_deaths(far, noted)
    take_deaths(far, noted)
    (death,) = DeathLog(tmp_path / "deaths.jsonl").read()
    assert (death.t, death.kind, death.name, death.asked) == (
        5.0,
        "optical switch",
        "ocs0",
        True,
    )


def test_a_part_that_nobody_looks_after_is_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Present:
        def __init__(self) -> None:
            self.addresses = {
                "10.0.0.1": "tls://10.0.0.1:1",
                "10.0.0.2": "tls://10.0.0.2:1",
            }

        def present(self) -> dict[str, str]:
            return self.addresses

    present = Present()
    hosts = [Host("a", "tls://10.0.0.1:1", 1), Host("b", "tls://10.0.0.2:1", 1)]
    parted = spread.SpreadLab(
        cast(Any, present), hosts, cast(Any, None), {}, spread.Over(2)
    )
    monkeypatch.setattr(spread, "_BLIND_S", 0.0)
    processes = LabProcesses({}, "namespace", Addresses(), spread=parted)
    assert processes.ended() == []
    present.addresses = {"10.0.0.1": "tls://10.0.0.1:1"}
    (death,) = processes.ended()
    assert (death.kind, death.name) == ("Dask worker of host", "b")
    assert "blind" in str(death.how)
    present.addresses = {**present.addresses, "10.0.0.2": "tls://10.0.0.2:2"}
    (back,) = processes.ended()
    assert (back.name, back.how) == ("b", None)


def test_a_part_that_hears_nothing_from_the_first_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = threading.Event()
    monkeypatch.setattr(joint, "LEASE_S", 0.2)
    monkeypatch.setattr(joint, "FORGOTTEN_S", 0.05)
    part = joint.Joint(plan().as_read_by(1))
    site = Site(Lab("abcd"), tmp_path, {})
    switches_find_it = part.open(
        site,
        ControllerAddress("127.0.0.1", 6653),
        Deaths(tmp_path / "deaths.jsonl"),
        stopped.set,
    )
    try:
        assert (part.is_here("tor1"), part.is_here("tor0")) == (True, False)
        assert part.open_ends == {Port("tor1", 3)}
        # It is carried to the first part.
        assert switches_find_it.port != 6653
        assert stopped.wait(5)
    finally:
        part.close()
