"""Explanations of a difference in words: which side is off, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ringlight.experiments.analysis.carrying import REFERENCE

JUDGED = ("iteration_s", "allreduce_s")
#: Iterations closer than this, with all-reduces closer than that: nothing is called off.
AGREE_PERCENT, AGREE_ALL_REDUCE_PERCENT = 1.0, 5.0
#: Beyond how much, per cent, a figure is not that of the simulation: its reach (docs/simulation.md).
REACH_PERCENT = {"allreduce_s": 5.0, "iteration_s": 5.0, "completion_s": 5.0}
#: Segments sent again by a rank in an iteration from which on TCP is named as a cause.
MANY_RETRANSMITS = 0.5


def which_is_off(entry: Mapping[str, Any]) -> str:
    """Return ``neither``, ``emulation`` or ``simulation``: the side with the greater part of the difference.

    The emulation's part: links and timers below the scenario's settings, and the time of kernel, software
    switches, workers and agents, which share this machine's processors and stand for hardware. The
    simulation's part: TCP and the controller, which the scenario has and the simulation leaves out. An
    emulation whose own verdict blames links or processors is off.
    """
    near = zip(JUDGED, (AGREE_PERCENT, AGREE_ALL_REDUCE_PERCENT), strict=True)
    if all(abs(entry[figure]["difference_percent"]) < most for figure, most in near):
        return "neither"
    causes = entry["causes"]
    of_simulation = {
        "rest_s": causes["rest_s"] < 0 or _names_what_is_left_out(causes),
        "set_up_s": causes["light_by"] == "controller",
    }
    simulations = sum(causes[part] for part, its in of_simulation.items() if its)
    emulations = sum(causes[part] for part, its in of_simulation.items() if not its)
    emulations += causes["timers_s"] + causes["links_s"]
    return (
        "emulation"
        if causes["verdict"] or abs(emulations) > abs(simulations)
        else "simulation"
    )


def _names_what_is_left_out(causes: Mapping[str, Any]) -> bool:
    """Return whether TCP or the controller contributed to a difference that is not explained otherwise."""
    return bool(
        causes["retransmits_per_rank_and_iteration"] >= MANY_RETRANSMITS
        or causes["light_moved"]
    )


def reasons(entry: Mapping[str, Any]) -> list[str]:
    """Return the reasons for the difference, as far as the runs show them.

    The reasons are sentences without a full stop, the weightiest first.
    """
    if entry["off"] == "neither":
        return ["they agree"]
    causes = entry["causes"]
    whats = {
        "timers_s": "compute timers that woke late",
        "links_s": "links that carried less payload than the simulation takes (acknowledgements)",
        "set_up_s": _waited(causes),
        "rest_s": _rest(causes),
    }
    weighty = [
        part for part in whats if abs(causes[part]) >= 0.05 * abs(causes["gap_s"])
    ]
    weighty.sort(key=lambda part: -abs(causes[part]))
    sentences = [
        f"{signed(1000 * causes[part])} ms from {whats[part]}" for part in weighty
    ]
    return [
        *sentences,
        *(
            f"the emulation says of itself: {reason['text']}"
            for reason in causes["verdict"][:2]
        ),
    ]


def signed(value: float) -> str:
    """Return a number as text with its sign, one decimal and a proper minus."""
    return f"{value:+.1f}".replace("-", "−")


def _waited(causes: Mapping[str, Any]) -> str:
    """Return a phrase on how long ranks waited for light."""
    emulated_s, simulated_s = (
        causes["light_s"][side] or 0.0 for side in ("emulated", "simulated")
    )
    by = (
        " (the controller's own time is not)"
        if causes["light_by"] == "controller"
        else ""
    )
    return (
        f"light that was longer in coming: {1000 * emulated_s:.1f} ms of an iteration are spent "
        f"waiting for it, simulated {1000 * simulated_s:.1f} ms{by}"
    )


def _rest(causes: Mapping[str, Any]) -> str:
    """Explain the rest of a difference that neither timers nor links cause."""
    if causes["rest_s"] < 0:
        if causes["contended"]:
            return _met(causes)
        return "what the simulation makes wait and the emulation does not"
    again = causes["retransmits_per_rank_and_iteration"]
    parts = []
    if again >= MANY_RETRANSMITS:
        parts.append(
            f"TCP ({again:.1f} segments sent again by each rank in an iteration): pauses after a loss, and "
            "rates about the fair share, of which the lowest sets the pace of a collective"
        )
    if causes["light_moved"]:
        parts.append("the controller's own time and TCP's recovery when light is moved")
    if not parts:
        busy = (
            ""
            if causes["busy"] is None
            else f" (processors {100 * causes['busy']:.0f} % busy on average)"
        )
        parts.append(
            f"kernel, software switches and workers, whose time is not simulated{busy}"
        )
    return " and ".join(parts)


def _met(causes: Mapping[str, Any]) -> str:
    """Return a phrase on how long a job's all-reduces met those of other jobs."""
    emulated_s, simulated_s = (
        causes["met_s"][side] for side in ("emulated", "simulated")
    )
    return (
        "neither a timer nor a link: jobs that share links all-reduced during "
        f"{1000 * emulated_s:.0f} ms of an all-reduce, simulated {1000 * simulated_s:.0f} ms"
    )


