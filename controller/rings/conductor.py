"""The conductor of one job on a ring, at work: the nodes' flow sockets, and the WSSs through their drivers.

One thread serves every socket and never waits for a WSS. A second one sets and reads these, one thing after
the other, all WSSs at the same time. So a WSS that hangs keeps nobody from coming, closing or going. The flow
sockets speak as those of the O-NICs' agents do (``docs/onic-protocol.md``).

A WSS is written only where it lacks something that the setting needs. What it carries besides disturbs
nothing, because a setting is compatible with all that it leaves standing.
"""

from __future__ import annotations

import contextlib
import json
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from controller.bus import EventBus
from controller.circuits.optical_site import OpticalSite
from controller.errors import UnavailableError
from controller.onic.agent import flow_name
from controller.onic.conductor import Closed, Conductor, Configure, Effect, Failed, Lit, Lost
from controller.optical.base import Deadline, Snapshot
from controller.optical.errors import OpticalError, StaleRevision
from fabric.crossconnect import CrossConnect, CrossConnectState, Mode
from fabric.wdm import RingPlan, set_up_steps

log = logging.getLogger(__name__)

_T = TypeVar("_T")

#: What each WSS shall carry, by name.
Setting = Mapping[str, frozenset[CrossConnect]]

#: WSSs written at the same time.
PARALLEL = 32
#: Longest time for one WSS to do what it is told, besides its declared set-up, seconds.
WRITE_S = 10.0
#: After a restart: how long workers have to come back with what they had open, seconds. They try every 20 ms.
SETTLE_S = 1.0
#: How often the WSSs are read when nothing has changed for as long, seconds.
WATCH_S = 5.0
#: When a flow that failed is worth another try, seconds.
RETRY_S = 0.5
MAX_PACKET_BYTES = 4096
MAX_CLIENTS = 64
MAX_FLOWS_PER_CLIENT = 4096
#: Changes of light that are kept for who asks.
KEPT = 20_000


@dataclass
class _Client:
    """A connection of a worker. ``flows``: those it has open, by the worker's own names."""

    node: str
    number: int
    connection: socket.socket
    flows: set[Any] = field(default_factory=set)


@dataclass(frozen=True)
class SetUp:
    """One change of light. ``at``: when it was due (the step before over, and somebody asking), monotonic.

    ``write_s``: until the last driver had read back what it was told, the declared dark time included.
    ``total_s``: until the flows were told. Both seconds from ``at``.
    """

    at: float
    step: int
    switches: int
    write_s: float
    total_s: float


