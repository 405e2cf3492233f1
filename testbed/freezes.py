"""Processes that stand still without ending: stopped by a signal, frozen by their control group, or held.

The kernel shows who is stopped (``/proc/PID/stat``, the freezer of a control group). Nobody can look while
standing still, so the process that looks also compares its own clock with what the processors gave it: a gap
that neither its work nor other processes on its processor explain is one in which it stood still. So is a
gap of the whole machine.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from ringlight.testbed.deaths import Death, ProcessKind

log = logging.getLogger(__name__)

#: Between two looks at the processes, and at which there are, seconds.
LOOK_S, LIST_S = 0.2, 1.0
#: A process may stand still for so long, seconds: as long as an event of a run may be late.
BEARS_S = 0.5
#: Those through which each byte of a job goes, or each flow of an O-NIC.
BEARS_LESS_S = 0.25
_CARRY: tuple[ProcessKind, ...] = (
    "worker on GPU",
    "container on GPU",
    "O-NIC agent",
    "Open vSwitch",
)
#: An own gap that counts, seconds: what waits for Python's lock may wait for other threads, too.
OWN_BEARS_S = 1.0
STOP_S = 5.0

STOPPED, HELD = "stopped by a signal", "held by a debugger"
FROZEN = "frozen by its control group"
GAP = "its clock has a gap"
SUSPENDED = "it was suspended"
_STATES = {"T": STOPPED, "t": HELD}
_V1, _V2 = (
    Path("/sys/fs/cgroup/freezer"),
    (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")),
)
_NANOSECONDS = 1e9


@dataclass(frozen=True)
class Watched:
    """A process that is looked at. ``tree``: and all that it has started."""

    kind: ProcessKind
    name: str
    pid: int
    tree: bool = False


def bears_s(kind: ProcessKind) -> float:
    """Return how many seconds a process of a kind may stand still."""
    # Here, as few processes need it.
    from ringlight.fabric.keys import device_words

    return BEARS_LESS_S if kind in (*_CARRY, *device_words()) else BEARS_S


# -- what the kernel shows


def stands_still(pid: int) -> str | None:
    """Return in words how a process stands still now; None if it does not, or has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state = stat.rpartition(")")[2].split()[0]
    if state in _STATES:
        return _STATES[state]
    # One that is frozen shows as asleep, as most are.
    return FROZEN if state in "SD" and _is_frozen(pid) else None


def _is_frozen(pid: int) -> bool:
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    return any(_froze(line) for line in lines)


def _froze(line: str) -> bool:
    """Return whether the control group of a line of ``/proc/PID/cgroup`` is frozen, itself or by one above
    it.
    """
    _, controllers, path = line.split(":", 2)
    below = path.lstrip("/")
    if not below:
        # The first one cannot be frozen.
        return False
    if controllers == "freezer":
        return _reads(_V1 / below / "freezer.state", "FROZEN")
    return not controllers and any(
        _reads(root / below / "cgroup.events", "frozen 1") for root in _V2
    )


def _reads(path: Path, line: str) -> bool:
    try:
        return line in path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return False


