"""Light divided by demand: divisions, the time they took, and whether the light carried the demand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ringlight.experiments.analysis.metrics import Context, metric
from ringlight.experiments.analysis.metrics.light import before_and_after
from ringlight.experiments.analysis.statistics import median
from ringlight.experiments.record.lab_records import ProcessEnded
from ringlight.experiments.record.runs import SUCCEEDED, JobRun
from ringlight.extensions.sip_ml.records import Divisions, LightDecisions, LightGiven
from ringlight.fabric.algorithms import steps_named
from ringlight.fabric.steps import IntArray
from ringlight.workloads.traffic import delivered, delivered_in_steps

_ANEW = {
    "divisions": "Number of times that circuits were divided again while the job ran; "
    "missing after a restart of the controller"
}
_DARK = {
    "divisions_dark": "Time for which unsent bytes waited in the dark because lightpaths were retuned, summed over "
    "divisions"
}


@metric("s", of="job", makes=_DARK)
@metric("count", of="job", makes=_ANEW)
def divided(context: Context, job: JobRun) -> Mapping[str, float]:
    """Return what the controller reports of its divisions, by metric; empty if a controller died, with its
    counts."""
    notes = context.run.of(Divisions, job.name)
    if not notes or any(
        death.kind == "controller" for death in context.run.of(ProcessEnded)
    ):
        return {}
    return {"divisions": notes[0].decisions, "divisions_dark": notes[0].dark_s}


@metric("count", of="job")
def divisions_late(context: Context, job: JobRun) -> int | None:
    """Divisions at which most unsent bytes were on pairs without a lightpath in the division before.

    Return the count; None if no divisions are on record.
    """
    for note in context.run.of(LightGiven, job.name):
        left = np.array([made["left_bytes"] for made in note.divisions])[1:]
        dark = np.array([made["lightpaths"] for made in note.divisions])[:-1] == 0
        return int(((left * dark).sum(axis=1) > left.sum(axis=1) / 2).sum())
    return None


_TIMES = {
    "division_read": "Time of a division to read the unsent bytes",
    "division_decide": "Time of a division to choose lightpaths",
    "division_hold": "Time of a division until the O-NICs held all frames",
    "division_write": "Time of a division until the switches were set and read back",
    "division_dark": "Time of a division from when the O-NICs held all frames until they sent again",
}


@metric(
    "s", of="job", makes={name: f"{words}: median" for name, words in _TIMES.items()}
)
def division_times(context: Context, job: JobRun) -> Mapping[str, float | None]:
    made = [
        decision
        for note in context.run.of(LightDecisions, job.name)
        for decision in note.decisions
    ]
    keys = {name: f"{name.removeprefix('division_')}_s" for name in _TIMES}
    return (
        {
            name: median([decision[key] for decision in made])
            for name, key in keys.items()
        }
        if made
        else {}
    )


_BYTES = {
    "light_payload": "Payload that workers passed to their O-NICs for lightpaths, without framing",
    "light_framing": "Message headers and receipts that workers passed to their O-NICs for lightpaths",
    "light_resent": "Bytes that O-NICs sent over lightpaths again because TCP retransmitted",
    "light_bytes_wrong": "Bytes unaccounted for between worker, O-NIC and lightpath, summed over "
    "pairs: the workload's and the O-NICs' bytes, these and the sent bytes, and the input and "
    "output of each lightpath",
}


@metric("bytes", of="job", makes=_BYTES)
@metric(
    "count", of="job", makes={"lightpaths_used": "Lightpaths that carried any bytes"}
)
def light_bytes(context: Context, job: JobRun) -> Mapping[str, int]:
    """Return bytes on lightpaths, by metric, for the only job of a run on O-NICs with static light; else
    empty."""
    run = context.run
    notes = before_and_after(run)
    alone = (
        len(run.jobs) == 1
        and job.state == SUCCEEDED
        and any(done.light for done in job.done.values())
    )
    if notes is None or not alone:
        return {}
    gpus = run.plan.setting.fabric.gpus
    before, after = (
        [note.kernel["onics"][gpu]["lightpaths"] for gpu in job.gpus] for note in notes
    )
    rank_of = {gpus[gpu].ip: rank for rank, gpu in enumerate(job.gpus)}

    def rose(way: str, *keys: str) -> list[_Counts]:
        return [
            _rise(a[way], b[way], keys, rank_of)
            for a, b in zip(before, after, strict=True)
        ]

    payload, framing = (_told(job, part) for part in range(2))
    pairs = rose("peers")
    fresh, resent = (_matrix(pairs, name) for name in ("fresh", "resent"))
    sent, received = (rose(way, "port", "wavelength") for way in ("sent", "received"))
    taken = {
        (rank, *key): n["payload"]
        for rank, own in enumerate(sent)
        for key, n in own.items()
    }
    given = {
        (key[0], rank, *key[1:]): n["payload"]
        for rank, own in enumerate(received)
        for key, n in own.items()
    }
    paths = taken.keys() | given.keys()
    wrong = (
        np.abs(payload - _to_send(job)).sum() + np.abs(payload + framing - fresh).sum()
    )
    return {
        "light_payload": int(payload.sum()),
        "light_framing": int(framing.sum()),
        "light_resent": int(resent.sum()),
        "light_bytes_wrong": int(wrong)
        + sum(abs(taken.get(p, 0) - given.get(p, 0)) for p in paths),
        "lightpaths_used": sum(taken.get(path, 0) > 0 for path in paths),
    }


#: What rose, by the other's rank and further keys.
_Counts = Mapping[tuple[Any, ...], Mapping[str, int]]


def _rise(
    before: list[Mapping[str, Any]],
    after: list[Mapping[str, Any]],
    keys: tuple[str, ...],
    rank_of: Mapping[str, int],
) -> _Counts:
    """Return the increase of the counters of a job's peers; new peers began at 0."""

    def key(entry: Mapping[str, Any]) -> tuple[Any, ...]:
        return (rank_of[entry["peer"]], *(entry[name] for name in keys))

    first = {key(entry): entry for entry in before if entry["peer"] in rank_of}
    return {
        key(entry): {
            name: value - first.get(key(entry), {}).get(name, 0)
            for name, value in entry.items()
            if name not in ("peer", *keys)
        }
        for entry in after
        if entry["peer"] in rank_of
    }


def _matrix(counts: list[_Counts], name: str) -> IntArray:
    """Return [ranks, ranks]: a count of each rank for each other."""
    matrix = np.zeros((len(counts), len(counts)), dtype=np.int64)
    for rank, own in enumerate(counts):
        for (other,), count in own.items():
            matrix[rank, other] = count[name]
    return matrix


def _told(job: JobRun, part: int) -> IntArray:
    """Return [ranks, ranks]: bytes of payload (0) or framing (1) that workers gave their O-NICs."""
    matrix = np.zeros((len(job.gpus), len(job.gpus)), dtype=np.int64)
    for rank, done in job.done.items():
        for other, parts in done.light.items():
            matrix[rank, int(other)] = parts[part]
    return matrix


def _to_send(job: JobRun) -> IntArray:
    """Return [ranks, ranks]: bytes that the job had to send in all its iterations."""
    plan = job.plan
    if plan.workload is not None:
        return delivered(plan.workload, plan.iterations)
    steps = steps_named(plan.loop.collective, len(job.gpus))
    return plan.iterations * delivered_in_steps(steps, plan.loop.gradient_bytes)
