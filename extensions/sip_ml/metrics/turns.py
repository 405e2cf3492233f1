"""Light that follows the phases of a job: how often it was set, and how much of its dark time was hidden."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from ringlight.experiments.analysis.metrics import Context, metric
from ringlight.experiments.record.events import Operations
from ringlight.experiments.record.runs import JobRun
from ringlight.extensions.sip_ml.records import LightTurns
from ringlight.extensions.sip_ml.workload_phases import phases_of

_TURNS = {
    "phase_turns": "Turns of an iteration, all ranks together; a turn is a phase of some ranks with "
    "circuits of its own",
    "phase_turns_moved": "Turns of an iteration for which circuits were moved, mean over iterations",
}


@metric("count", of="job", makes=_TURNS)
def turns(context: Context, job: JobRun) -> Mapping[str, float]:
    workload, iterations = job.plan.workload, len(job.by_index)
    for note in context.run.of(LightTurns, job.name):
        if workload is not None and iterations:
            moved = sum(turn["moved"] for turn in note.turns)
            return {
                "phase_turns": len(phases_of(workload).phases),
                "phase_turns_moved": moved / iterations,
            }
    return {}


_LIGHT = {
    "light_set": "Time of an iteration in which circuits of a rank were set for its next phase, mean over "
    "ranks and iterations",
    "light_waited": "Part of light_set in which the rank had data to send in that phase, mean over ranks "
    "and iterations",
    "light_hidden": "Part of light_set in which the rank had no data to send, as it computed or waited for "
    "other ranks, mean over ranks and iterations",
}


@metric("s", of="job", makes=_LIGHT)
def light(context: Context, job: JobRun) -> Mapping[str, float]:
    """Return the seconds of light set, waited for and hidden, by metric: means over ranks and iterations.

    The time counts from the first operation of each rank in each of its turns. Empty if the job has no
    workload whose phases light follows.
    """
    notes, operations = (
        context.run.of(LightTurns, job.name),
        context.run.of(Operations, job.name),
    )
    if not notes or not operations or job.plan.workload is None:
        return {}
    plan = phases_of(job.plan.workload)
    took = {
        (turn["iteration"], turn["phase"]): (turn["set"], turn["lit"])
        for turn in notes[0].turns
    }
    set_s, waited_s = [], []
    for record in operations:
        first: dict[int, float] = {}
        for phase, (begin, _) in zip(
            plan.phase_of[record.rank], record.times_s, strict=True
        ):
            if phase >= 0:
                first[phase] = min(first.get(phase, begin), begin)
        # Those of the beginning had light before.
        known = [
            (phase, begin_s)
            for phase, begin_s in first.items()
            if (record.i, phase) in took
        ]
        turns = [
            (*took[record.i, phase], record.begin + begin_s) for phase, begin_s in known
        ]
        set_s.append(sum(lit_s - begun for begun, lit_s, _ in turns))
        waited_s.append(
            sum(
                max(0.0, lit_s - max(begun, wanted_s))
                for begun, lit_s, wanted_s in turns
            )
        )
    whole_s, stood_s = fmean(set_s), fmean(waited_s)
    return {
        "light_set": whole_s,
        "light_waited": stood_s,
        "light_hidden": whole_s - stood_s,
    }
