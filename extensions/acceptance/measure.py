"""Measure the effects of a switch on traffic from the frames themselves.

Streams of numbered frames go both ways between faceplates 1 and 2, each at an interval of `PACE_S`. When
circuits move, frames are lost while the circuit is dark: between the last frame that came through before and
the first that came through afterwards. So each dark time is known as an interval, mostly two paces wide. If a
sender was held up at an edge, the interval is wide. Such a sample is counted and left out (`SHARP_S`).

Every measurement is a function of a rig and an open driver. It returns an object of JSON, and raises Lacks if
the switch lacks what the measurement needs.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.errors import NotAsPlanned, OpticalError
from ringlight.controller.optical.model import ApplyResult
from ringlight.extensions.acceptance.numbered_frames import (
    Arrived,
    Gap,
    Sent,
    Traffic,
    gaps,
    interval_of,
    merged,
)
from ringlight.fabric.crossconnect import CrossConnect, Mode
from ringlight.testbed.rigs.rig import Lacks, Rig, lacks, opened

#: A frame leaves each way so often, seconds.
PACE_S = 100e-6
#: A dark time that is not known to this is left out, seconds.
SHARP_S = 0.5e-3
#: Between changes, so that gaps stand apart, seconds.
PAUSE_S = 0.03
#: Changes of the dark-time measurement, and of each number of circuits.
MOVES, LATENCY_MOVES = 30, 30
#: Numbers of circuits that are moved at once.
TOGETHER = (1, 16, 160)
#: The stream over a kept circuit, bits a second, and how long others move next to it, seconds.
KEPT_BPS, KEPT_S = 1e9, 5.0
#: Circuits that are set next to the kept ones, and how many of them move.
OTHERS, MOVING = 320, 160
#: Sessions that flood the switch, and for how long, seconds.
FLOODERS, FLOOD_S = 4, 5.0
#: Longest that such a session may take to begin and to end, seconds.
SESSION_S = 90.0
#: Circuits whose insertion loss is read at most.
LOSSES = 16

Progress = Callable[[str], None]


@dataclass(frozen=True)
class MeasuredChange:
    """Change of circuits: when it was requested and answered (nanoseconds), and what was reported."""

    requested: int
    answered: int
    result: ApplyResult


@dataclass(frozen=True)
class Sample:
    """Dark time of one circuit in one change, in seconds: its bounds by traffic, and the driver's figure.

    ``way``: the faceplate that its stream came from.
    """

    change: int
    way: int
    least_s: float
    most_s: float
    driver_s: float | None


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Return count, extremes and quantiles of a distribution in seconds; {} if it is empty."""
    if not seconds:
        return {}
    p50, p99 = (float(np.quantile(seconds, q)) for q in (0.5, 0.99))
    return {
        "count": len(seconds),
        "least_s": round(min(seconds), 7),
        "p50_s": round(p50, 7),
        "mean_s": round(statistics.fmean(seconds), 7),
        "p99_s": round(p99, 7),
        "most_s": round(max(seconds), 7),
    }


@dataclass(frozen=True)
class MeasuredStream:
    """Frames that left one faceplate, and frames that arrived, by faceplate."""

    sent: Sent
    arrived: Mapping[int, Arrived]

    def gaps(self) -> list[Gap]:
        return gaps(self.sent, merged(self.arrived.values()))

    def first_at(self, faceplate: int, since: int) -> tuple[int, int] | None:
        """Return the interval (ns) in which the first light after ``since`` (ns) reached a faceplate; None if
        none did.
        """
        there = self.arrived[faceplate]
        later = np.flatnonzero(there.times >= since)
        if not len(later):
            return None
        number = int(there.numbers[later].min())
        return max(since, int(self.sent.before[max(0, number - 1)])), int(
            there.times[later].min()
        )