def quantile(values: list[float], share: float) -> float | None:
    """The value that this share of the values does not exceed; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Lights:
    """The WSSs of a ring: what they carry, as last read, and how they are changed. For one thread."""

    def __init__(self, site: OpticalSite, switches: tuple[str, ...]) -> None:
        self._site = site
        self._seen: dict[str, Snapshot] = {}
        self._pool = ThreadPoolExecutor(min(PARALLEL, len(switches)), thread_name_prefix="ring")
        self.switches = switches
        timings = [site.driver(name).capabilities().timing for name in switches]
        #: Declared time from a write to light, seconds; and of that, until the write takes effect.
        self.declared_s = max((t.lit_after_s(1) for t in timings), default=0.0)
        self.command_s = max((t.command.most_s + t.per_cross_connect_s for t in timings), default=0.0)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def carries(self, name: str) -> frozenset[CrossConnect]:
        """What passes light, as last read; nothing when that is unknown."""
        seen = self._seen.get(name)
        if seen is None:
            return frozenset()
        connected = CrossConnectState.CONNECTED
        return frozenset(xc for xc, state in seen.cross_connects.items() if state is connected)

    def set(self, setting: Setting, *, exactly: bool = False, anew: bool = False) -> tuple[int, list[str]]:
        """Make a setting; how many WSSs were written, and what did not work, one line each.

        ``exactly``: also where a WSS carries all that is needed and more. ``anew``: what stands is taken away
        first, on every WSS, and all that is needed made again.
        """
        lacking = [
            name
            for name in self.switches
            if exactly
            or not setting[name] <= self.carries(name)
            or (anew and (setting[name] or self.carries(name)))
        ]
        return len(lacking), self._on_all(lacking, lambda name: self._write(name, setting[name], anew))

    def compare(self, setting: Setting) -> list[str]:
        """Read every WSS now; what is not as the setting needs it, one line each."""

        def look(name: str) -> str | None:
            try:
                self._seen[name] = self._site.look(name, timeout_s=2.0)
            except UnavailableError as error:
                # It may still pass light; only what is read to be wrong is. The next step reads it again.
                self._seen.pop(name, None)
                log.warning("%s", error)
                return None
            for xc in sorted(setting[name] - self.carries(name)):
                return f"optical switch {name}: {xc} is gone"
            return None

        return self._on_all(self.switches, look)

    def remember(self) -> None:
        """Tell the site what was last read here."""
        for name, snapshot in list(self._seen.items()):
            self._site.remember(name, snapshot)

    def _on_all(self, names: Sequence[str], work: Callable[[str], str | None]) -> list[str]:
        """The work for every WSS, at the same time; what did not work, one line each."""
        # The first in this thread, which would only wait: to wake one less takes less time.
        others = [self._pool.submit(work, name) for name in names[1:]]
        outcomes = [*map(work, names[:1]), *(other.result() for other in others)]
        return [outcome for outcome in outcomes if outcome is not None]

    def _write(self, name: str, wanted: frozenset[CrossConnect], anew: bool) -> str | None:
        """What did not work; None when the WSS carries what is wanted and nothing else."""
        driver = self._site.driver(name)
        deadline = Deadline(WRITE_S + self.declared_s + self.command_s)
        try:
            for last in (False, True):
                seen = self._seen.pop(name, None) or self._site.look(name, timeout_s=deadline.check())
                plan = driver.plan(wanted, Mode.REPLACE, snapshot=seen, anew=anew)
                try:
                    if plan:
                        seen = driver.apply(plan, timeout_s=deadline.check()).snapshot
                except StaleRevision:
                    # Somebody else wrote, or the switch has lost its light: read it anew, once.
                    if last:
                        raise
                    continue
                self._seen[name] = seen
                break
        except UnavailableError as error:
            return str(error)
        except OpticalError as error:
            return f"optical switch {name}: {error}"
        return None


class RingConductor:
    """Plays one job's plan. ``sockets``: where each node's flow socket is to be, by GPU; ``ips``: of GPUs.

    ``lights`` are nobody else's from :meth:`start` to the end of :meth:`stop`, and not closed here.
    ``resumed``: another controller played before; the WSSs carry what it set. Raises OSError when a socket
    cannot be made; then nothing is left.
    """

    def __init__(
        self,
        job: str,
        plan: RingPlan,
        lights: Lights,
        sockets: Mapping[str, Path],
        ips: Mapping[str, str],
        bus: EventBus,
        *,
        resumed: bool = False,
    ) -> None:
        self.job = job
        self.plan = plan
        self.lights = lights
        self._bus = bus
        self._gpu_of = {ip: gpu for gpu, ip in ips.items()}
        self._each_step = plan.reconfigure == "each-step"
        self._core = Conductor(
            [step.pairs for step in plan.steps], resumed=resumed, each_step=self._each_step
        )
        self._settle_at = time.monotonic() + SETTLE_S if resumed else None
        self._clients: dict[int, _Client] = {}
        self._doomed: list[_Client] = []
        self._number = 0
        self._trouble: str | None = None
        self._lock = threading.Lock()
        self._set_ups: deque[SetUp] = deque(maxlen=KEPT)
        self._count = 0
        self._looked_at = time.monotonic()
        #: What the second thread does and has yet to do, each with what follows.
        self._tasks: deque[tuple[Future[Any], Callable[[Any], None]]] = deque()
        self._second = ThreadPoolExecutor(1, thread_name_prefix=f"ring-{job}-wss")
        self._stopping = False
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = socket.socketpair()
        for end in (self._wake, self._waker):
            end.setblocking(False)
        self._selector.register(self._wake, selectors.EVENT_READ, lambda: self._wake.recv(64))
        self._listeners: list[tuple[socket.socket, Path]] = []
        try:
            for node, path in sockets.items():
                self._listen(node, path)
        except OSError:
            self._shut()
            raise
        self._thread = threading.Thread(target=self._run, name=f"ring-{job}", daemon=True)

    # Life

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Hang up on every worker. The light stays as it is."""
        self._stopping = True
        self._rouse()
        if self._thread.ident is not None:
            # It first ends what it does with the WSSs.
            self._thread.join(2 * (WRITE_S + self.lights.declared_s))
            if self._thread.is_alive():
                log.error("ring %s: the conductor of job %s did not end", self.plan.place, self.job)

    def _rouse(self) -> None:
        # A full pipe rouses, too; a closed one has nobody to rouse.
        with contextlib.suppress(OSError):
            self._waker.send(b".")

    def _listen(self, node: str, path: Path) -> None:
        path.unlink(missing_ok=True)
        one = socket.socket(
            socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        self._listeners.append((one, path))
        try:
            one.bind(str(path))
            path.chmod(0o666)
            one.listen(MAX_CLIENTS)
        except OSError as error:
            raise OSError(error.errno, f"{path}: {error.strerror or error}") from error
        self._selector.register(one, selectors.EVENT_READ, lambda: self._accept(node, one))

    def _shut(self) -> None:
        for client in list(self._clients.values()):
            client.connection.close()
        self._clients.clear()
        for one, path in self._listeners:
            one.close()
            path.unlink(missing_ok=True)
        self._second.shutdown(wait=True, cancel_futures=True)
        self._selector.close()
        self._wake.close()
        self._waker.close()

    def _run(self) -> None:
        try:
            while not self._stopping:
                due = self._looked_at + WATCH_S
                if self._settle_at is not None:
                    due = min(due, self._settle_at)
                for key, _ in self._selector.select(max(0.0, due - time.monotonic())):
                    key.data()
                while self._tasks and self._tasks[0][0].done():
                    task, then = self._tasks.popleft()
                    then(task.result())
                now = time.monotonic()
                if self._settle_at is not None and now >= self._settle_at:
                    self._settle_at = None
                    self._do(self._core.settle())
                if now >= self._looked_at + WATCH_S:
                    self._watch()
                while self._doomed:
                    self._drop(self._doomed.pop())
        except Exception as error:
            # Workers see their connections close, and the job fails with that.
            log.exception("the conductor of job %s ends", self.job)
            self._note([f"the conductor has ended: {error!r}"])
        finally:
            self._shut()

    # What the core wants

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Configure):
                self._configure(effect)
            elif isinstance(effect, Lit):
                self._tell(effect.flow, {"lit": 0})
            elif isinstance(effect, Closed):
                self._tell(effect.flow, {"closed": 0}, over=True)
            elif isinstance(effect, Failed):
                document = {"failed": 0, "reason": effect.reason, "retry_after_s": RETRY_S}
                self._tell(effect.flow, document, over=True)
            else:
                assert isinstance(effect, Lost)
                self._tell(effect.flow, {"lost": 0, "reason": effect.reason}, over=True)

    def _beside(self, work: Callable[[], _T], then: Callable[[_T], None]) -> None:
        """Have the second thread do something about the WSSs, and go on with what came out."""
        task = self._second.submit(work)
        self._tasks.append((task, then))
        task.add_done_callback(lambda _: self._rouse())

    def _configure(self, wanted: Configure) -> None:
        due_at = time.monotonic()
        setting = self.plan.steps[wanted.setting].cross_connects

        def write() -> tuple[int, list[str], float]:
            return *self.lights.set(setting, anew=self._each_step), time.monotonic() - due_at

        def written(outcome: tuple[int, list[str], float]) -> None:
            switches, problems, write_s = outcome
            self._looked_at = time.monotonic()
            self._note(problems)
            if problems:
                self._do(self._core.unconfigured(problems[0]))
                return
            self._do(self._core.configured())
            if switches:
                set_up = SetUp(due_at, wanted.step, switches, write_s, time.monotonic() - due_at)
                with self._lock:
                    self._count += 1
                    self._set_ups.append(set_up)

        self._beside(write, written)

    def _watch(self) -> None:
        self._looked_at = time.monotonic()
        if self._tasks or self._core.setting is None:
            return
        setting = self.plan.steps[self._core.setting].cross_connects

        def looked(problems: list[str]) -> None:
            self._looked_at = time.monotonic()
            if problems:
                self._note(problems)
                self._do(self._core.darkened(problems[0]))

        self._beside(lambda: self.lights.compare(setting), looked)

    def _note(self, problems: list[str]) -> None:
        trouble = problems[0] if problems else None
        if trouble != self._trouble:
            with self._lock:
                self._trouble = trouble
            state = "lit" if trouble is None else "trouble"
            self._bus.publish("ring", ring=self.plan.place, job=self.job, state=state, text=trouble)

    # Workers

    def _accept(self, node: str, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            # The client is gone already.
            return
        if sum(client.node == node for client in self._clients.values()) >= MAX_CLIENTS:
            connection.close()
            return
        connection.setblocking(False)
        self._number += 1
        client = self._clients[self._number] = _Client(node, self._number, connection)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read(client))

    def _read(self, client: _Client) -> None:
        if client.number not in self._clients:
            return
        try:
            data = client.connection.recv(MAX_PACKET_BYTES + 1)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(client)
            return
        try:
            effects = self._take(client, data)
        except (ValueError, RecursionError) as error:
            self._write(client, {"error": str(error)})
        else:
            self._do(effects)

    def _take(self, client: _Client, data: bytes) -> list[Effect]:
        """What follows from a packet. Raises ValueError for one that makes no sense."""
        if len(data) > MAX_PACKET_BYTES:
            raise ValueError(f"longer than {MAX_PACKET_BYTES} bytes")
        request = json.loads(data)
        if not isinstance(request, dict):
            raise ValueError("not a JSON object")
        if "close" in request:
            name = flow_name(request, "close")
            if name not in client.flows:
                raise ValueError(f"flow {name!r} is not open")
            return self._core.close((client.number, name))
        if "open" not in request:
            raise ValueError('neither "open" nor "close"')
        name, peer, step = flow_name(request, "open"), request.get("peer"), request.get("step")
        if name in client.flows:
            raise ValueError(f"flow {name!r} is already open")
        if len(client.flows) >= MAX_FLOWS_PER_CLIENT:
            raise ValueError(f"more than {MAX_FLOWS_PER_CLIENT} flows are open")
        if step is not None and (isinstance(step, bool) or not isinstance(step, int)):
            raise ValueError("step must be a whole number")
        client.flows.add(name)
        flow = (client.number, name)
        receiver = self._gpu_of.get(str(peer))
        if receiver is None:
            return [Failed(flow, f"{peer}: is not on the ring")]
        return self._core.open(flow, client.number, (client.node, receiver), step)

    def _tell(self, flow: Any, document: dict[str, Any], *, over: bool = False) -> None:
        number, name = flow
        client = self._clients.get(number)
        if client is None:
            return
        if over:
            client.flows.discard(name)
        self._write(client, {**document, next(iter(document)): name})

    def _write(self, client: _Client, document: Mapping[str, Any]) -> None:
        try:
            client.connection.send(json.dumps(document, separators=(",", ":")).encode())
        except OSError:
            # Gone, or it does not read. Dropped when the effects at hand are carried out.
            self._doomed.append(client)

    def _drop(self, client: _Client) -> None:
        if self._clients.pop(client.number, None) is None:
            return
        self._selector.unregister(client.connection)
        client.connection.close()
        self._do(self._core.gone(client.number))

    # Looking, from any thread

    @property
    def trouble(self) -> str | None:
        """Why the light is not as it should be; None when it is."""
        with self._lock:
            return self._trouble

    def document(self) -> dict[str, Any]:
        """Where it is. ``step`` counts on over iterations."""
        step, steps = self._core.step, len(self.plan.steps)
        return {
            "job": self.job,
            "steps": steps,
            "step": step,
            "iteration": None if step is None else step // steps,
            "setting": self._core.setting,
            "trouble": self.trouble,
        }

    def statistics(self) -> dict[str, Any]:
        """Changes of light so far, seconds; ``declared_s``: what the WSSs say they need for one.

        Where all light is set anew that is one command more, which takes away what stands.
        """
        with self._lock:
            kept, count = list(self._set_ups), self._count
        figures: dict[str, Any] = {
            "job": self.job,
            "count": count,
            "set_ups_per_iteration": sum(set_up_steps(self.plan)),
            "declared_s": self.lights.declared_s + (self.lights.command_s if self._each_step else 0.0),
        }
        for name, pick in _FIGURES.items():
            values = [pick(one) for one in kept]
            figures[name] = {
                "p50_s": quantile(values, 0.5),
                "p99_s": quantile(values, 0.99),
                "max_s": max(values, default=None),
            }
        figures["switches"] = max((one.switches for one in kept), default=0)
        return figures

    def set_ups(self) -> list[dict[str, Any]]:
        """The last changes of light, one by one."""
        with self._lock:
            kept = list(self._set_ups)
        return [
            {
                "t": one.at,
                "step": one.step,
                "switches": one.switches,
                "write_s": one.write_s,
                "total_s": one.total_s,
            }
            for one in kept
        ]


_FIGURES: dict[str, Callable[[SetUp], float]] = {
    "total": lambda one: one.total_s,
    "write": lambda one: one.write_s,
}
