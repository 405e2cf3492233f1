"""Processes of a lab that its testbed keeps running: how each is started, awaited and watched."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from ringlight.testbed import deaths, forkserver, services
from ringlight.testbed.deaths import Deaths
from ringlight.testbed.devices import device_kinds
from ringlight.testbed.emulation.settings import Settings, Stopped, TestbedError
from ringlight.testbed.forkserver import ForkServer
from ringlight.testbed.freezes import Watched
from ringlight.testbed.preloaded import WORKER
from ringlight.testbed.process_start import (
    SOCKET,
    Process,
    importing,
    start_process,
)
from ringlight.testbed.supervision import Life, Start, Supervisor, last_line

#: Longest wait for the optical switches, and then for the O-NICs' agents, to answer, seconds.
START_S = 30.0
#: From so many processes on, a fork server starts them in less than they would take.
_WORTH_FORKING = 4


class KeptProcesses:
    """The processes of a lab: each is started again when it ends, until ``undo`` is closed.

    ``on_restart``: called with the part of the inventory, the name, the new process id, and whether somebody
    asked for that end. ``by_part``: supervisors of a fabric's parts that are processes, by their part of the
    inventory. ``by_kind``: all supervisors. ``environment``: of the processes that are started here.
    """

    def __init__(
        self,
        settings: Settings,
        undo: ExitStack,
        on_restart: Callable[[str, str, int, bool], None],
    ) -> None:
        self._settings, self._undo, self._on_restart = settings, undo, on_restart
        self.environment = importing(settings.lab.environment())
        self.deaths = Deaths(settings.state / deaths.FILE)
        self.by_part: dict[str, Supervisor] = {}
        self.by_kind: dict[deaths.ProcessKind, Supervisor] = {}
        self._fork_server: ForkServer | None = None
        self.stopping = threading.Event()

    def go_on(self) -> None:
        """Raise Stopped once the lab is to be stopped."""
        if self.stopping.is_set():
            raise Stopped("stopped while it was being built")

    def open_fork_server(self) -> list[str]:
        """Have the lab's processes forked if that costs nothing, or pays as they are so many.

        Return the modules that the server should import for them.
        """
        fabric, emulation = self._settings.fabric, "ringlight.testbed.emulation"
        in_namespaces = (
            self._settings.runtime == "namespace" and self._settings.command is None
        )
        here = self._settings.share.is_here
        optical = sum(
            s.has_datapath and here(s.name) for s in fabric.optical_switches.values()
        )
        kinds = (
            (optical, [f"{emulation}.optical.__main__"]),
            (len(fabric.agents), [f"{emulation}.onic.__main__"]),
            (
                len(fabric.devices),
                [name for kind in device_kinds().values() for name in kind.modules],
            ),
            (sum(map(here, fabric.gpus)) * in_namespaces, WORKER),
        )
        worth = sum(count for count, _ in kinds) >= _WORTH_FORKING
        if SOCKET not in self.environment and (worth or forkserver.can_fork_server()):
            server = ForkServer(
                self._settings.state / "forks.sock", [], self.environment
            )
            self._undo.callback(server.close)
            self._fork_server = server
            self.environment[SOCKET] = str(server.path)
        return [
            module for count, needed in kinds if worth and count for module in needed
        ]

    def spawn(
        self, command: Sequence[str], log_file: Path, follow: bool = False
    ) -> Process:
        """Start a process of the lab, whose output is added to a file, and return it.

        ``follow``: it ends with this one.
        """
        number = signal.SIGTERM if follow else None
        with log_file.open("ab") as output:
            return start_process(
                command, self.environment, output, directory=Path("/"), follow=number
            )

    def await_ready(
        self,
        supervisor: Supervisor,
        name: str,
        ready: Callable[[], bool],
        log_file: Path,
        deadline: float,
    ) -> None:
        """Wait until a process that was just started is ready. Raises TestbedError if it died or is late."""
        while not ready():
            self.go_on()
            if supervisor.lives()[name].has_died:
                raise TestbedError(
                    f"{supervisor.kind} {name} did not start: {last_line(log_file)}"
                )
            if time.monotonic() > deadline:
                raise TestbedError(f"{supervisor.kind} {name} was not ready in time")
            time.sleep(0.01)

    def keep(
        self,
        kind: deaths.ProcessKind,
        called: str,
        starts: Mapping[str, Start],
        part: str,
    ) -> None:
        """Start processes, if any, and keep them running until the lab goes. ``part``: of the inventory."""
        if starts:
            kept = self.by_part[part] = self.supervise(kind, called, starts, part)
            self._undo.callback(kept.stop)

    def supervise(
        self,
        kind: deaths.ProcessKind,
        called: str,
        starts: Mapping[str, Start],
        part: str,
        *more: Any,
    ) -> Supervisor:
        """Start processes that are started again. Return their supervisor, which notes each end.

        ``more``: arguments of ``Supervisor``.
        """

        def on_restart(name: str, pid: int, requested: bool) -> None:
            self.deaths.back(kind, name)
            self._on_restart(part, name, pid, requested)

        kept = Supervisor(
            called, starts, on_restart, *more, on_end=partial(self.deaths.ended, kind)
        )
        self.by_kind[kind] = kept
        return kept

    def watched(self) -> list[Watched]:
        """Return the processes started here, and those of the machine's services that work for the lab."""
        lives = [
            (kind, name, life)
            for kind, kept in [*self.by_kind.items()]
            for name, life in kept.lives().items()
        ]
        watched = [
            Watched(kind, name, life.pid, kind in self._settings.programs)
            for kind, name, life in lives
            if life.runs
        ]
        if self._fork_server is not None:
            watched.append(Watched("fork server", "forks", self._fork_server.pid))
        for name, pid in services.running_pids(
            docker=self._settings.runtime == "docker"
        ).items():
            watched.append(
                Watched(
                    "Open vSwitch" if name in services.OPEN_VSWITCH else "Docker",
                    name,
                    pid,
                )
            )
        return watched

    def lives(self, part: str) -> Mapping[str, Life]:
        """Return the lives of the processes of a part of the inventory."""
        return self.by_part[part].lives() if part in self.by_part else {}
