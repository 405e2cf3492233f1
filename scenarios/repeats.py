"""Makes a run once more by itself when others had the processors and that showed.

Which of the two counts is decided by how much of the processors was taken from each, never by its figures.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from experiments.runner.progress import Reporter
from scenarios.fidelity import TAKEN, machines_fault, taken
from scenarios.records import Run, read_runs
from scenarios.runfolder import RunFolder

#: What is added to the name of a run that is made again.
AGAIN = "-again"


class Repeats:
    """Of one scenario's runs. ``compute_s``: seconds of one iteration's computation.

    Once a repetition was disturbed too, nothing is made again any more: the disturbance is there to stay, and
    repeating would only double the time.
    """

    def __init__(self, folder: RunFolder, reporter: Reporter, compute_s: float) -> None:
        self._folder, self._reporter = folder, reporter
        self._compute_s = compute_s
        self._futile = False

    def settle(self, name: str, expected_s: float | None, again: Callable[[str], list[str]]) -> list[str]:
        """After run ``name``: have ``again`` make it once more under the name it is given, if need be.

        ``expected_s``: what the model says that the run takes, or None. Returns what ``again`` does, a line
        for each job that failed. Raises WriteError.
        """
        if self._futile:
            return []
        first = self._read(name)
        reasons = machines_fault(first, self._compute_s, expected_s)
        if not reasons:
            return []
        self._reporter.say(
            f"  others took {100 * taken(first):.0f} % of the processors, and {reasons[0].text}; once more"
        )
        failures = again(name + AGAIN)
        if failures:
            return failures
        second = self._read(name + AGAIN)
        self._futile = taken(second) >= TAKEN
        aside, counts = (first, second) if taken(second) < taken(first) else (second, first)
        self._folder.event(
            "repeated",
            what="run",
            name=name,
            reasons=[reason.as_json() for reason in reasons],
            first=_figures(first),
            second=_figures(second),
            counts=counts.name,
            set_aside=aside.name,
        )
        return []

    def _read(self, name: str) -> Run:
        # Only its own lines: of all runs of a large comparison there are many more.
        mine = f'"run":{json.dumps(name)}'
        text = (self._folder.path / "events.jsonl").read_text(encoding="utf-8")
        (run,) = read_runs(json.loads(line) for line in text.splitlines() if mine in line)
        return run


def _figures(run: Run) -> dict[str, Any]:
    return {
        "run": run.name,
        "taken": taken(run),
        "completion_s": {name: job.end - run.released for name, job in run.jobs.items()},
    }
