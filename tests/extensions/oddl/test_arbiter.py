"""The arbiter over WSSs kept in memory and agents that are stand-ins behind real Unix sockets."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.controller.bus import EventBus
from ringlight.controller.circuits.change import Target
from ringlight.controller.circuits.intent import IntentDatabase
from ringlight.controller.circuits.manager import CircuitManager
from ringlight.controller.circuits.optical_site import OpticalSite
from ringlight.controller.errors import (
    ConflictError,
    ControllerError,
    InvalidError,
    UnavailableError,
)
from ringlight.controller.jobs.job import JobState
from ringlight.controller.jobs.manager import JobManager
from ringlight.controller.jobs.reservation import (
    JOB,
    Holder,
    Reservations,
    placed,
    planes_for,
)
from ringlight.controller.jobs.workload_files import WorkloadFiles
from ringlight.controller.light.documents import PlaneDocument
from ringlight.controller.onic.place import OnicPlace
from ringlight.controller.onic.reach import Reach
from ringlight.controller.onic.wire import VERSION
from ringlight.controller.packets.forwarding import Forwarding
from ringlight.controller.store import Store
from ringlight.extensions.oddl.arbiter import GridPlan, GridProvider, plan_light
from ringlight.fabric.building import build_fabric
from ringlight.fabric.crossconnect import CrossConnect, Mode
from ringlight.fabric.planes.choice import lit_planes
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.topology import Fabric
from tests.lights import Wss, light_context
from tests.unit.test_controller_job import ScriptedAgent
from tests.unit.test_controller_rules import FakeTables

HD = {"collective": "halving-doubling"}


def grid_fabric(
    rows: int = 4, columns: int = 4, wavelengths: int | None = None, **more: Any
) -> Fabric:
    grid = {"rows": rows, "columns": columns, "gpu": "titan-v", "rate": "100 Gbit/s"}
    grid |= {} if wavelengths is None else {"wavelengths": wavelengths}
    return build_fabric(FabricSpec.model_validate({"grids": {"n": grid}, **more}))


GRID = grid_fabric()
BLUE = Holder(JOB, "blue")


class StandIn:
    """An agent's management socket: keeps a map. ``log`` tells what was written, in order."""

    def __init__(self, gpu: str, path: Path, log: list[tuple[str, str]]) -> None:
        self.gpu = gpu
        self.path = path
        self.log = log
        self.version = VERSION
        self.forgetful = False
        self.before_status: Callable[[], None] | None = None
        self.state: dict[str, Any] = {"job": None, "map_version": None, "peers": {}}
        self.start()

    def start(self) -> None:
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen(16)
        self._thread = threading.Thread(
            target=self._serve, args=(self._listener,), daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        self._listener.close()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rwb") as lines:
                for line in lines:
                    lines.write(
                        json.dumps(self.answer(json.loads(line))).encode() + b"\n"
                    )
                    lines.flush()

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        if asked["op"] == "status":
            if self.before_status is not None:
                self.before_status()
            return {
                "ok": True,
                "version": self.version,
                "gpu": self.gpu,
                "epoch": 1,
                **self.state,
            }
        self.log.append((asked["op"], self.gpu))
        if self.state["job"] not in (None, asked["job"]):
            return {"ok": False, "error": f"holds the map of job {self.state['job']}"}
        if asked["op"] == "clear_map":
            self.state = {"job": None, "map_version": None, "peers": {}}
            return {"ok": True, "map": None}
        if asked["version"] < (self.state["map_version"] or 0):
            return {"ok": False, "error": f"map version {asked['version']} is old"}
        if not self.forgetful:
            self.state = {
                "job": asked["job"],
                "map_version": asked["version"],
                "peers": asked["peers"],
            }
        return {"ok": True, "map": self.state["peers"]}


class Bench:
    """A grid's controller parts; ``restart`` is what a crash and a new start do."""

    def __init__(self, directory: Path, fabric: Fabric = GRID) -> None:
        self.fabric = fabric
        self.directory = directory
        directory.mkdir()
        self.log: list[tuple[str, str]] = []
        self.wss = {
            n: Wss(n, s.size, s.wavelengths or 0)
            for n, s in fabric.optical_switches.items()
        }
        self.agents = {
            gpu: StandIn(gpu, directory / f"{gpu}.sock", self.log)
            for gpu in fabric.onics
        }
        self.server = ScriptedAgent()
        self.start()

    def start(self) -> None:
        self.bus = EventBus()
        store = Store(self.directory / "store")
        self.site = OpticalSite(self.wss, {}, self.bus)
        forwarding = Forwarding(self.fabric, FakeTables())  # type: ignore[arg-type]
        if hasattr(self, "intents"):
            self.intents.close()
        self.intents = IntentDatabase(self.directory / "circuits.sqlite")
        self.circuits = CircuitManager(
            self.fabric, self.site, forwarding, self.intents, self.bus
        )
        self.circuits.adopt()
        onics = {
            gpu: OnicPlace(
                flow=f"/onic/{gpu}", manage=str(agent.path), control=f"10.83.0.{i}:7900"
            )
            for i, (gpu, agent) in enumerate(self.agents.items())
        }
        self.arbiter = GridProvider(
            light_context(
                self.fabric,
                self.site,
                bus=self.bus,
                circuits=self.circuits,
                onics=onics,
            )
        )
        self.arbiter.period_s = 0.05
        self.jobs = JobManager(
            self.fabric,
            self.server,  # type: ignore[arg-type]
            store,
            self.bus,
            dict,
            workloads=WorkloadFiles(self.directory / "workloads"),
            reservations=Reservations(),
            busy_s=0.005,
            idle_s=0.01,
            lights={"grid": self.arbiter},
            flow_sockets={gpu: f"/onic/{gpu}" for gpu in onics},
        )
        self.jobs.start()
        self.arbiter.start()

    def halt(self) -> None:
        self.jobs.stop()
        self.arbiter.stop()

    def close(self) -> None:
        self.halt()
        for agent in self.agents.values():
            agent.stop()

    def plan(self, *nodes: str) -> GridPlan:
        return plan_light(self.fabric, self.fabric.parts["grids"]["n"], nodes)

    def document(self) -> PlaneDocument:
        (plane,) = lit_planes(self.fabric)
        return self.arbiter.document(plane, self.jobs.holders())

    def lit(self) -> dict[str, set[CrossConnect]]:
        return {name: set(wss.stand) for name, wss in self.wss.items() if wss.stand}

    def writes(self) -> int:
        return sum(wss.writes for wss in self.wss.values())

    def wait(self, condition: Callable[[], Any]) -> None:
        done = threading.Event()
        for _ in range(2000):
            if condition():
                return
            done.wait(0.005)
        raise AssertionError("it did not come about in 10 s")

    def submit(
        self, name: str, wanted: Sequence[str] | int, **more: Any
    ) -> dict[str, Any]:
        about = {key: more.pop(key) for key in ("on_loss", "spares") if key in more}
        return self.jobs.submit(name, wanted, HD | more, hold=True, **about)

    def run(self, name: str, wanted: Sequence[str] | int, **more: Any) -> None:
        """Submit a job and bring it to RUNNING."""
        ranks = len(self.submit(name, wanted, **more)["ranks"])
        self.wait(
            lambda: all(f"{name}-{rank}" in self.server.alive for rank in range(ranks))
        )
        for rank in range(ranks):
            self.server.say(f"{name}-{rank}", "ready")
        self.wait(lambda: self.jobs.job(name)["state"] == "READY")
        self.jobs.release([name], 0.0)

    def finish(self, name: str) -> None:
        for rank in self.jobs.job(name)["ranks"]:
            self.server.say(rank["worker"], "done")
            self.server.exit(rank["worker"], 0)
        self.wait(
            lambda: (
                not any(worker.startswith(f"{name}-") for worker in self.server.alive)
            )
        )

    def has_map(self, plan: GridPlan, job: str) -> bool:
        return all(
            self.agents[gpu].state["job"] == job
            and self.agents[gpu].state["peers"] == self.arbiter.peers(plan, gpu)
            for gpu in plan.nodes
        )


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "bench")
    try:
        yield made
    finally:
        made.close()


