"""Follows the jobs of one run to their end: copies their events and series, counts iterations."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from experiments.backends.emulation.session import ENDED, Session, rank_of
from experiments.backends.protocol import BackendError
from experiments.runner.progress import Reporter
from scenarios.runfolder import RunFolder
from testbed.load import ProcessorLoad

#: Seconds between two looks at running jobs; and between two readings of the processors' load.
POLL_S, LOAD_S = 0.2, 0.5


class Watch:
    """``jobs``: GPUs in rank order by job; ``ids``: the controller's; ``totals``: iterations to do; ``at``:
    the common start (CLOCK_MONOTONIC seconds). ``patience_s``: the jobs may take so long.

    ``each_round`` is called with this watch after every look, also while the controller is kept away;
    ``left`` then has the jobs that go on.
    """

    def __init__(
        self,
        session: Session,
        folder: RunFolder,
        reporter: Reporter,
        run: str,
        jobs: Mapping[str, Sequence[str]],
        ids: Mapping[str, str],
        totals: Mapping[str, int],
        at: float,
        patience_s: float,
        each_round: Callable[[Watch], None] = lambda _: None,
    ) -> None:
        self.run = run
        self.left = dict(ids)
        self.ends: dict[str, float] = {}
        self.ended_at = at
        self._session, self._folder, self._reporter = session, folder, reporter
        self._totals = totals
        self._each_round = each_round
        self._cursor = dict.fromkeys(ids, 0)
        self._done = {name: [0] * len(jobs[name]) for name in ids}
        self._since = at
        self._load = ProcessorLoad(session.processes.lab.id)
        self._next_load = at + LOAD_S
        self._patience_s = patience_s
        self._deadline = at + patience_s

    def done(self, job: str) -> int:
        """Iterations that all ranks of a job have done."""
        return min(self._done[job])

    def to_the_end(self) -> list[str]:
        """One line for each job that did not succeed. Raises BackendError at the deadline."""
        failures: list[str] = []
        while self.left:
            time.sleep(POLL_S)
            self._session.processes.tend()
            if not self._session.processes.controller_away:
                failures += self._look()
                self._samples()
            self._processors()
            self._restarts()
            self._each_round(self)
            self._reporter.advance({name: self.done(name) for name in self._done}, self._totals)
            if self.left and time.monotonic() > self._deadline:
                raise BackendError(f"job {', '.join(self.left)} had not ended after {self._patience_s:.0f} s")
        self.ended_at = max(self.ends.values(), default=time.monotonic())
        return failures

    def _look(self) -> list[str]:
        failures = []
        for name, job_id in list(self.left.items()):
            # The state first: what it says is then already in the events.
            job = self._session.get(f"/v1/jobs/{job_id}")
            self._copy_events(name, job_id)
            if job["state"] not in ENDED:
                continue
            del self.left[name]
            if job["state"] != "SUCCEEDED":
                failures.append(f"job {name} {job['state'].lower()}: {job['error']}")
                self._reporter.say(failures[-1], style="red")
                self._folder.event("job_failed", run=self.run, failed_job=name, reason=job["error"])
        return failures

    def _copy_events(self, name: str, job_id: str) -> None:
        cursor = self._cursor[name]
        answer = self._session.get(f"/v1/jobs/{job_id}/events", cursor=cursor)
        if answer["cursor"] < cursor:
            # A controller that was started again is still catching up with the workers.
            return
        self._cursor[name] = answer["cursor"]
        for event in answer["events"]:
            rank = rank_of(event)
            self._folder.copy({**event, "run": self.run, "job": name, "rank": rank})
            if event["event"] == "iteration":
                self._done[name][rank] = max(self._done[name][rank], event["i"] + 1)
                self.ends[name] = max(self.ends.get(name, 0.0), event["allreduce_end"])

    def _samples(self) -> None:
        samples = self._session.get("/v1/series", since=self._since)
        entries = samples["samples"] if isinstance(samples, dict) else samples
        if entries:
            self._since = max(entry["t"] for entry in entries)
            self._folder.samples(self.run, entries)

    def _processors(self) -> None:
        now = time.monotonic()
        if now >= self._next_load:
            self._next_load = now + LOAD_S
            load = self._load.shares()
            shares = {name: round(share, 4) for name, share in asdict(load).items()}
            self._folder.event("cpu", run=self.run, **shares)

    def _restarts(self) -> None:
        """The testbed starts a dead optical switch again by itself; a person should know."""
        for switch, times in self._session.processes.switches_restarted().items():
            self._folder.event("switch_restarted", run=self.run, switch=switch, times=times)
            self._reporter.say(f"optical switch {switch} died and was started again")