def two_states(rig: Rig, count: int) -> tuple[set[CrossConnect], set[CrossConnect]]:
    """Return two sets of ``count`` circuits. Every circuit moves from one set to the other.

    In the first set, faceplate 1 leads to 2 and (if ``count`` is even) 2 to 1. In the second, both lead back
    to themselves. Raises Lacks if the rig has too few pairs of ports.
    """
    if count > rig.pairs:
        lacks(f"{count} pairs of ports (there are {rig.pairs})")
    if count == 1:
        return {rig.xc(1, 2)}, {rig.xc(1, 1)}
    around = range(1, count + 1)
    # Pairs swap, so that 1 and 2 serve each other; an odd one out goes round with the last two.
    partner = {p: p + 1 if p % 2 else p - 1 for p in around}
    if count % 2:
        partner |= {count - 2: count - 1, count - 1: count, count: count - 2}
    return {rig.xc(p, partner[p]) for p in around}, {rig.xc(p, p) for p in around}


def make(
    rig: Rig,
    driver: OpticalSwitchDriver,
    target: set[CrossConnect],
    timeout_s: float = 60.0,
) -> MeasuredChange:
    """Make ``target`` the only circuits of the rig's ports. Return the change with its times.

    On a switch that also carries circuits of others nothing is replaced as a whole: a circuit that moves is
    removed because it is in the way.
    """
    requested = time.monotonic_ns()
    mode = Mode.UPDATE if rig.others else Mode.REPLACE
    result = rig.change(driver, target, mode, timeout_s=timeout_s)
    return MeasuredChange(requested, time.monotonic_ns(), result)


def _moves(
    rig: Rig, driver: OpticalSwitchDriver, count: int, moves: int, ways: Sequence[int]
) -> tuple[list[MeasuredChange], dict[int, MeasuredStream]]:
    """Move ``count`` circuits ``moves`` times while streams go from the faceplates ``ways``.

    Return the changes, and the stream of each of these faceplates.
    """
    rig.host(1), rig.host(2)
    first, second = two_states(rig, count)
    make(rig, driver, first)
    changes = []
    with Traffic(rig.hosts, ways, (1, 2), interval_s=PACE_S) as traffic:
        time.sleep(5 * PAUSE_S)
        for number in range(moves):
            changes.append(make(rig, driver, first if number % 2 else second))
            time.sleep(PAUSE_S)
        time.sleep(2 * PAUSE_S)
        sent, arrived = traffic.end()
    return changes, {
        way: MeasuredStream(
            sent[way], {host: heard[way] for host, heard in arrived.items()}
        )
        for way in ways
    }


def _seen(
    changes: Sequence[MeasuredChange], interruptions: Sequence[Gap]
) -> Iterator[tuple[MeasuredChange, list[Gap]]]:
    """Yield the changes, each with the gaps that began after its request and before the next one."""
    ends = [change.requested for change in changes[1:]]
    for change, until in zip(
        changes, [*ends, changes[-1].answered + 10**9], strict=True
    ):
        yield (
            change,
            [
                gap
                for gap in interruptions
                if change.requested <= gap.gone[1] and gap.gone[0] < until
            ],
        )


def _closest(change: MeasuredChange, sent: Sent) -> float:
    """Return the seconds between the two frames that were furthest apart while the change was made.

    If no frame was lost, no dark time is longer.
    """
    until = change.answered + round(1e10 * PACE_S)
    of_it = sent.before[(sent.before >= change.requested) & (sent.before <= until)]
    return float(np.diff(of_it).max()) / 1e9 if len(of_it) > 1 else SHARP_S