# Choosing, without any device


@given(st.sets(st.sampled_from(GRID.parts["grids"]["n"].nodes)), st.integers(1, 20))
def test_a_counted_job_gets_a_free_rectangle_or_a_reason(
    held: set[str], count: int
) -> None:
    grid, holders = GRID.parts["grids"]["n"], dict.fromkeys(held, BLUE)
    fits = {h * w for h in range(1, 5) for w in range(1, 5)}
    (plane,) = planes_for(GRID, count, None)
    try:
        chosen = placed(plane, count, holders, alone=False)
    except InvalidError:
        assert count not in fits
    except ConflictError:
        assert count in fits
        assert held
    else:
        places = [divmod(grid.nodes.index(node), 4) for node in chosen]
        assert not set(chosen) & held
        rows, columns = {r for r, _ in places}, {c for _, c in places}
        assert len(places) == count == len(rows) * len(columns)
        assert places == sorted(places)


MIXED = {
    "servers": {"s0": {"gpus": {"g0": "tesla-m40", "g1": "tesla-m40"}}},
    "packet_switches": {"tor0": {"ports": 2}},
    "links": [
        {"ends": [f"g{i}", f"tor0:{i + 1}"], "rate": "10 Gbit/s"} for i in range(2)
    ],
}


def test_a_number_without_a_grid_is_for_the_grids_only_where_there_is_nothing_else() -> (
    None
):
    mixed = grid_fabric(2, 2, **MIXED)
    assert planes_for(mixed, 2, None) == []
    assert planes_for(mixed, ["g0", "g1"], None) == []
    (plane,) = planes_for(mixed, 4, "n")
    assert placed(plane, 4, {}, alone=False) == ("n0", "n1", "n2", "n3")
    assert planes_for(mixed, ["n0", "g1"], None) == [plane]
    with pytest.raises(
        InvalidError, match="rank 1: GPU g1 is not on grid n; a job stays on one plane"
    ):
        placed(plane, ["n0", "g1"], {}, alone=False)
    with pytest.raises(InvalidError, match="rank 0: GPU g0 is not on grid n"):
        placed(plane, ["g0"], {}, alone=False)
    with pytest.raises(InvalidError, match="there is no plane m"):
        planes_for(mixed, 2, "m")


