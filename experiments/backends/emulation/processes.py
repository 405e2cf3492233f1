"""The processes of a run: the testbed and the controller, started, watched and ended by one owner."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from experiments.backends.protocol import BackendError
from experiments.client import Api, ApiError, Unreachable
from experiments.language.plan import Setting
from experiments.record.writing import writing
from testbed.lab import ENVIRONMENT, Lab, new_lab
from testbed.supervision import ended

log = logging.getLogger(__name__)

#: Deadlines in seconds: the testbed's bring-up, the controller's first answer, either one's orderly end.
UP_S, ANSWER_S, DOWN_S = 60.0, 30.0, 20.0
#: How often a controller that died is started again.
RESTARTS = 3


@dataclass(frozen=True)
class Addresses:
    """Where the controller listens. Addresses are ``host:port``; ``token`` is asked of every caller."""

    rest: str = "127.0.0.1:8080"
    openflow: str = "127.0.0.1:6653"
    token: str | None = None


def split_address(text: str, what: str) -> tuple[str, int]:
    """``host:port``. Raises BackendError naming ``what``."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise BackendError(f"{what}: {text!r} is not host:port, such as 127.0.0.1:8080")
    return host.strip("[]"), int(port)


def check_free(address: str, what: str) -> None:
    """Raise BackendError when another program holds a TCP port that the controller needs."""
    host, port = split_address(address, what)
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = error.strerror or str(error)
            raise BackendError(
                f"port {port} ({what}) cannot be used: {reason}; stop its user or choose another with {what}"
            ) from None


def check_machine(runtime: str) -> None:
    """Raise BackendError, one line with the remedy, for what a lab needs and the machine lacks now."""
    from testbed import services

    if os.geteuid() != 0:
        raise BackendError("root is needed to build networks; run again with sudo")
    if not services.open_vswitch_running():
        raise BackendError("Open vSwitch is not running; start it with: ringlight setup")
    if runtime != "docker":
        return
    if not services.docker_running():
        raise BackendError(
            "Docker is not running; start it with: ringlight setup  (or choose --runtime namespace)"
        )
    from containers.image import image_present, image_tag

    if not image_present():
        raise BackendError(f"the worker image {image_tag()} is missing; make it with: ringlight setup")


def check_ready(runtime: str, addresses: Addresses) -> None:
    """Raise BackendError, one line, for what stands in a lab's way now. Makes nothing."""
    check_machine(runtime)
    check_free(addresses.rest, "--rest")
    check_free(addresses.openflow, "--openflow")


