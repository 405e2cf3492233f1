"""Reasons for which a run is doubtful or bad: a code, a level, and a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Level = Literal["doubtful", "bad"]
#: Why a run is not simply good, by its code, with the data that the sentence is made of.
SENTENCES = {
    "link_rate": "link {link} ({direction}) gave {ratio:.1%} of its setting",
    "links_not_measured": "no link was measured",
    "timers_late": "compute timers woke {p99_s:.4f} s late (99th percentile), {share:.1%} of the computing",
    "processors_busy": "processors were {busy:.0%} busy during {run}, without other programs",
    "process_restarted": "{run}: {process} died ({how}) and was started again",
    "process_gone": "{run}: {process} died ({how}) and was not back when the run ended",
    "worker_killed": "{run}: rank {rank} of {job} on GPU {gpu} was lost ({reason}), and {job} continued",
    "process_frozen": "{run}: {process} stood still for {for_s:.1f} s ({how})",
    "frozen_outside_runs": "outside of a whole run {process} stood still for {for_s:.1f} s ({how})",
    "drifted_outside_runs": "outside of a whole run: {said}, which no event asked for",
    "worker_stalled": "{run}: rank {rank} of {job} moved no byte for {for_s:.1f} s (iteration {iteration})",
    "job_failed": "{run}: job {job} failed: {reason}",
    "job_killed": "{run}: job {job} failed: {reason}, which no event asked for",
    "event_late": "{run}: {said}",
    "switch_drifted": "{run}: {said}, which no event asked for, {then}",
    "aborted": "the experiment ended early: {reason}",
    "samples_missing": "{share:.0%} of the throughput samples of {run} are missing",
    "all_reduce_over_ideal": "{run}: {job}'s all-reduce, alone on its links, took {over:.2f} times the ideal",
    "baseline_over_model": "{run}: {job}, a baseline, took {over:.3f} times the model's time",
    "unlike_simulation": "{run}: {job} differs from its simulation: {said}",
    "unlike_model": "{run}: {job} took {measured_s:.4g} s, by the model {model_s:.4g} s",
    "ended_otherwise": "{run}: {job} ended {state}, in the simulation {simulated}",
    "parameters_differ": "{run}: the ranks of {job} and the reference do not agree bit by bit",
    "payload_lost": "{run}: {bytes} bytes of payload were sent and not received",
    "run_over_model": "{run} took {over:.2f} times the predicted time",
    "light_astray": "{run}: {count} {counter}",
}


@dataclass(frozen=True)
class Reason:
    """Reason for which a run is doubtful or bad: a code, and the data of its sentence."""

    code: str
    level: Level
    data: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The reason as a sentence, without a full stop."""
        sentence = SENTENCES[self.code].format(**self.data)
        # A cause is a sentence already.
        sentence = sentence.replace(" %", "%").replace("%", " %")
        return f"{sentence}, in {self.data['arm']}" if "arm" in self.data else sentence

    def as_json(self) -> dict[str, Any]:
        """Return the reason for result.json: ``code``, ``level``, the data, and the sentence as ``text``."""
        return {"code": self.code, "level": self.level, **self.data, "text": self.text}


def over(
    value: float, limits: tuple[float, float], code: str, **data: Any
) -> Iterator[Reason]:
    """Yield a reason if the value is over the first limit (doubtful) or the second (bad)."""
    if value > limits[0]:
        yield Reason(code, "bad" if value > limits[1] else "doubtful", data)