@pytest.mark.parametrize(
    ("wanted", "settings", "error", "said"),
    [
        (5, HD, InvalidError, "5 nodes do not make a rectangle in grid n of 4 × 4"),
        (17, HD, InvalidError, "17"),
        (
            ["n0", "n5"],
            HD,
            InvalidError,
            r"ranks 0 and 1 \(n0, n5\) share neither row nor column",
        ),
        (
            4,
            {"collective": "ring"},
            InvalidError,
            r"collective ring .*ranks 1 and 2 \(n1, n4\)",
        ),
        (["n0", "n99"], HD, InvalidError, "rank 1: there is no GPU n99"),
        (["n14", "n15"], HD, ConflictError, "rank 1: GPU n15 is reserved by job blue"),
        (16, HD, ConflictError, "15 free nodes of 16"),
        (
            ["n0", "n5"],
            {"workload": "linktest", "linktest": {"to": [1, None]}},
            InvalidError,
            "linktest on grid n: ranks 0 and 1",
        ),
    ],
)
def test_what_a_grid_cannot_carry_is_refused(
    bench: Bench,
    wanted: Any,
    settings: dict[str, Any],
    error: type[ControllerError],
    said: str,
) -> None:
    with pytest.raises(error, match=said) as caught:
        bench.jobs.light_plan(wanted, settings, None, {"n15": BLUE})
    assert "\n" not in str(caught.value)


def test_plans_of_two_jobs_share_no_light_and_reach_nobody_else(bench: Bench) -> None:
    red, blue = bench.plan("n0", "n1", "n4", "n5"), bench.plan("n2", "n3", "n6", "n7")
    shared = red.ports.keys() & blue.ports.keys()
    assert shared == {"n-r0", "n-r1"}
    assert not any(red.ports[name] & blue.ports[name] for name in shared)
    for plan in (red, blue):
        for name, group in plan.cross_connects.items():
            assert {p for xc in group for p in (xc.ingress, xc.egress)} <= plan.ports[
                name
            ]
    shown = bench.arbiter.plan_document(red)
    assert (shown.plane, shown.kind, shown.ranks) == ("n", "grid", list(red.nodes))
    assert shown.maps["n0"] == {"n1": Reach(0, 1), "n4": Reach(1, 1)}


# Light and maps


