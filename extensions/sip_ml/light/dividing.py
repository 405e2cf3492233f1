"""Divide the light of one job, once or repeatedly, by the data that its GPUs have still to send.

A division: the O-NICs hold everything; what is on its way arrives; the switches are set through their
drivers; the O-NICs are told their lightpaths and send again. All light is dark meanwhile, also where nothing
changes, for as long as the fabric says or the switches take. What the O-NICs hold is not lost.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Any

from ringlight.controller.bus import EventBus
from ringlight.controller.errors import ControllerError, UnavailableError
from ringlight.controller.light.documents import quantiles
from ringlight.controller.light.switches import Lights, Setting
from ringlight.controller.server_agent import AgentClient
from ringlight.extensions.sip_ml.allocation.dividing import divider
from ringlight.extensions.sip_ml.divided.lightpaths import setting_of
from ringlight.extensions.sip_ml.divided.planes import Paths
from ringlight.extensions.sip_ml.light.demand import (
    DividedLight,
    Tables,
    Traffic,
    by_name,
    left,
    passed,
    stranded,
    tables,
)
from ringlight.extensions.sip_ml.light.documents import (
    Decision,
    DecisionStatistics,
    Lightpaths,
)
from ringlight.fabric.steps import FloatArray
from ringlight.fabric.topology import Fabric

log = logging.getLogger(__name__)

#: From when nothing is sent any more until the last of it has arrived, seconds.
GUARD_S = 0.005
#: Longest time for a switch to do what it is told, besides what its profile declares, seconds: meanwhile all
#: is dark.
PATIENCE_S = 2.0
#: When a division that failed is tried again, seconds; where some have light for good, less and less often.
RETRY_S, RETRY_MOST_S = 0.5, 30.0
#: Interval between readings of standing light if it is divided only once, seconds.
WATCH_S = 5.0
#: Longest time for a call of the agent, seconds.
CALL_S = 5.0
#: Decisions that are kept for who asks.
KEPT = 20_000


class DemandLoop:
    """Loop that divides the light of job ``job``.

    ``lights``: its switches, reserved until :meth:`stop` has returned. ``resumed``: another controller
    divided before. The loop then begins with a division even if nothing is left to send, because the O-NICs'
    present state is not known.
    """

    def __init__(
        self,
        job: str,
        light: DividedLight,
        fabric: Fabric,
        lights: Lights,
        agent: AgentClient,
        bus: EventBus,
        *,
        resumed: bool = False,
    ) -> None:
        self.job = job
        self.light = light
        self.lights = lights
        self._fabric = fabric
        self._agent = agent
        self._bus = bus
        self._divider = divider(fabric)
        self._setting: Setting = {}
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._paths: Paths = {}
        self._lightpaths: Lightpaths = {}
        self._before: Traffic = {}
        self._trouble: str | None = None
        self._decisions: deque[Decision] = deque(maxlen=KEPT)
        self._count = self._changed = 0
        self._dark_s = 0.0
        self._pause_s = WATCH_S if light.interval_s is None else light.interval_s
        self._retry_s = RETRY_S
        self._thread = threading.Thread(
            target=self._run, args=(resumed,), name=f"light-{job}", daemon=True
        )

    # Life

    def start(self) -> None:
        """Start the thread that divides the light again and again, or once until light is lost."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the loop. A division in progress is completed first, so that no O-NIC stays in the dark."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(
                2 * (PATIENCE_S + CALL_S + self.lights.declared_s) + self.light.dark_s
            )
            if self._thread.is_alive():
                log.error(
                    "%s: the division of light for job %s did not end",
                    self.light.place,
                    self.job,
                )

    def _run(self, at_once: bool) -> None:
        try:
            pause_s = 0.0 if at_once else self._pause_s
            while not self._stop.wait(pause_s):
                pause_s, at_once = self._round(at_once)
        except Exception as error:
            # The workers get no other light, and fail by their own patience.
            log.exception("the division of light for job %s ends", self.job)
            self._note(f"the division of light has ended: {error!r}")

    def _round(self, at_once: bool) -> tuple[float, bool]:
        """Divide if data is left or ``at_once``.

        Return the seconds to the next round, and whether it must divide.
        """
        once = self.light.interval_s is None
        demand, read_s, has_demand = self.light.demand, 0.0, False
        self.lights.recall()
        if not once:
            began = time.monotonic()
            try:
                traffic = self._agent.traffic(timeout_s=CALL_S)["gpus"]
            except ControllerError as error:
                self._note(str(error))
                return RETRY_S, at_once
            remaining = left(self._fabric, self.light.nodes, traffic)
            remaining += stranded(
                self._fabric, self.light.nodes, traffic, self._before, self._paths
            )
            self._before = traffic
            read_s = time.monotonic() - began
            if has_demand := bool(remaining.any()):
                demand = remaining
        if not has_demand and not at_once:
            # Frames that leave into the dark count as sent, until TCP asks for them.
            gone = (
                self.lights.compare(self._setting, skip_failed=True)
                if self._setting
                else []
            )
            self._note(gone[0] if gone else None)
            return (0.0 if gone else self._pause_s), bool(gone)
        if not has_demand and self.has_light and self.lights.failed:
            # It would come out as before, and who has light would be in the dark for it.
            return min(RETRY_S, self._pause_s), True
        decision = self.divide(demand, read_s=read_s)
        if decision.problem is None:
            self._retry_s = RETRY_S
            # The next one is found before this one's time is over: light shines for all of it.
            return max(0.0, self._pause_s - decision.read_s - decision.decide_s), False
        if not self.has_light:
            return RETRY_S, True
        # Pairs that have light in spite of the failure keep it as long as otherwise.
        self._retry_s = min(RETRY_MOST_S, 2 * self._retry_s)
        return (self._retry_s if once else self._pause_s), True

    # Dividing

    def first(self) -> Decision:
        """Divide light for all that the job sends, before its workers start. Return the decision."""
        return self.divide(self.light.demand, counted=False)

    def divide(
        self, demand: FloatArray, *, read_s: float = 0.0, counted: bool = True
    ) -> Decision:
        """Divide light for a demand in bytes [gpus, gpus]. Return the decision.

        ``read_s``: seconds that reading the demand took. ``counted``: include the decision in the statistics.
        """
        began = time.monotonic()
        paths = self._divider.division(demand).paths
        return self._set(
            began, {}, paths, paths, int(demand.sum()), read_s=read_s, counted=counted
        )

    def _set(
        self,
        began: float,
        kept: Paths,
        then: Paths,
        standing: Paths,
        left_bytes: int,
        *,
        read_s: float = 0.0,
        counted: bool = True,
        nodes: Collection[str] | None = None,
        guard_s: float = GUARD_S,
        anew: bool = True,
        turns: Sequence[tuple[int, int]] = (),
    ) -> Decision:
        """Set the switches to pass ``standing``, for the O-NICs of ``nodes`` (default: all). Return the
        decision.

        The O-NICs send only over ``kept`` during the change, and over ``then`` afterwards. ``anew``: all
        light goes dark even if the switches pass everything already. ``turns``: the turns for which light is
        set.
        """
        setting = setting_of(self._fabric, standing)
        changed = setting != self._setting
        decided = held = written = shone = time.monotonic()
        problems: list[str] = []
        try:
            self._tell(kept, nodes)
            held = written = shone = time.monotonic()
            if changed or anew:
                time.sleep(guard_s)
                _, problems = self.lights.set(setting, exactly=True, skip_failed=True)
                written = time.monotonic()
                time.sleep(max(0.0, held + self.light.dark_s - written))
            then = passed(self._fabric, then, self.lights.carries) if problems else then
            if then != kept:
                self._tell(then, nodes)
            shone = time.monotonic()
        except ControllerError as error:
            problems.insert(0, str(error))
        problem = problems[0] if problems else None
        decision = Decision(
            number=self._count + counted,
            t=began,
            left_bytes=left_bytes,
            changed=changed,
            read_s=read_s,
            decide_s=decided - began,
            hold_s=held - decided,
            write_s=written - held,
            dark_s=shone - held,
            problem=problem,
            lightpaths=self._told(),
            turns=[*turns],
        )
        self._setting = {} if problems else setting
        if counted:
            with self._lock:
                self._count += 1
                self._changed += decision.changed
                self._dark_s += decision.dark_s
                self._decisions.append(decision)
        self._bus.publish(
            "light", job=self.job, place=self.light.place, **asdict(decision)
        )
        self._note(problem)
        return decision

    def _tell(self, paths: Paths, nodes: Collection[str] | None = None) -> None:
        """Give every node (or these) its lightpaths, none to hold everything. Raises ControllerError."""
        with self._lock:
            self._paths = {}
        node_tables = tables(self._fabric, self.light.nodes, paths)
        if nodes is not None:
            node_tables = {node: node_tables[node] for node in nodes}
        write_tables(self._agent, self.light.place, node_tables)
        with self._lock:
            self._paths = paths

    def _note(self, trouble: str | None) -> None:
        with self._lock:
            before, self._trouble = self._trouble, trouble
        if trouble not in (None, before):
            log.warning("%s: %s", self.light.place, trouble)

    # Looking, from any thread

    @property
    def trouble(self) -> str | None:
        """Reason for which the light is not as it should be; None if it is."""
        with self._lock:
            return self._trouble

    @property
    def has_light(self) -> bool:
        """True if any pair has light, according to the tables sent to the O-NICs; false during a division."""
        with self._lock:
            return bool(self._paths)

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the number of lightpaths of each pair that has light now, by names of GPUs."""
        with self._lock:
            paths = self._paths
        return by_name(
            list(self._fabric.gpus), {pair: len(own) for pair, own in paths.items()}
        )

    def _told(self) -> Lightpaths:
        """Return :meth:`counts`, as one shared object for all decisions with equal counts."""
        if (counts := self.counts()) != self._lightpaths:
            self._lightpaths = counts
        return self._lightpaths

    def statistics(self) -> DecisionStatistics:
        """Return the number of decisions so far, and the quantiles, in seconds, of the durations that are
        kept.
        """
        with self._lock:
            kept = list(self._decisions)
            count, changed, dark_s = self._count, self._changed, self._dark_s
        took = {
            name: quantiles([getattr(decision, f"{name}_s") for decision in kept])
            for name in ("read", "decide", "hold", "write", "dark")
        }
        return DecisionStatistics(
            self.job, count, changed, dark_s, self.lights.declared_s, **took
        )

    @property
    def changes(self) -> list[Decision]:
        """Return the last decisions, one by one."""
        with self._lock:
            return list(self._decisions)


def write_tables(agent: AgentClient, place: str, node_tables: Tables) -> None:
    """Send the tables to the O-NICs. Raises ControllerError naming the first O-NIC whose table differs."""
    read_back = agent.set_lightpaths(node_tables, timeout_s=CALL_S)
    for gpu, table in node_tables.items():
        if gpu not in read_back or _plain(read_back[gpu]) != _plain(table):
            raise UnavailableError(
                f"{place}: the lightpaths of {gpu} did not read back"
            )


def _plain(table: Any) -> dict[str, tuple[bool, list[tuple[int, int | None]]]]:
    return {
        ip: (
            entry["lit"],
            [(path["port"], path.get("wavelength")) for path in entry["paths"]],
        )
        for ip, entry in table.items()
    }