def _iterations(numbers: Sequence[int] | None) -> str:
    return f"iteration {' and '.join(map(str, numbers))}" if numbers else "no iteration"


def _pauses(entry: Mapping[str, Any]) -> str | None:
    """The pauses between iterations, if a completion time is beyond reach and most of its difference is
    theirs."""
    completion, between = entry["completion_s"], entry["causes"].get("between_s")
    if (
        between is None
        or abs(completion["difference_percent"]) <= REACH_PERCENT["completion_s"]
    ):
        return None
    whole_s = completion["emulated"] - completion["simulated"]
    pauses_s = between["emulated"] - between["simulated"]
    if abs(pauses_s) < abs(whole_s) / 2 or pauses_s * whole_s < 0:
        return None
    return (
        f"pauses between iterations, such as after a loss: {between['emulated']:.3g} s, "
        f"simulated {between['simulated']:.3g} s"
    )


def cause_of(entry: Mapping[str, Any]) -> str | None:
    """Return the cause of half of the difference, in words; None if the run itself shows no such cause.

    Late timers, slow links, late light and late events are measured. So are waits in queues that another job
    fills, segments that TCP sent again, all-reduces during which light moved, and a run's verdict against
    itself. Waits for turns follow from the run's plan. That kernel and workers take time is known, but not
    how much.
    """
    causes = entry["causes"]
    gap_s = causes["gap_s"]
    if causes["verdict"]:
        return str(causes["verdict"][0].get("text", causes["verdict"][0]["code"]))
    if never := causes.get("never"):
        return f"events that did not happen: {', '.join(never)}"
    if pauses := _pauses(entry):
        return pauses
    if causes.get("events_s", 0.0) >= abs(gap_s) / 2:
        return (
            f"an event that came late ({1000 * causes['events_s']:.0f} ms by iteration)"
        )
    emulated, simulated = (
        causes.get("dark_in", {}).get(side) for side in ("emulated", "simulated")
    )
    if emulated != simulated:
        return (
            f"moved circuits, which interrupted the all-reduce of {_iterations(emulated)}, "
            f"in the simulation that of {_iterations(simulated)}"
        )
    parts = {
        "late timers": causes["timers_s"],
        "slow links": causes["links_s"],
        "late light": causes["set_up_s"],
    }
    # A wait in queues is one for turns, too: the larger counts.
    queues_s, turns_s = causes.get("queues_s", 0.0), causes.get("turns_s", 0.0)
    if queues_s >= turns_s:
        parts["steps that wait in queues which another job fills"] = queues_s
    else:
        parts["frames that wait in the round-robin queues of shared links"] = turns_s
    parts["all-reduces that overlap other jobs for a different time"] = causes.get(
        "meetings_s", 0.0
    )
    parts[f"the work of all ranks at each step, by costs measured on {REFERENCE}"] = (
        causes.get("work_s", 0.0)
    )
    parts["connections in slow start during the first all-reduce"] = causes.get(
        "cold_s", 0.0
    )
    parts["frames that a link passes in one burst after a pause"] = causes.get(
        "bursts_s", 0.0
    )
    # An event that comes late may be a loss or a gain.
    parts["an event that came late"] = math.copysign(causes.get("events_s", 0.0), gap_s)
    helping = {name: part for name, part in parts.items() if part * gap_s > 0}
    if abs(sum(helping.values())) >= abs(gap_s) / 2 <= abs(sum(parts.values())):
        largest = sorted(helping, key=lambda name: -abs(helping[name]))[:2]
        return " and ".join(
            f"{name} ({1000 * abs(helping[name]):.0f} ms)" for name in largest
        )
    again = causes["retransmits_per_rank_and_iteration"]
    if again >= MANY_RETRANSMITS:
        return f"{again:.1f} segments that TCP sent again, by each rank in an iteration"
    return None