def test_light_comes_before_maps_and_goes_after_them(bench: Bench) -> None:
    plan = bench.plan("n0", "n1", "n4", "n5")
    lit_at_map: list[bool] = []
    bench.agents["n0"].before_status = lambda: lit_at_map.append(bool(bench.lit()))
    bench.arbiter.light("red", plan)
    assert bench.lit() == {
        name: set(group) for name, group in plan.cross_connects.items()
    }
    assert bench.has_map(plan, "red")
    assert lit_at_map[-1] is True
    bench.log.clear()
    writes = bench.writes()
    bench.arbiter.light("red", plan)
    assert (bench.log, bench.writes()) == ([], writes), (
        "what was right was written again"
    )
    assert bench.arbiter.clear("red", plan) == []
    assert lit_at_map[-1] is True, "the light went before the maps"
    assert bench.lit() == {}
    assert sorted(bench.log) == [("clear_map", gpu) for gpu in sorted(plan.nodes)]
    bench.arbiter.light("blue", plan)
    with pytest.raises(ConflictError, match="grid n: node n0 is lit for job blue"):
        bench.arbiter.light("red", bench.plan("n0", "n1"))
    assert bench.arbiter.clear("red", bench.plan("n0", "n1")) == []
    assert bench.agents["n0"].state["job"] == "blue", (
        "a map of another job was taken away"
    )


def test_another_jobs_light_is_not_touched_and_set_circuits_leaves_wsss_alone(
    bench: Bench,
) -> None:
    red, blue = bench.plan("n0", "n1", "n4", "n5"), bench.plan("n2", "n3", "n6", "n7")
    bench.arbiter.light("red", red)
    lit, writes = bench.lit(), bench.writes()
    bench.arbiter.light("blue", blue)
    assert all(lit[name] <= bench.lit()[name] for name in lit)
    assert bench.writes() - writes == len(blue.switches), "one write for each switch"
    bench.arbiter.clear("blue", blue)
    assert bench.lit() == lit
    bench.circuits.set_circuits([], who="test")
    assert bench.lit() == lit
    assert bench.has_map(red, "red")


def test_light_that_nobody_asked_for_goes_unless_another_job_sends_it(
    bench: Bench,
) -> None:
    plan = bench.plan("n0", "n1")
    # From n0 and to n0, from and to free nodes.
    bench.wss["n-r0"].stand |= {CrossConnect(1, 4 + 4, 3), CrossConnect(3, 4 + 1, 2)}
    bench.arbiter.light("red", plan)
    assert bench.lit() == {"n-r0": set(plan.cross_connects["n-r0"])}
    intruder = CrossConnect(1, 4 + 4, 3)
    bench.wss["n-r0"].stand.add(intruder)
    with pytest.raises(
        ConflictError, match="n-r0: 1->8 on λ3 comes from a node of job red"
    ):
        bench.arbiter.light("blue", bench.plan("n2", "n3"))
    assert intruder in bench.wss["n-r0"].stand


def test_a_map_that_does_not_read_back_is_an_error(bench: Bench) -> None:
    bench.agents["n1"].forgetful = True
    with pytest.raises(
        UnavailableError,
        match="O-NIC agent of n1: the map of job red did not read back",
    ):
        bench.arbiter.light("red", bench.plan("n0", "n1"))


# Jobs


def test_a_job_is_refused_where_its_switch_or_agent_cannot_be_used(
    bench: Bench,
) -> None:
    bench.wss["n-c1"].away = True
    with pytest.raises(UnavailableError, match="optical switch n-c1"):
        bench.submit("red", 4)
    bench.wss["n-c1"].away = False
    bench.agents["n4"].version = VERSION + 1
    with pytest.raises(
        ConflictError, match=f"O-NIC agent of n4 speaks protocol version {VERSION + 1}"
    ):
        bench.submit("red", 4)
    bench.agents["n4"].version = VERSION
    bench.agents["n5"].stop()
    with pytest.raises(UnavailableError, match="O-NIC agent of n5"):
        bench.submit("red", 4)
    assert bench.jobs.jobs() == []
    assert (bench.log, bench.writes()) == ([], 0), "a refused job wrote something"
    bench.agents["n5"].start()
    assert bench.submit("red", 4)["plane"] == "n"


