"""The processes of a lab, as one who has it built sees them: its testbed, which keeps its controller."""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from ringlight.testbed import deaths
from ringlight.testbed.addresses import Addresses
from ringlight.testbed.certificates import trusting
from ringlight.testbed.deaths import Death, DeathLog
from ringlight.testbed.freezes import FreezeWatch, Watched
from ringlight.testbed.lab import Lab, LabError, new_lab
from ringlight.testbed.lab_programs import ProgramOptions
from ringlight.testbed.other_parts import OtherParts
from ringlight.testbed.process_start import Process, end_process, start_process
from ringlight.testbed.readiness import check_ready
from ringlight.testbed.standing_labs import DOWN_S, STANDING_FILE, late_end, remove
from ringlight.testbed.supervision import ended

log = logging.getLogger(__name__)


#: Deadlines in seconds: the testbed's bring-up, and the controller's first answer.
UP_S, ANSWER_S = 180.0, 30.0


#: So long parts elsewhere may take to say why they could not be built, seconds.
REASON_S = 4.0


#: Which controller the testbed is to keep running.
_KEEPS = "controller-plan.json"


class LabProcesses:
    """A lab with its testbed, which starts the controller and restarts it whenever it dies. Use as a context
    manager.

    ``fabric``: as a scenario writes it. ``options``: further ones of ``ringlight.testbed.emulation``.
    ``logs``: folder for the processes' output, else the lab's own. ``follow``: end the processes when this
    one dies, however it dies. ``programs``: what the testbed runs beside the controller. ``spread``: the
    lab's parts elsewhere. ``lends``: whether the testbed may use this process's fork server, which must
    then last as long as the lab. ``notice`` is called with one line that a person should know. ``on_freeze``
    is called, from a thread, with a process that stands still or continues.
    """

    def __init__(
        self,
        fabric: Mapping[str, Any],
        runtime: str,
        addresses: Addresses,
        options: Sequence[str] = (),
        *,
        logs: Path | None = None,
        follow: bool = True,
        programs: Sequence[ProgramOptions] = (),
        spread: OtherParts | None = None,
        lends: bool = True,
        notice: Callable[[str], None] = log.warning,
        on_freeze: Callable[[Death], None] = lambda _: None,
    ) -> None:
        self._on_freeze = on_freeze
        self.runtime, self.addresses = runtime, addresses
        self.lab: Lab = new_lab()
        self.state = self.lab.state_dir
        # The testbed, which writes the controller's, has another working directory.
        self.logs = (logs or self.state).absolute()
        self.inventory: dict[str, Any] = {}
        #: Its processes that ended and came back, from where they were read last.
        self._deaths = DeathLog(self.state / deaths.FILE)
        #: The same for the thread that reports who stands still, and what that thread has seen by itself.
        self._reported = DeathLog(self.state / deaths.FILE)
        self._seen: deque[Death] = deque()
        self._testbed_went_on_s = 0.0
        self._freezes: FreezeWatch | None = None
        self._fabric, self._options = fabric, options
        self._follow, self._lends, self._notice = follow, lends, notice
        self._programs = programs
        self._spread = spread
        self._testbed: Process | None = None
        self._lock: Any = None
        #: What Python executes as the testbed.
        self._program: Sequence[str] = ("-m", "ringlight.testbed.emulation")

    @property
    def parts(self) -> OtherParts | None:
        """Return the lab's parts elsewhere, None if it has none."""
        return self._spread

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of ``testbed`` and ``controller``, as the inventory was read last."""
        kept = {
            name: entry["pid"]
            for name, entry in self.inventory.get("processes", {}).items()
        }
        return ({} if self._testbed is None else {"testbed": self._testbed.pid}) | kept

    def __enter__(self) -> LabProcesses:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start them and wait until the controller is healthy. Raises LabError, OSError; nothing is left."""
        check_ready(self.runtime, self.addresses, self._programs)
        try:
            self._lock = self.lab.hold()
            (self.state / "fabric.json").write_text(
                json.dumps(self._fabric), encoding="utf-8"
            )
            if self.addresses.token:
                token = self.state / "token"
                token.touch(mode=0o600)
                token.write_text(self.addresses.token, encoding="utf-8")
            for program in self._programs:
                to, secret = (
                    self.addresses,
                    self.state / "token" if self.addresses.token else None,
                )
                program.write(
                    self._plan_of(program), to.url, to.cacert, secret, self.logs
                )
            keeps = {
                "command": self._controller(),
                "rest": self.addresses.rest,
                "log": str(self.logs / "controller.log"),
                "follow": self._follow,
            }
            (self.state / _KEEPS).write_text(json.dumps(keeps), encoding="utf-8")
            if self._spread is not None:
                self._program = self._spread.begin(
                    self.state, self.runtime, self._options
                )
            self._start_testbed()
            self._wait_for("inventory.json")
            self.read_inventory()
            self.wait_healthy()
        except BaseException:
            self.stop()
            raise

    @property
    def _both(self) -> list[str]:
        """Options of testbed and controller."""
        return [
            "--fabric",
            str(self.state / "fabric.json"),
            "--openflow",
            self.addresses.openflow,
        ]

    def _controller(self) -> list[str]:
        command = [
            *(
                sys.executable,
                "-m",
                "ringlight.controller",
                *self._both,
                "--rest",
                self.addresses.rest,
            ),
            *("--inventory", str(self.state / "inventory.json")),
            *("--state", str(self.state / "controller")),
        ]
        command += [f"--{name}-insecure" for name in sorted(self.addresses.insecure)]
        if self.addresses.tls is not None:
            cert, key = (str(path.absolute()) for path in self.addresses.tls)
            command += ["--tls-cert", cert, "--tls-key", key]
        return (
            [*command, "--token-file", str(self.state / "token")]
            if self.addresses.token
            else command
        )

    def _start_testbed(self) -> None:
        lab = [
            "--lab",
            self.lab.id,
            "--state",
            str(self.state),
            "--runtime",
            self.runtime,
        ]
        programs = [f"--program={p.name}={self._plan_of(p)}" for p in self._programs]
        command = [sys.executable, *self._program, *self._both, *lab, *programs]
        command += ["--keep", str(self.state / _KEEPS), *self._options]
        follow = signal.SIGTERM if self._follow else None
        with (self.logs / "testbed.log").open("ab") as output:
            self._testbed = start_process(
                command,
                self.lab.environment(),
                output,
                follow=follow,
                as_client=self._lends,
            )
        self._freezes = FreezeWatch(
            ("runner", "ringlight"),
            self._watched,
            self._see_testbed,
            self._follow_testbed,
        )
        self._freezes.__enter__()

    def _watched(self) -> list[Watched]:
        """Return the processes that the testbed cannot watch: itself."""
        testbed = self._testbed
        return [] if testbed is None else [Watched("testbed", "testbed", testbed.pid)]

    def _see_testbed(self, death: Death) -> None:
        if death.kind == "testbed" and death.how is None:
            # By its own clock it will see the same.
            self._testbed_went_on_s = death.t
        self._see(death)

    def _see(self, death: Death) -> None:
        self._seen.append(death)
        if death.frozen:
            self._on_freeze(death)

    def _follow_testbed(self) -> None:
        """Report at once who stands still, as the one who waits for them may wait for long."""
        for death in self._reported.read():
            if death.is_astray and not (
                death.kind == "testbed" and death.t <= self._testbed_went_on_s
            ):
                self._see(death)

    def _end_watch(self) -> None:
        if self._freezes is not None:
            self._freezes.__exit__(None, None, None)
            self._freezes = None

    def _plan_of(self, program: ProgramOptions) -> Path:
        """Return the file by which the testbed knows a program."""
        return self.state / f"{program.name}-plan.json"

    def _wait_for(self, file: str) -> None:
        """Wait until the testbed has written a file of the lab's state."""
        path = self.state / file
        deadline = time.monotonic() + UP_S
        while not path.exists():
            self.check()
            if time.monotonic() > deadline:
                raise LabError(
                    f"the testbed was not up after {UP_S:.0f} s; its last words: {self._last()}"
                )
            time.sleep(0.02)

    def read_inventory(self) -> dict[str, Any]:
        """Read the inventory again and return it: process ids change when something is started again. Raises
        OSError.
        """
        self.inventory = json.loads(
            (self.state / "inventory.json").read_text(encoding="utf-8")
        )
        return self.inventory

    def wait_healthy(self) -> None:
        """Wait until the controller reports that all is well. Raises LabError."""
        patience_s = ANSWER_S + self.lighting_s()
        deadline = time.monotonic() + patience_s
        while (reason := self.unwell()) is not None:
            self.check()
            if time.monotonic() > deadline:
                raise LabError(
                    f"the controller was not ready after {patience_s:.0f} s: {reason}"
                )
            time.sleep(0.05)

    def lighting_s(self) -> float:
        """Return the longest time in seconds that an optical switch may need to light all that it can:
        minutes at a large D.
        """
        times_s = [0.0]
        for switch in self.inventory.get("optical_switches", {}).values():
            timing = {
                name: value
                for name, value in switch.get("profile", {}).items()
                if name.endswith("_s")
            }
            of_one = timing.pop("command_per_xc_s", 0.0)
            # A command may change few of them.
            times_s.append(switch.get("size", 0) * of_one + 10 * sum(timing.values()))
        return 2 * max(times_s)

    def unwell(self) -> str | None:
        """Return what the controller reports to be wrong, or that it does not answer; None if all is well."""
        # Here, where its controller is waited for anyway.
        import httpx

        token = self.addresses.token
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        url, cacert = f"{self.addresses.url}/v1/health", self.addresses.cacert
        try:
            # Without TLS there is nothing to trust, and reading whom the machine trusts takes time.
            trusted = cacert is not None and trusting(cacert, anywhere=True)
            health = httpx.get(
                url, headers=headers, timeout=ANSWER_S, trust_env=False, verify=trusted
            )
            document = health.raise_for_status().json()
        except httpx.HTTPError as error:
            return f"no answer at {url}: {error or type(error).__name__}"
        # A GPU that was lost on purpose is none of the controller's.
        lost = {f"GPU {gpu} is lost" for gpu in document.get("lost_gpus", ())}
        reasons = [reason for reason in document["reasons"] if reason not in lost]
        return "; ".join(reasons) or None

    def check(self) -> None:
        """Raise LabError when the testbed has ended, could not be built elsewhere, or has lost its state."""
        if self._lock is not None and not (self.state / "lock").exists():
            raise LabError(
                f"the lab's state directory {self.state} was removed while the lab was up"
            )
        if self._testbed is not None and (code := self._testbed.poll()) is not None:
            if self._spread is not None and not self.inventory:
                self._await_reason(self._spread)
            # A process that was killed had no say in it; what it last logged explains nothing.
            detail = f": {self._last()}" if code >= 0 else ""
            raise LabError(f"the testbed ended ({ended(code)}){detail}")
        if self._spread is not None and not self.inventory:
            self._spread.check()

    def _await_reason(self, spread: OtherParts) -> None:
        """Raise LabError if another part could not be built: its report may come a little later."""
        deadline = time.monotonic() + REASON_S
        while time.monotonic() < deadline:
            spread.check()
            time.sleep(0.1)

    def ended(self) -> list[Death]:
        """Return what ended, or is back, since the last call: processes, and what parts elsewhere tell."""
        deaths = [death for death in self._deaths.read() if not death.is_astray]
        return deaths if self._spread is None else [*deaths, *self._spread.ended()]

    def astray(self) -> list[Death]:
        """Return the processes that stand still, or continue, since the last call.

        Bridges and ports that are not as they were left, or are so again, are also returned.
        """
        deaths: list[Death] = []
        while self._seen:
            deaths.append(self._seen.popleft())
        return deaths

    def stop(self) -> None:
        """End the testbed, which ends the controller, and remove what is left. May be called again."""
        with _uninterrupted():
            self._end_watch()
            if self._testbed is not None and not end_process(self._testbed, DOWN_S):
                self._notice(late_end("testbed"))
            self._testbed = None
            if self._spread is not None:
                self._spread.end(self.state, self.logs)
            if self._lock is not None:
                # Held until nothing is left: a lab that comes up meanwhile would take it for a dead one's.
                remove(self.lab)
                self._lock.close()
                self._lock = None

    def leave_standing(self, **facts: Any) -> dict[str, Any]:
        """Let the processes run on without this one, until :func:`end_standing`. Return the lab's document as
        ``tell_standing``.
        """
        document = self.tell_standing(**facts)
        self._end_watch()
        self._testbed = self._lock = None
        return document

    def tell_standing(self, **facts: Any) -> dict[str, Any]:
        """Write the lab's document, by which commands of this machine find the lab. Return it."""
        document = {
            "lab": self.lab.id,
            "runtime": self.runtime,
            "rest": self.addresses.rest,
            "url": self.addresses.url,
            "cacert": self.addresses.cacert,
            "openflow": self.addresses.openflow,
            "logs": str(self.logs),
            "pids": self.pids,
            **facts,
        }
        (self.state / STANDING_FILE).write_text(json.dumps(document), encoding="utf-8")
        return document

    def is_standing(self) -> bool:
        """Return whether other commands can find the lab, and none has ended it."""
        return (self.state / STANDING_FILE).exists()

    def _last(self) -> str:
        """Return the last line that the testbed wrote; of a structured log line its message."""
        try:
            lines = (
                (self.logs / "testbed.log")
                .read_text(encoding="utf-8", errors="replace")
                .splitlines()
            )
        except OSError:
            lines = []
        last = next(
            (line.strip() for line in reversed(lines) if line.strip()),
            "it left no message",
        )
        try:
            return str(json.loads(last)["message"])
        except (ValueError, KeyError, TypeError):
            return last


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore signals in the block, since a second Ctrl-C must not leave half a lab.

    Every step in the block has a deadline.
    """
    previous = {}
    # Only the main thread may set handlers, and it alone is interrupted by one.
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            previous[number] = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