def dark_time(
    rig: Rig, driver: OpticalSwitchDriver, moves: int = MOVES
) -> dict[str, Any]:
    """Return how long each of two circuits is dark when both are moved, in seconds.

    The times come from the frames of a stream each way, from the driver's report and (if the switch can) from
    the switch's own report.
    """
    timing = driver.capabilities().timing
    changes, streams = _moves(rig, driver, 2, moves, (1, 2))
    writes = changes[0].result.writes
    between = (
        timing.command.typical_s + 2 * timing.per_cross_connect_s if writes > 1 else 0.0
    )
    samples: list[Sample] = []
    unsharp = broken = 0
    for way, stream in streams.items():
        for number, (change, mine) in enumerate(_seen(changes, stream.gaps())):
            if len(mine) > 1:
                broken += 1
                continue
            bounds = (
                (mine[0].least_s, mine[0].most_s)
                if mine
                else (0.0, _closest(change, stream.sent))
            )
            if bounds[1] - bounds[0] > SHARP_S or (
                mine and mine[0].held_up > SHARP_S * 1e9
            ):
                unsharp += 1
                continue
            added = next(
                r
                for r in change.result.results
                if r.action == "add" and r.ingress == rig.inputs[way - 1]
            )
            reported = (
                round(added.t_lit - added.t_dark, 6)
                if added.t_lit and added.t_dark
                else None
            )
            samples.append(
                Sample(number, way, round(bounds[0], 7), round(bounds[1], 7), reported)
            )
    try:
        own: float | None = rig.reported_dark_s(rig.xc(1, 2 if moves % 2 == 0 else 1))
    except Lacks:
        own = None
    middles = [(sample.least_s + sample.most_s) / 2 for sample in samples]
    # The second write's own time passes in the dark; its cross-connects are known, the client's time is not.
    declared = [
        between + bound
        for bound in (timing.dark.least_s, timing.dark.typical_s, timing.dark.most_s)
    ]
    outside = [
        max(declared[0] - sample.most_s, sample.least_s - declared[2], 0.0)
        for sample in samples
    ]
    last = [
        sample for sample in samples if sample.change == moves - 1 and sample.way == 1
    ]
    return {
        "writes": writes,
        "pace_s": PACE_S,
        "declared_s": {
            "least": declared[0],
            "typical": declared[1],
            "most": declared[2],
        },
        "measured": summary(middles),
        "outside_declared": summary(outside),
        "driver": summary([sample.driver_s for sample in samples if sample.driver_s]),
        "last_by_the_switch_s": own and round(own, 7),
        "last_measured_s": [last[0].least_s, last[0].most_s] if last else None,
        "unsharp": unsharp,
        "interrupted_more_than_once": broken,
        "samples": [asdict(sample) for sample in samples],
    }


def command_to_light(
    rig: Rig, driver: OpticalSwitchDriver, count: int, moves: int = LATENCY_MOVES
) -> dict[str, Any]:
    """Return the times in seconds from the call that moves ``count`` circuits to the first frame on the
    streamed circuit, and to the answer.
    """
    changes, streams = _moves(rig, driver, count, moves, (1,))
    light, unsharp = [], 0
    for number, change in enumerate(changes):
        came = streams[1].first_at(2 if number % 2 else 1, change.requested)
        if came is None or came[1] - came[0] > SHARP_S * 1e9:
            unsharp += 1
            continue
        light.append((sum(came) / 2 - change.requested) / 1e9)
    answers = [(change.answered - change.requested) / 1e9 for change in changes]
    return {
        "circuits": count,
        "writes": changes[0].result.writes,
        "light": summary(light),
        "answer": summary(answers),
        "unsharp": unsharp,
        "samples_s": [round(value, 7) for value in light],
    }