def test_a_job_from_submit_to_end(bench: Bench) -> None:
    bench.run("red", 4)
    plan = bench.plan("n0", "n1", "n4", "n5")
    assert bench.server.specs["red-2"]["onic"] == "/onic/n4"
    assert bench.has_map(plan, "red")
    job = bench.jobs.job("red")
    assert (job["plane"], job["switches"]) == ("n", ["n-c0", "n-c1", "n-r0", "n-r1"])
    with pytest.raises(ConflictError, match="rank 0: GPU n0 is reserved by job red"):
        bench.submit("blue", ["n0", "n1"])
    assert [rank["gpu"] for rank in bench.submit("blue", 4)["ranks"]] == [
        "n2",
        "n3",
        "n6",
        "n7",
    ]
    bench.jobs.cancel("blue")
    bench.wait(lambda: bench.jobs._book.jobs["blue"].clean)
    grid = bench.document()
    assert (grid.jobs, grid.free) == (["red"], 12)
    assert next(node.ports for node in grid.nodes if node.gpu == "n5") == [
        "n-r1:2",
        "n-c1:2",
    ]
    row = next(switch for switch in grid.switches if switch.name == "n-r1")
    assert {(e.source, e.destination, e.wavelength) for e in row.lit} == {
        ("n4", "n5", 1),
        ("n5", "n4", 3),
    }
    bench.finish("red")
    bench.wait(lambda: not bench.lit())
    assert bench.agents["n0"].state["job"] is None
    assert bench.jobs.job("red")["state"] == JobState.SUCCEEDED


def test_light_that_cannot_be_cleared_is_tried_again_before_the_next_job(
    bench: Bench,
) -> None:
    bench.run("red", 4)
    bench.wss["n-r1"].away = True
    bench.finish("red")
    bench.wait(lambda: not bench.wss["n-r0"].stand)
    assert bench.wss["n-r1"].stand
    assert not bench.jobs._book.jobs["red"].clean
    bench.wss["n-r1"].away = False
    bench.wait(lambda: bench.jobs._book.jobs["red"].clean)
    assert bench.lit() == {}
    bench.run("blue", 4)
    assert bench.has_map(bench.plan("n0", "n1", "n4", "n5"), "blue")


def test_a_restart_changes_nothing_that_is_right_and_mends_what_is_not(
    bench: Bench,
) -> None:
    bench.run("red", 4)
    plan = bench.plan("n0", "n1", "n4", "n5")
    lit, writes = bench.lit(), bench.writes()
    bench.log.clear()
    bench.halt()
    bench.start()
    bench.wait(lambda: all(bench.arbiter.agents().values()))
    assert (bench.lit(), bench.writes(), bench.log) == (lit, writes, [])
    bench.agents["n4"].state |= {"job": None, "peers": {}}
    bench.wait(lambda: bench.has_map(plan, "red"))
    assert bench.log == [("set_map", "n4")]
    bench.halt()
    missing = sorted(bench.wss["n-r0"].stand)[0]
    bench.wss["n-r0"].stand.remove(missing)
    bench.agents["n5"].state |= {"job": "old", "peers": {}}
    bench.start()
    bench.wait(lambda: bench.has_map(plan, "red"))
    assert bench.lit() == lit
    assert bench.log == [("set_map", "n4"), ("clear_map", "n5"), ("set_map", "n5")]
    bench.finish("red")
    bench.wait(lambda: not bench.lit())


def test_an_end_that_a_crash_cut_short_is_finished_after_the_restart(
    bench: Bench,
) -> None:
    bench.run("red", 4)
    for agent in bench.agents.values():
        agent.stop()
    bench.jobs.cancel("red")
    bench.wait(lambda: not bench.lit())
    bench.halt()
    for agent in bench.agents.values():
        agent.start()
    bench.start()
    bench.wait(
        lambda: all(agent.state["job"] is None for agent in bench.agents.values())
    )


def test_a_switch_set_by_hand_keeps_its_wavelengths(bench: Bench) -> None:
    target = Target((CrossConnect(1, 4 + 2, 1), CrossConnect(1, 4 + 3, 2)), Mode.UPDATE)
    assert bench.circuits.change({"n-r0": target}, who="test").problems == ()
    bench.halt()
    bench.wss["n-r0"].stand.clear()
    bench.start()
    assert bench.wss["n-r0"].stand == set(target.cross_connects)


def test_two_jobs_on_one_wss_use_the_same_wavelengths_and_never_meet(
    tmp_path: Path,
) -> None:
    """Two for eight ports: the light of each job is set for its collective, also after a restart."""
    bench = Bench(tmp_path / "c", grid_fabric(1, 8, 2))
    jobs = {"red": ("n0", "n2", "n4", "n6"), "blue": ("n1", "n3", "n5", "n7")}
    try:
        for name, nodes in jobs.items():
            bench.run(name, nodes)
        bench.halt()
        bench.start()
        bench.wait(lambda: set(bench.document().jobs) == set(jobs))
        (switch,) = bench.document().switches
        lit = {(xc.source, xc.destination, xc.wavelength) for xc in switch.lit}
        assert lit == {
            (nodes[i], nodes[i ^ partner], wavelength)
            for nodes in jobs.values()
            for i in range(4)
            for wavelength, partner in ((0, 1), (1, 2))
        }
        bench.finish("red")
        bench.wait(lambda: bench.jobs.job("red")["state"] == "SUCCEEDED")
        bench.wait(lambda: len(bench.lit()["n-r0"]) == 8)
        assert {xc.ingress - 1 for xc in bench.lit()["n-r0"]} == {1, 3, 5, 7}
    finally:
        bench.close()


