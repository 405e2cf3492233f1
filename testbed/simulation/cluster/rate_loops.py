"""The arithmetic of ``rates`` as loops that numba compiles where it is installed; the same figures to
rounding."""

from __future__ import annotations

import numpy as np

from ringlight.testbed.simulation.arrays import FloatArray, IntArray
from ringlight.testbed.simulation.cluster.rates import ROUNDS, STILL
from ringlight.testbed.simulation.loops import compiled


@compiled
def shared(
    offsets: IntArray, links: IntArray, weights: FloatArray, capacity: FloatArray, caps: FloatArray
) -> FloatArray:
    """Max-min fair rates as ``rates.shared``. The links' jobs are listed once, so that a link that is full is
    looked at once, and each job's links once more when it stops."""
    jobs, count = len(caps), len(capacity)
    found, left, load = caps.copy(), capacity.copy(), np.zeros(count)
    users = np.zeros(count + 1, dtype=np.int64)
    for j in range(len(links)):
        load[links[j]] += weights[j]
        users[links[j]] += 1
    begins = np.zeros(count + 1, dtype=np.int64)
    for link in range(count):
        begins[link + 1] = begins[link] + users[link]
    at, of_link = begins.copy(), np.zeros(len(links), dtype=np.int64)
    opened = np.zeros(jobs, dtype=np.bool_)
    for k in range(jobs):
        opened[k] = offsets[k + 1] > offsets[k]
        for j in range(offsets[k], offsets[k + 1]):
            of_link[at[links[j]]] = k
            at[links[j]] += 1
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
                found[k] = lowest
                for j in range(offsets[k], offsets[k + 1]):
                    left[links[j]] -= weights[j] * lowest
                    load[links[j]] -= weights[j]
                    users[links[j]] -= 1
    return found


@compiled
def always(
    offsets: IntArray, links: IntArray, weights: FloatArray, capacity: FloatArray, shares: FloatArray
) -> FloatArray:
    """Speeds as ``rates.always``."""
    rates = shared(offsets, links, weights, capacity, np.ones(len(shares)))
    return 1 / (1 - shares + shares / rates)


@compiled
def interleaved(
    offsets: IntArray, links: IntArray, weights: FloatArray, capacity: FloatArray, shares: FloatArray
) -> FloatArray:
    """Speeds as ``rates.interleaved``."""
    caps, weighs = np.ones(len(shares)), weights.copy()
    for k in range(len(shares)):
        for j in range(offsets[k], offsets[k + 1]):
            caps[k] = min(caps[k], capacity[links[j]] / weights[j])
            weighs[j] *= shares[k]
    return shared(offsets, links, weighs, capacity, 1 / (1 - shares + shares / caps))


@compiled
def duty(
    offsets: IntArray, links: IntArray, weights: FloatArray, capacity: FloatArray, shares: FloatArray
) -> FloatArray:
    """Speeds as ``rates.duty``."""
    jobs = len(shares)
    rates, level = np.ones(jobs), np.ones(len(links))
    for _ in range(ROUNDS):
        mean, varies = np.zeros(len(capacity)), np.zeros(len(capacity))
        for k in range(jobs):
            on = (shares[k] / rates[k]) / (1 - shares[k] + shares[k] / rates[k])
            for j in range(offsets[k], offsets[k + 1]):
                weighs = weights[j] * min(1.0, rates[k] / level[j])
                mean[links[j]] += on * weighs
                varies[links[j]] += on * (1 - on) * weighs**2
        moved = 0.0
        before = level.copy()
        for k in range(jobs):
            on = (shares[k] / rates[k]) / (1 - shares[k] + shares[k] / rates[k])
            least = 1.0
            for j in range(offsets[k], offsets[k + 1]):
                weighs = weights[j] * min(1.0, rates[k] / before[j])
                others = mean[links[j]] - on * weighs
                spread = np.sqrt(max(varies[links[j]] - on * (1 - on) * weighs**2, 0.0))
                room = capacity[links[j]]
                high = min(1.0, room / (weights[j] + others + spread))
                low = min(1.0, room / (weights[j] + max(others - spread, 0.0)))
                level[j] = np.sqrt(high * low)
                least = min(least, level[j])
            if offsets[k + 1] > offsets[k]:
                new = (least + rates[k]) / 2
                moved = max(moved, abs(new - rates[k]))
                rates[k] = new
        if moved < STILL:
            break
    return 1 / (1 - shares + shares / rates)


LOOPS = {"always": always, "interleaved": interleaved, "duty": duty}