def families() -> dict[int, list[int]]:
    """Return the children of each process of this machine, by process id."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            stat = Path(entry.path, "stat").read_text(
                encoding="utf-8", errors="replace"
            )
        except OSError:
            continue
        children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(
            int(entry.name)
        )
    return children


def with_children(
    watched: Iterable[Watched], children: Mapping[int, list[int]]
) -> list[Watched]:
    """Return the processes, and all processes that those with a ``tree`` have started, under the name of the
    starter.
    """
    left, listed = list(watched), []
    while left:
        process = left.pop()
        listed.append(process)
        if process.tree:
            left += [
                Watched(process.kind, process.name, pid, True)
                for pid in children.get(process.pid, ())
            ]
    return listed


# -- what follows


@dataclass(frozen=True)
class Moment:
    """A look at the own clock, all in seconds: ``t`` of CLOCK_MONOTONIC, ``cpu_s`` that this process had of
    the processors, ``queued_s`` that this thread and the main one waited for one, and ``slept_s`` that the
    machine slept."""

    t: float
    cpu_s: float
    queued_s: float
    slept_s: float

    @classmethod
    def now(cls) -> Moment:
        t = time.monotonic()
        slept_s = time.clock_gettime(time.CLOCK_BOOTTIME) - t
        return cls(t, time.process_time(), _queued_s(), slept_s)


def _queued_s() -> float:
    """Return how many seconds this thread and the main one, which may have Python's lock, have waited for a
    processor.
    """
    waited_s = 0.0
    for of in ("self", "thread-self"):
        with suppress(OSError, IndexError, ValueError):
            words = Path("/proc", of, "schedstat").read_text(encoding="ascii").split()
            waited_s += int(words[1]) / _NANOSECONDS
    return waited_s


def own_gap_s(before: Moment, now: Moment, pause_s: float) -> float:
    """Return the seconds that neither the pause, nor own work, nor the wait for the processor explains."""
    worked_s = now.cpu_s - before.cpu_s
    return (now.t - before.t) - pause_s - worked_s - (now.queued_s - before.queued_s)


@dataclass
class Standstills:
    """From looks at processes to who stood still for longer than its work bears."""

    #: Who stands still: since when, how, and whether that was reported.
    _since: dict[tuple[ProcessKind, str], tuple[float, str, bool]] = field(
        default_factory=dict
    )

    def look(
        self, t: float, still: Mapping[tuple[ProcessKind, str], str]
    ) -> list[Death]:
        """Return the news at ``t`` (CLOCK_MONOTONIC, seconds): processes that have stood still for too long,
        or continue.

        ``still``: processes that stand still now, each with how it does.
        """
        deaths: list[Death] = []
        for key, how in still.items():
            since, first, reported = self._since.get(key, (t, how, False))
            if not reported and t - since >= bears_s(key[0]):
                deaths.append(Death(since, *key, first, frozen=True))
                reported = True
            self._since[key] = since, first, reported
        for key in self._since.keys() - still.keys():
            since, how, reported = self._since.pop(key)
            if not reported and t - since >= bears_s(key[0]):
                deaths.append(Death(since, *key, how, frozen=True))
                reported = True
            if reported:
                deaths.append(Death(t, *key, frozen=True))
        return deaths


def own_standstill(
    own: tuple[ProcessKind, str], before: Moment, now: Moment
) -> list[Death]:
    """Return the standstills that the own clock shows: the own process stood still, or the machine slept."""
    deaths: list[Death] = []
    if own_gap_s(before, now, LOOK_S) >= OWN_BEARS_S:
        deaths += [
            Death(before.t, *own, GAP, frozen=True),
            Death(now.t, *own, frozen=True),
        ]
    if (slept_s := now.slept_s - before.slept_s) >= BEARS_S:
        machine: tuple[ProcessKind, str] = ("machine", os.uname().nodename)
        # CLOCK_MONOTONIC stands while a machine sleeps.
        deaths += [
            Death(now.t - slept_s, *machine, SUSPENDED, frozen=True),
            Death(now.t, *machine, frozen=True),
        ]
    return deaths


class FreezeWatch:
    """Looks at processes from a thread while it is entered.

    ``own``: what this process is called; ``watched`` returns the other processes; ``note`` is called with
    what is found. ``beside`` is called at each look.
    """

    def __init__(
        self,
        own: tuple[ProcessKind, str],
        watched: Callable[[], Iterable[Watched]],
        note: Callable[[Death], None],
        beside: Callable[[], None] | None = None,
    ) -> None:
        self._own, self._watched, self._note, self._beside = own, watched, note, beside
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="freezes", daemon=True)

    def __enter__(self) -> FreezeWatch:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        standstills, there, listed_s = Standstills(), list[Watched](), 0.0
        before = Moment.now()
        while not self._stop.wait(LOOK_S):
            now = Moment.now()
            deaths, before = own_standstill(self._own, before, now), now
            if now.t - listed_s >= LIST_S:
                there, listed_s = self._listed(there), now.t
            still = {
                (entry.kind, entry.name): how
                for entry in there
                if (how := stands_still(entry.pid)) is not None
            }
            deaths += standstills.look(now.t, still)
            for entry in deaths:
                log.warning("%s %s: %s", entry.kind, entry.name, entry.how or "goes on")
                self._note(entry)
            if self._beside is not None:
                self._beside()

    def _listed(self, before: list[Watched]) -> list[Watched]:
        try:
            watched = list(self._watched())
            trees = any(process.tree for process in watched)
            return with_children(watched, families()) if trees else watched
        except Exception:
            # What changes meanwhile is there at the next look.
            log.exception("which processes there are cannot be told")
            return before