def test_a_collective_that_needs_more_wavelengths_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "c", grid_fabric(1, 8, 2))
    try:
        with pytest.raises(InvalidError, match="the job needs 3 wavelengths in row 0"):
            bench.submit("red", 8)
    finally:
        bench.close()


# A GPU is lost


def on_row(*nodes: str) -> GridPlan:
    """The light of a ring of nodes of one row."""
    found = [
        (nodes[rank], nodes[(rank + 1) % len(nodes)]) for rank in range(len(nodes))
    ]
    return plan_light(GRID, GRID.parts["grids"]["n"], nodes, found)


def test_a_spare_on_a_grid_gets_the_light_of_the_lost_node(bench: Bench) -> None:
    bench.run("blue", ["n4", "n5"])
    bench.run(
        "red",
        ["n0", "n1", "n2"],
        collective="ring",
        on_loss="swap",
        spares=["n8", "n3"],
    )
    blue = bench.plan("n4", "n5")
    with pytest.raises(ConflictError, match="GPU n3 is reserved by job red"):
        bench.submit("green", ["n3", "n7"])
    bench.server.kill("red-1")
    bench.wait(lambda: "red-2-r1" in bench.server.alive)
    # n8 shares no row with n2.
    assert [rank["gpu"] for rank in bench.jobs.job("red")["ranks"]] == [
        "n0",
        "n3",
        "n2",
    ]
    plan = on_row("n0", "n3", "n2")
    lit = {name: set(group) for name, group in plan.cross_connects.items()}
    assert bench.lit() == lit | {
        name: set(group) for name, group in blue.cross_connects.items()
    }
    assert bench.has_map(plan, "red")
    assert bench.has_map(blue, "blue")
    assert bench.agents["n1"].state["job"] is None
    assert bench.server.specs["red-1-r1"]["onic"] == "/onic/n3"
    bench.halt()
    bench.start()
    assert bench.jobs.job("red")["switches"] == ["n-r0"]
    bench.finish("red")
    bench.wait(lambda: bench.jobs._book.jobs["red"].clean)
    assert bench.lit().keys() == blue.cross_connects.keys()


def test_a_job_that_no_free_node_of_the_grid_fits_fails_and_leaves_no_light(
    bench: Bench,
) -> None:
    bench.run("red", ["n0", "n1", "n2"], collective="ring", on_loss="swap")
    bench.server.lost = ["n3"]
    bench.server.kill("red-1")
    bench.wait(lambda: bench.jobs.job("red")["state"] == "FAILED")
    error = bench.jobs.job("red")["error"]
    assert error.startswith(
        "rank 1 on GPU n1 was killed by SIGKILL, and it cannot go on: collective ring on"
    )
    assert "share neither row nor column" in error
    bench.wait(lambda: bench.jobs._book.jobs["red"].clean)
    assert bench.lit() == {}


def test_fewer_ranks_on_a_grid_are_lit_anew(bench: Bench) -> None:
    bench.run("red", ["n0", "n1", "n2", "n3"], on_loss="shrink", collective="ring")
    bench.server.kill("red-0")
    bench.wait(lambda: "red-2-r1" in bench.server.alive)
    plan = on_row("n1", "n2", "n3")
    assert bench.lit() == {
        name: set(group) for name, group in plan.cross_connects.items()
    }
    assert bench.has_map(plan, "red")


def test_a_spare_is_where_the_job_runs(bench: Bench) -> None:
    mixed = Bench(bench.directory / "mixed", grid_fabric(2, 2, **MIXED))
    try:
        for ranks, spare in ((["n0", "n1"], "g0"), (["g0"], "n0")):
            with pytest.raises(
                InvalidError, match=f"spares: GPU {spare} is not where the job runs"
            ):
                mixed.submit("red", ranks, on_loss="swap", spares=[spare])
    finally:
        mixed.close()
