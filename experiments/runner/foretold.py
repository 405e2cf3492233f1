"""Simulates a run, for comparison with the testbed."""

from __future__ import annotations

import json
from dataclasses import replace

from ringlight.experiments.analysis.prediction import Foretold
from ringlight.experiments.backends.protocol import BackendError, TooLongError
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.backends.simulation.workloads import MOST_RANKS
from ringlight.experiments.language.job_sources import made_by
from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.record.events import Record
from ringlight.experiments.record.runs import runs_of
from ringlight.experiments.runner.progress import Reporter
from ringlight.experiments.runner.timeline import run_group
from ringlight.fabric.frames import payload_share

#: Events that the simulation of one run may take, about ten seconds of a processor, and that of all runs.
MOST_EVENTS, MOST_IN_ALL = 500_000, 1_000_000


class Foreteller:
    """Simulates runs of one experiment, at most ``most_in_all`` events; knows what it was asked before.

    ``backend``: with the options that a simulation was asked for; else as it is without any.
    """

    def __init__(
        self, most_in_all: float = MOST_IN_ALL, backend: SimulationBackend | None = None
    ) -> None:
        self._most = self._left = most_in_all
        self._backend = backend or SimulationBackend()
        self._known: dict[str, Foretold] = {}

    def __call__(self, plan: RunPlan) -> Foretold:
        """Foretell one run, once for all repeats whose workers took the same times to start."""
        key = json.dumps(
            [plan.arm, dict(plan.point), [job.start_up_s for job in plan.jobs]],
            default=str,
        )
        if key not in self._known:
            self._known[key] = self._foretell(plan)
        return self._known[key]

    @property
    def _all_taken(self) -> str:
        before = "the simulations before it took most of"
        if self._left == self._most:
            before = "its simulation takes more than"
        return f"{before} the {self._most:,.0f} events that all may take"

    def _foretell(self, plan: RunPlan) -> Foretold:
        if any(job.gpus > MOST_RANKS for job in plan.jobs):
            return _none(f"a job has more than {MOST_RANKS} GPUs")
        if self._left <= 0:
            return _none(self._all_taken)
        limit = min(MOST_EVENTS, self._left)
        backend = replace(self._backend, most_events=limit, events=0)
        if (why := backend.refuses(plan)) is not None:
            return _none(why)
        source = made_by(plan) if plan.computed else None
        computed = () if source is None else source.batch(plan).compute()
        records: list[Record] = []
        try:
            for _ in run_group(backend, [plan], records.extend, Reporter(quiet=True)):
                self._left -= backend.events
        except BackendError as error:
            short_of_events = isinstance(error, TooLongError) and limit < MOST_EVENTS
            why = self._all_taken if short_of_events else str(error)
            self._left -= limit
            return _none(why)
        (run,) = runs_of(records, [plan])
        share = payload_share(backend.mtu_bytes or plan.setting.frames.mtu_bytes)
        return Foretold(run, payload_share=share, computed=computed)


def _none(why: str) -> Foretold:
    return Foretold(None, why)
