"""Run the conductor of one job on a ring: flow sockets of the nodes, WSSs through their drivers.

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
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ringlight.controller.bus import EventBus
from ringlight.controller.light.documents import LitPair, quantiles
from ringlight.controller.light.switches import WRITE_S, Lights
from ringlight.controller.onic.flow_clients import flow_name
from ringlight.extensions.wrht.conductor import (
    Closed,
    Conductor,
    ConductorLit,
    Configure,
    Effect,
    Failed,
    Lost,
)
from ringlight.extensions.wrht.documents import Playing, SetUp, SetUpStatistics
from ringlight.extensions.wrht.wdm import RingPlan, set_up_steps

log = logging.getLogger(__name__)

_T = TypeVar("_T")

#: After a restart: how long workers have to come back with what they had open, seconds. They try every 20 ms.
SETTLE_S = 1.0
#: Interval between readings of the WSSs while nothing changes, seconds.
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


class RingConductor:
    """Thread that plays one job's plan.

    ``sockets``: path of each node's flow socket, by GPU. ``ips``: IP addresses of the GPUs. ``lights``: the
    job's switches, reserved from :meth:`start` to the end of :meth:`stop`, and not closed here. ``resumed``:
    another controller played before, and the WSSs carry its setting. Raises OSError if a socket cannot be
    made; then nothing is left.
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
            [step.pairs for step in plan.steps],
            resumed=resumed,
            each_step=self._each_step,
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
        #: Tasks of the second thread that are not finished, each with its continuation.
        self._tasks: deque[tuple[Future[Any], Callable[[Any], None]]] = deque()
        self._second = ThreadPoolExecutor(1, thread_name_prefix=f"ring-{job}-wss")
        self._stopping = False
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = socket.socketpair()
        for end in (self._wake, self._waker):
            end.setblocking(False)
        self._selector.register(
            self._wake, selectors.EVENT_READ, lambda: self._wake.recv(64)
        )
        self._listeners: list[tuple[socket.socket, Path]] = []
        try:
            for node, path in sockets.items():
                self._listen(node, path)
        except OSError:
            self._shut()
            raise
        self._thread = threading.Thread(
            target=self._run, name=f"ring-{job}", daemon=True
        )

    # Life

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Hang up on every worker, begun or not. The light stays as it is."""
        if self._thread.ident is None:
            self._shut()
            return
        self._stopping = True
        self._rouse()
        # It first ends what it does with the WSSs.
        self._thread.join(2 * (WRITE_S + self.lights.declared_s))
        if self._thread.is_alive():
            log.error(
                "ring %s: the conductor of job %s did not end",
                self.plan.place,
                self.job,
            )

    def _rouse(self) -> None:
        # A full pipe rouses, too; a closed one has nobody to rouse.
        with contextlib.suppress(OSError):
            self._waker.send(b".")

    def _listen(self, node: str, path: Path) -> None:
        path.unlink(missing_ok=True)
        listener = socket.socket(
            socket.AF_UNIX,
            socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC,
        )
        self._listeners.append((listener, path))
        try:
            listener.bind(str(path))
            path.chmod(0o666)
            listener.listen(MAX_CLIENTS)
        except OSError as error:
            raise OSError(error.errno, f"{path}: {error.strerror or error}") from error
        self._selector.register(
            listener, selectors.EVENT_READ, lambda: self._accept(node, listener)
        )

    def _shut(self) -> None:
        for client in list(self._clients.values()):
            client.connection.close()
        self._clients.clear()
        for listener, path in self._listeners:
            listener.close()
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

    # Effects of the core

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Configure):
                self._configure(effect)
            elif isinstance(effect, ConductorLit):
                self._tell(effect.flow, {"lit": 0})
            elif isinstance(effect, Closed):
                self._tell(effect.flow, {"closed": 0}, over=True)
            elif isinstance(effect, Failed):
                document = {
                    "failed": 0,
                    "reason": effect.reason,
                    "retry_after_s": RETRY_S,
                }
                self._tell(effect.flow, document, over=True)
            else:
                assert isinstance(effect, Lost)
                self._tell(effect.flow, {"lost": 0, "reason": effect.reason}, over=True)

    def _beside(self, work: Callable[[], _T], then: Callable[[_T], None]) -> None:
        """Have the second thread do something about the WSSs, and go on with what came out."""
        task = self._second.submit(work)
        self._tasks.append((task, then))
        task.add_done_callback(lambda _: self._rouse())

    def _configure(self, request: Configure) -> None:
        due_at = time.monotonic()
        setting = self.plan.steps[request.setting].cross_connects

        def write() -> tuple[int, list[str], float]:
            return *self.lights.set(
                setting, anew=self._each_step
            ), time.monotonic() - due_at

        def written(outcome: tuple[int, list[str], float]) -> None:
            switches, problems, write_s = outcome
            self._looked_at = time.monotonic()
            self._note(problems)
            if problems:
                self._do(self._core.unconfigured(problems[0]))
                return
            self._do(self._core.configured())
            if switches:
                set_up = SetUp(
                    due_at, request.step, switches, write_s, time.monotonic() - due_at
                )
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
            self._bus.publish(
                "plane", plane=self.plan.place, job=self.job, state=state, text=trouble
            )

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
        self._selector.register(
            connection, selectors.EVENT_READ, lambda: self._read(client)
        )

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
        """Process a packet of a client. Return the effects. Raises ValueError for an invalid packet."""
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
        name, peer, step = (
            flow_name(request, "open"),
            request.get("peer"),
            request.get("step"),
        )
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
        """Reason for which the light is not as it should be; None if it is."""
        with self._lock:
            return self._trouble

    def document(self) -> Playing:
        """Return the progress of the job's light."""
        step, steps = self._core.step, len(self.plan.steps)
        iteration = None if step is None else step // steps
        return Playing(
            self.job, steps, step, iteration, self._core.setting, self.trouble
        )

    def lit_pairs(self) -> list[LitPair]:
        """Return the pairs of GPUs that have light, for the step whose light is set; before any setting, for
        the first step.

        Empty if a switch does not carry everything that the step needs.
        """
        step, transmit = self.plan.steps[self._core.setting or 0], self.plan.transmit
        if not all(
            group <= self.lights.carries(name)
            for name, group in step.cross_connects.items()
        ):
            return []
        return [
            LitPair(gpu, peer, transmit[gpu][peer].wavelength, 1)
            for gpu, peer in sorted(step.pairs)
        ]

    def statistics(self) -> SetUpStatistics:
        """Return statistics of the changes of light so far.

        If all light is removed and set again at each step, the declared time includes one more command, which
        removes the present light.
        """
        with self._lock:
            kept, count = list(self._set_ups), self._count
        return SetUpStatistics(
            job=self.job,
            count=count,
            set_ups_per_iteration=sum(set_up_steps(self.plan)),
            declared_s=self.lights.declared_s
            + (self.lights.command_s if self._each_step else 0.0),
            total=quantiles([set_up.total_s for set_up in kept]),
            write=quantiles([set_up.write_s for set_up in kept]),
            switches=max((set_up.switches for set_up in kept), default=0),
        )

    @property
    def changes(self) -> list[SetUp]:
        """Return the last changes of light, one by one."""
        with self._lock:
            return list(self._set_ups)
