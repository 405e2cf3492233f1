"""The arithmetic of ``rates`` as loops that numba compiles if it is installed; the same figures to rounding.

Constants are arguments: numba keeps what it compiled, and with it what they were then.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ringlight.extensions.cluster.simulation.rates import (
    EQUAL,
    FURTHER,
    LEVELS,
    MORE,
    ROUNDS,
    STILL,
    SWINGS,
    Last,
    rates_of,
)
from ringlight.testbed.simulation.arrays import FloatArray, IntArray
from ringlight.testbed.simulation.loops import compiled


@compiled
def shared(
    offsets: IntArray,
    links: IntArray,
    weights: FloatArray,
    capacity: FloatArray,
    caps: FloatArray,
) -> FloatArray:
    """Return max-min fair rates like ``rates.shared``.

    The links' jobs are listed once, so that a link that is full is looked at once, and each job's links once
    more when it stops.
    """
    jobs, count = len(caps), len(capacity)
    rates, left, load = caps.copy(), capacity.copy(), np.zeros(count)
    users = np.zeros(count + 1, dtype=np.int64)
    for j in range(len(links)):
        load[links[j]] += weights[j]
        users[links[j]] += 1
    begins = np.zeros(count + 1, dtype=np.int64)
    for link in range(count):
        begins[link + 1] = begins[link] + users[link]
    cursor, of_link = begins.copy(), np.zeros(len(links), dtype=np.int64)
    opened = np.zeros(jobs, dtype=np.bool_)
    for k in range(jobs):
        opened[k] = offsets[k + 1] > offsets[k]
        for j in range(offsets[k], offsets[k + 1]):
            of_link[cursor[links[j]]] = k
            cursor[links[j]] += 1
    by_cap = np.argsort(caps)
    capped = 0
    for _ in range(jobs + count + 1):
        lowest, which = np.inf, -1
        for link in range(count):
            if users[link] > 0:
                level = max(left[link], 0.0) / load[link]
                if level < lowest:
                    lowest, which = level, link
        if which < 0:
            break
        before = capped
        while capped < jobs and caps[by_cap[capped]] <= lowest:
            k = by_cap[capped]
            capped += 1
            if opened[k]:
                opened[k] = False
                for j in range(offsets[k], offsets[k + 1]):
                    left[links[j]] -= weights[j] * caps[k]
                    load[links[j]] -= weights[j]
                    users[links[j]] -= 1
        if capped > before:
            continue
        for i in range(begins[which], begins[which + 1]):
            k = of_link[i]
            if opened[k]:
                opened[k] = False
                rates[k] = lowest
                for j in range(offsets[k], offsets[k + 1]):
                    left[links[j]] -= weights[j] * lowest
                    load[links[j]] -= weights[j]
                    users[links[j]] -= 1
    return rates


@compiled
def always(
    offsets: IntArray,
    links: IntArray,
    weights: FloatArray,
    capacity: FloatArray,
    shares: FloatArray,
    last: Last | None = None,
) -> FloatArray:
    """Return speeds like ``rates.always``, as shares of ideal speed."""
    rates = shared(offsets, links, weights, capacity, np.ones(len(shares)))
    return 1 / (1 - shares + shares / rates)


@compiled
def interleaved(
    offsets: IntArray,
    links: IntArray,
    weights: FloatArray,
    capacity: FloatArray,
    shares: FloatArray,
    last: Last | None = None,
) -> FloatArray:
    """Return speeds like ``rates.interleaved``, as shares of ideal speed."""
    caps, weighs = np.ones(len(shares)), weights.copy()
    for k in range(len(shares)):
        for j in range(offsets[k], offsets[k + 1]):
            caps[k] = min(caps[k], capacity[links[j]] / weights[j])
            weighs[j] *= shares[k]
    return shared(offsets, links, weighs, capacity, 1 / (1 - shares + shares / caps))


@compiled
def load_at(
    level: float,
    weight: float,
    mean: float,
    varies: float,
    elsewhere: float,
    on: float,
    sign: float,
) -> float:
    """Return the load of a link when a job has rate ``level`` on it. ``mean`` and ``varies`` are of all
    jobs.
    """
    put = weight * min(elsewhere, level)
    spread = np.sqrt(max(varies - on * (1 - on) * put**2, 0.0))
    load: float = weight * level + max(mean - on * put + sign * spread, 0.0)
    return load


@compiled
def full_at(
    levels: FloatArray,
    weight: float,
    mean: FloatArray,
    varies: FloatArray,
    roomy: npt.NDArray[np.bool_],
    elsewhere: float,
    on: float,
    room: float,
    sign: float,
) -> float:
    """Return the rate at which a job finds a link full that carries ``mean``, with variance ``varies``, of
    all jobs at each of ``levels``.

    ``elsewhere``: rate that the job's other links allow it. ``on``: share of the time in which it sends. Both
    are included in these sums. ``roomy``: whether the link has room for all jobs at a level. ``room``: the
    link's capacity. Returns 1 if the job never finds it full.
    """
    last = len(levels) - 1
    most = load_at(levels[last], weight, mean[last], varies[last], elsewhere, on, sign)
    if most <= room:
        return 1.0
    before, below, load = 0.0, 0.0, most
    rate: float = 1.0
    for index in range(last):
        if roomy[index] and roomy[index + 1]:
            continue
        rate = levels[index]
        load = load_at(rate, weight, mean[index], varies[index], elsewhere, on, sign)
        if load > room:
            break
        before, below = load, rate
    else:
        rate, load = levels[last], most
    return below + (rate - below) * (room - before) / (load - before)


def duty(
    offsets: IntArray,
    links: IntArray,
    weights: FloatArray,
    capacity: FloatArray,
    shares: FloatArray,
    last: Last | None = None,
) -> FloatArray:
    """Return speeds like ``rates.duty``, as shares of ideal speed."""
    speed, level = (np.ones(len(shares)), np.ones(len(links))) if last is None else last
    return mean_field(
        offsets,
        links,
        weights,
        capacity,
        shares,
        rates_of(speed, shares),
        level,
        LEVELS,
        MORE,
        FURTHER,
        EQUAL,
        STILL,
        ROUNDS,
        SWINGS,
    )


@compiled
def mean_field(
    offsets: IntArray,
    links: IntArray,
    weights: FloatArray,
    capacity: FloatArray,
    shares: FloatArray,
    rates: FloatArray,
    level: FloatArray,
    levels: FloatArray,
    more: float,
    further: int,
    equal: float,
    still: float,
    rounds: int,
    swings: int,
) -> FloatArray:
    """Return the speeds. The search begins at ``rates`` and ``level``, which hold its end afterwards."""
    jobs, steps = len(shares), len(levels)
    on = np.ones(jobs)
    elsewhere, busy, calm = (
        np.ones(len(links)),
        np.ones(len(links)),
        np.ones(len(links)),
    )
    mean, varies = np.zeros((len(capacity), steps)), np.zeros((len(capacity), steps))
    # What the largest job on a link puts there, and at which levels it has room for all even at a busy
    # moment.
    largest, roomy = (
        np.zeros(len(capacity)),
        np.zeros((len(capacity), steps), dtype=np.bool_),
    )
    for j in range(len(links)):
        largest[links[j]] = max(largest[links[j]], weights[j])
    for number in range(rounds):
        mean[:] = 0.0
        varies[:] = 0.0
        for k in range(jobs):
            on[k] = (shares[k] / rates[k]) / (1 - shares[k] + shares[k] / rates[k])
            least, second = 1.0, 1.0
            for j in range(offsets[k], offsets[k + 1]):
                if level[j] < least:
                    least, second = level[j], least
                elif level[j] < second:
                    second = level[j]
            for j in range(offsets[k], offsets[k + 1]):
                elsewhere[j] = second if level[j] <= least else least
                for index in range(steps):
                    put = weights[j] * min(elsewhere[j], levels[index])
                    sent = on[k] * put
                    mean[links[j], index] += sent
                    varies[links[j], index] += (1 - on[k]) * sent * put
        moved = 0.0
        for link in range(len(capacity)):
            for index in range(steps):
                most = (
                    largest[link] * levels[index]
                    + mean[link, index]
                    + np.sqrt(varies[link, index])
                )
                roomy[link, index] = most <= capacity[link]
        for k in range(jobs):
            worst, best = 1.0, 1.0
            for j in range(offsets[k], offsets[k + 1]):
                link = links[j]
                if roomy[link, steps - 1]:
                    busy[j] = calm[j] = level[j] = 1.0
                    continue
                room = capacity[link]
                busy[j] = full_at(
                    levels,
                    weights[j],
                    mean[link],
                    varies[link],
                    roomy[link],
                    elsewhere[j],
                    on[k],
                    room,
                    1.0,
                )
                calm[j] = 1.0
                if busy[j] < 1:
                    calm[j] = full_at(
                        levels,
                        weights[j],
                        mean[link],
                        varies[link],
                        roomy[link],
                        elsewhere[j],
                        on[k],
                        room,
                        -1.0,
                    )
                level[j] = np.sqrt(busy[j] * calm[j])
                worst, best = min(worst, busy[j]), min(best, calm[j])
            count, logs, new = 0, 0.0, best
            for j in range(offsets[k], offsets[k + 1]):
                if busy[j] < best * equal:
                    count += 1
                    logs += np.log(busy[j])
            if count:
                quiet = (1 - more) ** min(count - 1, further)
                new = np.sqrt(worst * best**quiet * np.exp((1 - quiet) * logs / count))
            moved = max(moved, abs(new - rates[k]))
            rates[k] = new if number < swings else (new + rates[k]) / 2
        if moved < still:
            break
    return 1 / (1 - shares + shares / rates)


LOOPS = {"always": always, "interleaved": interleaved, "duty": duty}
