"""Interface of a backend, on which a run plan can be carried out. The runner knows no more of a backend.

    lab = backend.open(setting)            build it, measure it
    lab.begin(plan)                        circuits and control network as the plan has them at the start
    lab.submit(job)                        asks for GPUs and workers
    lab.release([names])                   lets READY jobs start together
    lab.perform(event)                     makes something happen; never blocks, its end is a record
    lab.next(until_s)                      what happened since: waits, or moves virtual time
    lab.end()                              the run is over: its last records
    lab.close()

All times are seconds of the lab's own clock: CLOCK_MONOTONIC of an emulation, virtual time of a simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ringlight.experiments.language.light_events import light_events
from ringlight.experiments.language.plan import EventPlan, JobPlan, RunPlan, Setting
from ringlight.experiments.record.events import Record
from ringlight.experiments.record.folder import RunFolder
from ringlight.fabric.keys import device_words, link_keys

#: What each rank adds to the time that the start of a job or of a link test may take, seconds: hundreds are
#: started on few processors.
RANK_S = 1.0
#: All that a backend may be able to do (``EventPlan.capability``), with what it is called in an error.
CAPABILITIES: Mapping[str, str] = {
    "regroup": "regroup jobs",
    "circuits": "set circuits during a run",
    **{do: kind.does for do, kind in light_events().items()},
    "kill controller": "kill the controller",
    "kill switch": "kill a switch",
    "kill agent": "kill an O-NIC's agent",
    **{f"kill {kind}": f"kill devices of kind {kind}" for kind in device_words()},
    "kill server agent": "kill the server agent",
    "kill worker": "kill a worker",
    "cut link": "cut a link",
    "restore link": "restore a link",
    "restore gpu": "restore a GPU",
    "restore nic": "restore a NIC",
    "lose gpu": "lose a GPU",
    "lose gpu then swap": "swap a lost GPU for a spare",
    "lose gpu then shrink": "go on without a lost GPU",
    "lose nic": "lose a NIC",
    "disturb": "disturb the O-NICs' control network",
    **{f"{keys.do} link": f"{keys.do} a link" for keys in link_keys()},
    "cancel": "cancel a job",
    "start": "start a job by an event",
}


class BuiltLab(Protocol):
    """One setting, built. Methods raise ``BackendError`` with one line where something did not come about.

    ``real_time``: its clock goes on by itself, so that waits need deadlines. ``own_queue``: jobs wait in the
    lab, which takes each when it arrives and reports when the job has its GPUs (``GpusGranted``).
    """

    real_time: bool
    own_queue: bool

    def now_s(self) -> float:
        """Return the time of the lab's clock in seconds."""
        ...

    def begin(self, plan: RunPlan) -> None: ...

    def submit(self, job: JobPlan) -> str | None:
        """Request GPUs and workers for a job. Return why there is no room now, or None if the job has its
        GPUs.

        A job without room is to be submitted again later.
        """
        ...

    def release(self, jobs: Sequence[str]) -> None: ...

    def perform(self, event: EventPlan) -> None: ...

    def next(self, until_s: float) -> Sequence[Record]:
        """Return records in the order of their times, at the latest at ``until_s``; [] if that time came."""
        ...

    def end(self) -> Sequence[Record]: ...

    def close(self) -> None: ...


class Backend(Protocol):
    """``label``: how its figures are known, measured or simulated."""

    name: str
    label: str
    capabilities: frozenset[str]

    def refuses(self, plan: RunPlan) -> str | None:
        """Return why the backend cannot carry out a plan, ``key: reason``; None if it can."""
        ...

    def check_ready(self) -> None:
        """Raise BackendError, one line, for what stands in a lab's way now. Makes nothing."""
        ...

    def prepare(
        self,
        settings: Sequence[Setting],
        logs: Path | None,
        say: Callable[[str], None],
        earlier: Mapping[str, Any],
    ) -> None:
        """Prepare for the settings that will be opened, here or by a copy of this backend on another machine.

        ``logs``: folder for the output of the labs' processes (None: with the lab). ``say``: called with each
        line that a person should know. ``earlier``: what :meth:`facts` returned, if runs are resumed.
        """
        ...

    def open(self, setting: Setting, emit: Callable[[Record], None]) -> BuiltLab:
        """Build a lab and return it. Measurements of the lab from before any run are passed to ``emit``."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """Return the facts for environment.json: the machine, the assumptions, and what is left out."""
        ...


Told = Callable[[str, float], None]


def untold(title: str, share: float) -> None:
    """Tell nobody how far a run is."""


class Batch(Protocol):
    """Runs that another process can compute: small data."""

    @property
    def count(self) -> int:
        """Return the number of runs."""
        ...

    def compute(self, report: Told = untold) -> list[Record]:
        """Return all records of the runs, one run after the other; a ``RunFailed`` for a run that fails.

        ``report`` is called now and then with the title of a long run and its done share (0 to 1).
        """
        ...


@runtime_checkable
class BatchBackend(Backend, Protocol):
    """One that can do thousands of independent runs without a lab for each."""

    def batches(
        self, plans: Sequence[RunPlan]
    ) -> tuple[Sequence[Batch], Sequence[RunPlan]]:
        """Return batches of plans that other processes can compute, and the plans that need a lab."""
        ...


@dataclass(frozen=True)
class Made:
    """Result of a task: its records, and a line for each failure.

    A run on another machine also has facts of its labs, and the files that they left, by name.
    """

    records: list[Record]
    failures: tuple[str, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


@runtime_checkable
class RemoteBackend(Backend, Protocol):
    """One whose runs are made by copies of it on other machines, in labs of their own."""

    def make(self, plan: RunPlan) -> Made:
        """Make a run on the host of this copy. Return its result."""
        ...

    def executor(self) -> Executor:
        """Return the executor in which copies of this backend make runs."""
        ...

    def watch(self) -> None:
        """Look whether what was given to other machines can still be made; raises MachineGone."""
        ...

    def alone(self, plan: RunPlan) -> Made:
        """Have one run made, of which no folder is kept. Return its result."""
        ...

    def take(self, plan: RunPlan, made: Made, folder: RunFolder) -> None:
        """Keep what came back of a run besides its records."""
        ...


class BackendError(RuntimeError):
    """A run cannot go on; the message is one line that says what is wrong and where."""


class TooLongError(BackendError):
    """A simulation takes more events than it may."""


class MachineGone(BackendError):
    """A machine is gone that runs are bound to."""


def lacking(backend: Backend, plan: RunPlan) -> str | None:
    """Return the first event that a backend has no capability for, as ``key: reason``; None if it has all."""
    for event in plan.events:
        if event.capability not in backend.capabilities:
            what = CAPABILITIES.get(event.capability, event.capability)
            return f"events.{event.name}.do: the {backend.name} cannot {what}"
    return None
