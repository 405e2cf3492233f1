"""The follower: one process by which Slurm follows a lab's light, and uses no lost GPUs.

An event only tells that something has changed, and the truth is then read by GET, as at every check. So lost
events, and restarts of either side, delay it and nothing else.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ringlight.experiments.client import Api, ApiError, Unreachable
from ringlight.experiments.record.writing import WriteError
from ringlight.extensions.slurm.following import attachments_of, topology_of
from ringlight.extensions.slurm.left_claims import LeftClaims
from ringlight.extensions.slurm.partitions import SlurmError, check_partitions
from ringlight.extensions.slurm.scheduler import Scheduler
from ringlight.extensions.slurm.site import FOLLOWER_PATH as PATH
from ringlight.extensions.slurm.site import PROBLEM_LENGTH, Site

#: Time between two checks of everything, and of two reports to the controller, seconds.
CHECK_S = 2.0
#: Longest wait for the controller's answer, and for a line of its events: every 10 s there is one, seconds.
ANSWER_S, SILENCE_S = 5.0, 25.0
#: Pause before the controller is asked again for events, seconds.
AGAIN_S = 0.3
#: Light whose generation no event has told of is just being moved, or an event was lost. It is taken as it is
#: once it has stayed so long, seconds.
SETTLE_S = 0.3
#: Events after which the lab is read.
_KINDS = ("circuits", "gpu", "controller")
_TROUBLE = (SlurmError, Unreachable, ApiError, WriteError, ValueError, OSError)


@dataclass(frozen=True)
class Report:
    """The follower's state. ``generation``: of the light that Slurm has, None before it has any or if no
    partition follows light. ``drained``: nodes. ``problem``: why it cannot do its work, None if it can."""

    generation: int | None = None
    drained: tuple[str, ...] = ()
    problem: str | None = None


class Follower:
    """Has one Slurm cluster follow one lab. Use as a context manager.

    ``directory``: of slurm.conf. ``say``: prints a line.
    """

    def __init__(self, site: Site, directory: Path, say: Callable[[str], None]) -> None:
        self._site, self._say = site, say
        self._slurm = Scheduler(directory, say)
        self._claims = LeftClaims(site)
        self._api = self._connection()
        self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._fabric: Any = None
        #: Newest generation of which an event has told; the one last read, and since when.
        self._announced, self._read, self._since = 0, -1, 0.0
        self._generation: int | None = None
        self._reported, self._report_due = Report(), 0.0
        self._ending = threading.Event()

    def _connection(self) -> Api:
        site = self._site
        return Api(
            site.url,
            site.token(),
            cacert=site.cacert,
            anywhere=site.own_certificate,
            patience_s=ANSWER_S,
        )

    def __enter__(self) -> Follower:
        # It may wait for a line for SILENCE_S, and ends with the process.
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        with contextlib.suppress(Unreachable, ApiError):
            self._api.delete(PATH)
        self._api.close()

    def _listen(self) -> None:
        """Put the controller's events into the queue, from the kept ones on, whenever it can be reached."""
        while not self._ending.is_set():
            with (
                contextlib.suppress(Unreachable, ApiError),
                self._connection() as api,
            ):
                for event in api.stream("/v1/events?after=0", SILENCE_S):
                    self._events.put(event)
            self._ending.wait(AGAIN_S)

    def run(self) -> None:
        """Follow until the process is told to end."""
        check_due = 0.0
        while True:
            is_check = time.monotonic() >= check_due
            if is_check:
                self._slurm.forget()
                check_due = time.monotonic() + CHECK_S
                self._release_claims()
            settled = self._attend()
            wait_s = check_due - time.monotonic()
            self._await_event(max(0.0, wait_s if settled else min(wait_s, SETTLE_S)))

    def _release_claims(self) -> None:
        """Release the claims of ended jobs whose epilog could not, at the next check if not now."""
        if self._site.nodes("lead"):
            with contextlib.suppress(SlurmError):
                for name in self._claims.release():
                    self._say(f"claim {name} of an ended job is released")

    def _attend(self) -> bool:
        """Read the lab, have Slurm follow, and report. Return whether the light has settled."""
        problem, settled = None, True
        try:
            settled = self._follow()
        except _TROUBLE as error:
            problem = " ".join(str(error).split())[:PROBLEM_LENGTH]
            self._slurm.forget()
        self._report(problem)
        return settled

    def _follow(self) -> bool:
        if self._fabric is None:
            fabric = self._api.get("/v1/fabric")
            gpus = [gpu["name"] for gpu in fabric["gpus"]]
            check_partitions(self._site.partitions, gpus)
            self._fabric = fabric
        light = attachments_of(self._fabric, self._api.get("/v1/circuits"))
        settled = self._is_settled(light.generation)
        follow, lead = self._site.nodes("follow"), self._site.nodes("lead")
        if follow and settled:
            changed = self._slurm.follow(topology_of(light, follow, lead))
            self._generation = light.generation
            if changed:
                self._say(f"Slurm has the light of generation {light.generation}")
                self._report(None)
        lost = self._api.get("/v1/health")["lost_gpus"]
        self._slurm.spare((*follow, *lead), lost)
        return settled

    def _is_settled(self, generation: int) -> bool:
        now = time.monotonic()
        if generation != self._read:
            self._read, self._since = generation, now
        return generation == self._announced or now - self._since >= SETTLE_S

    def _await_event(self, timeout_s: float) -> None:
        """Wait for an event after which the lab is to be read, or for the time; take in all that are there."""
        deadline, is_news = time.monotonic() + timeout_s, False
        while True:
            left_s = 0.0 if is_news else max(0.0, deadline - time.monotonic())
            try:
                event = self._events.get(left_s > 0, left_s)
            except queue.Empty:
                return
            is_news |= event["event"] in _KINDS
            if event["event"] == "circuits":
                self._announced = event["generation"]
            elif event["event"] == "controller":
                self._fabric = None

    def _report(self, problem: str | None) -> None:
        """Tell the controller if something is new or it is time, and print a new problem."""
        report = Report(self._generation, self._slurm.drained, problem)
        now = time.monotonic()
        if report == self._reported and now < self._report_due:
            return
        if problem is not None and problem != self._reported.problem:
            self._say(problem)
        self._reported, self._report_due = report, now + CHECK_S
        with contextlib.suppress(Unreachable, ApiError):
            self._api.put(PATH, asdict(report))