class LabProcesses:
    """One lab with its testbed and controller; use as a context manager.

    ``logs``: folder for the processes' output, else the lab's own. ``follow``: end the processes when this
    one dies, however it dies. ``notice`` is told, in one line, what a person should know.
    """

    def __init__(
        self,
        setting: Setting,
        runtime: str,
        addresses: Addresses,
        logs: Path | None,
        *,
        follow: bool = True,
        notice: Callable[[str], None] = log.warning,
    ) -> None:
        self.setting = setting
        self.runtime = runtime
        self.addresses = addresses
        self.lab: Lab = new_lab()
        self.logs = logs or self.lab.state_dir
        self.api = Api(addresses.rest, addresses.token)
        self.inventory: dict[str, Any] = {}
        self.restarts = 0
        self._away_until = 0.0
        #: Held by who starts or kills the controller while jobs run.
        self._tending = threading.Lock()
        self._follow = follow
        self._notice = notice
        self._testbed: subprocess.Popen[bytes] | None = None
        self._controller: subprocess.Popen[bytes] | None = None
        self._lock: Any = None

    @property
    def state(self) -> Path:
        return self.lab.state_dir

    @property
    def pids(self) -> dict[str, int]:
        both = {"testbed": self._testbed, "controller": self._controller}
        return {name: process.pid for name, process in both.items() if process is not None}

    def __enter__(self) -> LabProcesses:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start both and wait until the controller is healthy. Raises BackendError, WriteError."""
        check_ready(self.runtime, self.addresses)
        try:
            with writing(self.state):
                self._lock = self.lab.hold()
                fabric = self.state / "fabric.json"
                fabric.write_text(json.dumps(self.setting.section), encoding="utf-8")
                if self.addresses.token:
                    token = self.state / "token"
                    token.touch(mode=0o600)
                    token.write_text(self.addresses.token, encoding="utf-8")
            self._testbed = self._spawn("testbed", self._testbed_command())
            self._controller = self._spawn("controller", self._controller_command())
            self._wait_for_inventory()
            self.wait_healthy()
        except BaseException:
            self.stop()
            raise

    def _testbed_command(self) -> list[str]:
        scale, tcp = self.setting.scale, self.setting.tcp
        return [
            *(sys.executable, "-m", "testbed.emulation"),
            *("--fabric", str(self.state / "fabric.json"), "--lab", self.lab.id),
            *("--state", str(self.state), "--runtime", self.runtime),
            *("--time-dilation", repr(scale.time), "--payload-scale", repr(scale.payload)),
            *("--openflow", self.addresses.openflow, "--congestion-control", tcp.congestion_control),
            *("--rto-min", repr(tcp.rto_min_s * scale.time)),
            *(["--onic-faults"] if self.setting.onic_faults else []),
        ]

    def _controller_command(self) -> list[str]:
        command = [
            *(sys.executable, "-m", "controller"),
            *("--fabric", str(self.state / "fabric.json")),
            *("--inventory", str(self.state / "inventory.json")),
            *("--state", str(self.state / "controller")),
            *("--rest", self.addresses.rest, "--openflow", self.addresses.openflow),
        ]
        return [*command, "--token-file", str(self.state / "token")] if self.addresses.token else command

    def _spawn(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        setpriv = shutil.which("setpriv") if self._follow else None
        if setpriv is not None:
            command = [setpriv, "--pdeathsig", "TERM", *command]
        log_file = self.logs / f"{name}.log"
        with writing(log_file):
            output = log_file.open("ab")
        with output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # A session of its own: Ctrl-C reaches only this process, which ends the others in order.
                start_new_session=True,
                env=self.lab.environment(),
                cwd=str(Path(__file__).resolve().parents[3]),
            )

    def _wait_for_inventory(self) -> None:
        path = self.state / "inventory.json"
        deadline = time.monotonic() + UP_S
        while not path.exists():
            self.check()
            if time.monotonic() > deadline:
                raise BackendError(
                    f"the testbed was not up after {UP_S:.0f} s; its last words: {self._last('testbed')}"
                )
            time.sleep(0.02)
        self.inventory = json.loads(path.read_text(encoding="utf-8"))

    def wait_healthy(self) -> None:
        """Wait until the controller says that all is well. Raises BackendError."""
        deadline = time.monotonic() + ANSWER_S
        while True:
            self.check()
            try:
                health = self.api.get("/v1/health")
            except (Unreachable, ApiError) as error:
                reason = str(error)
            else:
                if health["status"] == "ok":
                    return
                reason = "; ".join(health.get("reasons") or [str(health)])
            if time.monotonic() > deadline:
                raise BackendError(f"the controller was not ready after {ANSWER_S:.0f} s: {reason}")
            time.sleep(0.05)

    def check(self) -> None:
        """Raise BackendError when the testbed or, before it first answered, the controller has ended."""
        self._check("testbed", self._testbed)
        self._check("controller", self._controller)

    def _check(self, name: str, process: subprocess.Popen[bytes] | None) -> None:
        if process is not None and process.poll() is not None:
            raise BackendError(f"the {name} ended ({ended(process.returncode)}): {self._last(name)}")

    def kill_controller(self, absence_s: float = math.inf) -> None:
        """Kill the controller (SIGKILL); :meth:`tend` starts it again, but not before ``absence_s``."""
        with self._tending:
            controller = self._controller
            if controller is None or controller.poll() is not None:
                raise BackendError("there is no controller to kill")
            controller.kill()
            controller.wait(5.0)
            self._away_until = time.monotonic() + absence_s

    def let_controller_back(self) -> None:
        """:meth:`tend` starts the killed controller again when it is called next.

        Not here: a process that is to die with its parent dies with the thread that started it.
        """
        with self._tending:
            self._away_until = min(self._away_until, time.monotonic())

    @property
    def controller_away(self) -> bool:
        """Whether the controller was killed on purpose and is to stay away for now."""
        return time.monotonic() < self._away_until

    def tend(self, *, wait: bool = True) -> str | None:
        """While jobs run: start a controller that died again, so that they can be watched to their end.

        Why it had ended, if nobody killed it on purpose. ``wait``: until it is healthy. Raises BackendError
        when the testbed has ended, or the controller too often.
        """
        self._check("testbed", self._testbed)
        with self._tending:
            controller = self._controller
            if controller is None or controller.poll() is None or self.controller_away:
                return None
            reason = None if self._away_until else self._unasked_end(controller)
            self._away_until = 0.0
            self._controller = self._spawn("controller", self._controller_command())
        if wait:
            self.wait_healthy()
        return reason

    def _unasked_end(self, controller: subprocess.Popen[bytes]) -> str:
        """Why a controller ended by itself. Raises BackendError when it has done so too often."""
        # A process that was killed had no say in it; what it last logged explains nothing.
        said = f": {self._last('controller')}" if controller.returncode > 0 else ""
        reason = ended(controller.returncode) + said
        if self.restarts >= RESTARTS:
            raise BackendError(f"the controller ended for the {self.restarts + 1}th time ({reason})")
        self.restarts += 1
        self._notice(f"the controller ended ({reason}); starting it again, jobs go on")
        return reason

    def switches_restarted(self) -> dict[str, int]:
        """How often the testbed has started each optical switch again since last asked, if it has."""
        before = self.inventory["optical_switches"]
        try:
            self.inventory = json.loads((self.state / "inventory.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            # The testbed is ending; whoever tends it says so.
            return {}
        now = self.inventory["optical_switches"]
        grown = {name: now[name].get("restarts", 0) - before[name].get("restarts", 0) for name in now}
        return {name: times for name, times in grown.items() if times}

    def stop(self) -> None:
        """End both in order, then remove whatever of this lab is left. May be called again."""
        previous = {}
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # An impatient second Ctrl-C must not leave half a lab behind; every step has a deadline.
            previous[number] = signal.signal(number, signal.SIG_IGN)
        try:
            self.api.__exit__()
            for name, process in (("controller", self._controller), ("testbed", self._testbed)):
                if process is not None:
                    self._end(name, process)
            self._controller = self._testbed = None
            if self._lock is not None:
                # Held until nothing is left: a lab that comes up meanwhile would take it for a dead one's.
                remove_lab(self.lab)
                self._lock.close()
                self._lock = None
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _end(self, name: str, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(DOWN_S)
        except subprocess.TimeoutExpired:
            self._notice(f"the {name} did not end within {DOWN_S:.0f} s and was killed")
            process.kill()
            process.wait(5.0)

    def leave(self) -> None:
        """Let the processes go on without this one (``ringlight up``)."""
        self.api.__exit__()
        self._controller = self._testbed = None
        self._lock = None

    def _last(self, name: str) -> str:
        """The last line that a process wrote; of a structured log line its message."""
        try:
            lines = (self.logs / f"{name}.log").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it left no message")
        try:
            return str(json.loads(last)["message"])
        except (ValueError, KeyError, TypeError):
            return last


def belongs_to(lab: Lab, pid: int) -> bool:
    """Whether a process lives and belongs to a lab: its number may have been given to another since."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{ENVIRONMENT}={lab.id}".encode() in environment


def remove_lab(lab: Lab) -> list[str]:
    """Remove what is left of one lab, with the testbed's own means; a line for each thing removed."""
    from testbed.emulation.clean import clean

    return clean(lab.id)