def kept_circuits(
    rig: Rig,
    driver: OpticalSwitchDriver,
    rate_bps: float = KEPT_BPS,
    seconds: float = KEPT_S,
) -> dict[str, Any]:
    """Return the number of frames lost on two circuits, one each way between 1 and 2, while half of all
    others move.
    """
    sender, _ = rig.host(1), rig.host(2)
    other_circuits = min(OTHERS, rig.pairs - 2)
    moving = min(MOVING, other_circuits // 2 * 2 if other_circuits < MOVING else MOVING)
    if other_circuits < 2:
        lacks("circuits besides the two that are kept")
    kept = rig.cycle(1, 2)
    there = {rig.xc(p, p) for p in range(3, other_circuits + 3)}
    swapped = {rig.xc(p, p + 1 if p % 2 else p - 1) for p in range(3, moving + 3)}
    still = {rig.xc(p, p) for p in range(moving + 3, other_circuits + 3)}
    make(rig, driver, kept | there)
    size = sender.mtu_bytes + 14
    interval_s = interval_of(size, rate_bps)
    changes: list[MeasuredChange] = []
    with Traffic(
        rig.hosts, (1,), (2,), interval_s=interval_s, size=size, catch_up=True
    ) as stream:
        time.sleep(0.2)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            target = kept | (swapped | still if len(changes) % 2 == 0 else there)
            changes.append(make(rig, driver, target))
        time.sleep(0.2)
        sent, arrived = stream.end()
    heard = arrived[2][1]
    numbers = heard.numbers
    count = len(sent[1].before)
    return {
        "others": other_circuits,
        "moving": moving,
        "changes": len(changes),
        "rate_bps": round(sent[1].rate_bps),
        "frame_bytes": size,
        "sent": count,
        "arrived": heard.distinct,
        "twice": len(numbers) - heard.distinct,
        "out_of_order": int((np.diff(numbers) < 0).sum()),
        "lost": count - heard.distinct,
        "change": summary(
            [(change.answered - change.requested) / 1e9 for change in changes]
        ),
    }


def flood(
    rig: Rig, driver: OpticalSwitchDriver, seconds: float = FLOOD_S
) -> dict[str, Any]:
    """Flood the switch with sessions that each change a circuit of their own as fast as they are answered,
    and return the result.

    A further circuit is kept meanwhile. The result has the number of changes, how long each took, what
    failed, and whether all circuits are set up in the end.
    """
    sessions = min(FLOODERS, rig.pairs - 2)
    if sessions < 1:
        lacks("circuits besides the two that are kept")
    rig.host(1), rig.host(2)
    kept = rig.cycle(1, 2)
    make(rig, driver, kept)
    ends = time.monotonic() + seconds
    took: list[list[float]] = [[] for _ in range(sessions)]
    errors: dict[str, int] = {}
    lock = threading.Lock()

    def count(name: str) -> None:
        with lock:
            errors[name] = errors.get(name, 0) + 1

    def change_circuits(number: int) -> None:
        mine = rig.driver(direct=True)
        port = number + 3
        try:
            mine.open(timeout_s=30)
            while time.monotonic() < ends:
                started = time.monotonic()
                try:
                    if len(took[number]) % 2:
                        rig.change(
                            mine,
                            (),
                            delete=[rig.inputs[port - 1]],
                            timeout_s=30,
                            settle=False,
                        )
                    else:
                        rig.change(
                            mine, [rig.xc(port, port)], timeout_s=30, settle=False
                        )
                except OpticalError as error:
                    # That circuits of other sessions come and go meanwhile is reported, and is no failure.
                    result = error.result if isinstance(error, NotAsPlanned) else None
                    if result is None or any(
                        r.ingress == rig.inputs[port - 1] for r in result.deviations
                    ):
                        count(type(error).__name__)
                took[number].append(time.monotonic() - started)
            with contextlib.suppress(NotAsPlanned):
                rig.change(mine, [rig.xc(port, port)], timeout_s=30)
        except OpticalError as error:
            count(f"at the end: {type(error).__name__}")
        finally:
            mine.close()

    with Traffic(rig.hosts, (1,), (2,), interval_s=PACE_S) as stream:
        threads = [
            threading.Thread(target=change_circuits, args=(n,), daemon=True)
            for n in range(sessions)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(seconds + SESSION_S)
        if any(thread.is_alive() for thread in threads):
            raise RuntimeError(
                f"a session did not end within {seconds + SESSION_S:g} s"
            )
        sent, arrived = stream.end()
    target = kept | {rig.xc(n + 3, n + 3) for n in range(sessions)}
    every = [value for some in took for value in some]
    return {
        "sessions": sessions,
        "seconds": seconds,
        "changes": len(every),
        "changes_per_s": round(len(every) / seconds, 1),
        "each": summary(every),
        "errors": errors,
        "stands_in_the_end": rig.standing(driver) == target,
        "sent": len(sent[1].before),
        "lost": len(sent[1].before) - arrived[2][1].distinct,
    }


def insertion_loss(rig: Rig, driver: OpticalSwitchDriver) -> dict[str, Any]:
    """Return the insertion loss in dB: power in less power out, of circuits between ports that both have a
    meter and at which light comes in.
    """
    power = driver.capabilities().power
    lit_ports = [
        p for p in sorted(rig.plugged) if p <= rig.pairs and rig.inputs[p - 1] in power
    ]
    if not lit_ports or not set(rig.outputs) & power:
        lacks("power meters at a port with light")
    readings: list[tuple[str, float, float]] = []
    for faceplate in lit_ports:
        for other in range(1, min(rig.pairs, max(2, LOSSES // len(lit_ports))) + 1):
            if rig.outputs[other - 1] not in power:
                continue
            circuit = rig.xc(faceplate, other)
            make(rig, driver, {circuit})
            read = driver.power_dbm([circuit.ingress, circuit.egress])
            into, out = read[circuit.ingress], read[circuit.egress]
            if into is not None and out is not None:
                readings.append((str(circuit), into, out))
    if not readings:
        lacks("meters that show power")
    losses = [round(into - out, 2) for _, into, out in readings]
    return {
        "circuits": [
            {"circuit": name, "in_dbm": into, "out_dbm": out, "db": loss}
            for (name, into, out), loss in zip(readings, losses, strict=True)
        ],
        "least_db": min(losses),
        "median_db": round(statistics.median(losses), 2),
        "most_db": max(losses),
    }


def factory_loss(rig: Rig, driver: OpticalSwitchDriver) -> dict[str, Any]:
    """Return the insertion loss of paths in dB as their maker measured it, if the switch reports it."""
    side = max(2, math.isqrt(LOSSES))
    paths = [
        rig.xc(a, b)
        for a in range(1, min(side, rig.pairs) + 1)
        for b in range(1, min(side, rig.pairs) + 1)
    ]
    loss_of = {
        str(xc): loss
        for xc, loss in driver.factory_loss_db(paths).items()
        if loss is not None
    }
    if not loss_of:
        lacks("a table of what its maker measured")
    losses = list(loss_of.values())
    return {
        "circuits": [{"circuit": name, "db": loss} for name, loss in loss_of.items()],
        "least_db": min(losses),
        "median_db": round(statistics.median(losses), 2),
        "most_db": max(losses),
    }


def measure(
    rig: Rig, progress: Progress, counts: Sequence[int] = TOGETHER
) -> dict[str, Any]:
    """Make all measurements, each with a driver of its own, and return the results by name.

    The result is ``{"lacks": …}`` if the switch does not support a measurement, and ``{"failed": …}`` if the
    driver failed.
    """
    measurements: dict[str, Callable[[Rig, OpticalSwitchDriver], dict[str, Any]]] = {
        "dark_time": dark_time,
        **{
            f"command_to_light_{count}": partial(command_to_light, count=count)
            for count in counts
        },
        "kept_circuits": kept_circuits,
        "flood": flood,
        "insertion_loss": insertion_loss,
        "factory_loss": factory_loss,
    }
    results: dict[str, Any] = {}
    for name, measurement in measurements.items():
        progress(name.replace("_", " "))
        try:
            with opened(rig) as driver:
                results[name] = measurement(rig, driver)
        except Lacks as lack:
            results[name] = {"lacks": str(lack)}
        except (OpticalError, OSError, RuntimeError) as error:
            results[name] = {"failed": f"{type(error).__name__}: {error}"}
    return results


def measured(make_rig: Callable[[], Rig], progress: Progress) -> dict[str, Any]:
    """Return the results of :func:`measure` on a rig that is made for it."""
    with contextlib.closing(make_rig()) as rig:
        return measure(rig, progress)
