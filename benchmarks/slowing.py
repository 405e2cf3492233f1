"""Whether a simulated job that is alone ends earlier with a slower rank, a slower link or a longer delay.

On links that no two of its transfers share it must not. Where transfers share links it may: what comes later
may meet less there. Such cases are listed, each with how long flows shared links before and after. A case is
explained by sharing if it does not end earlier once each pair of ranks has links of its own, of the same
rates and delays; else it is missed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.harness import tell
from ringlight.fabric.link_effects import LinkEffect

#: A job that ends earlier by less than this share ends at the same time.
ROUNDING = 1e-9
#: Collectives that are drawn.
COLLECTIVES = (
    *(
        "ring",
        "ring",
        "ring",
        "bidirectional-ring",
        "halving-doubling",
        "recursive-doubling",
        "binary-tree",
    ),
    *("hierarchical-ring", "coprime-rings"),
)


def slowing(cases: int = 500, seed: int = 1) -> dict[str, Any]:
    """Draw that many cases of each kind: links of their own, and links that transfers share."""
    found: dict[str, Any] = {"cases": cases, "seed": seed, "missed": []}
    for kind, draw in (("own", own_links), ("shared", shared_links)):
        random = np.random.default_rng([seed, len(kind)])
        earlier = []
        for number in range(cases):
            case = draw(random)
            before, after = case.run(), case.slowed.run()
            if after.end_s < before.end_s * (1 - ROUNDING):
                earlier.append(explained(number, case, before, after))
                tell(f"{kind} links, case {number}: {earlier[-1]}")
        found[f"{kind}_links_earlier"] = earlier
        found["missed"] += [
            f"{kind} links, case {one['case']}: {one['why']}"
            for one in earlier
            if not one["by_sharing"]
        ]
    return found


PARTS = (slowing,)


@dataclass(frozen=True)
class Outcome:
    """When a job ended, and link-seconds in which more than one flow was on a link."""

    end_s: float
    shared_s: float


class Pairs:
    """A network with links of its own for each pair of ranks: bits per second and seconds, [ranks, ranks]."""

    def __init__(self, rate_bps: Any, delay_s: Any) -> None:
        self.ranks = len(rate_bps)
        self.capacity_bps, self._delay_s = (
            rate_bps.ravel().astype(float),
            delay_s.ravel(),
        )

    def key(self, link: int) -> tuple[int, int]:
        return divmod(link, self.ranks)

    def routes(self, ranks: Sequence[str], step: Any, number: int = 0) -> Any:
        from ringlight.testbed.simulation.networks import Routes

        links = step.sources * self.ranks + step.destinations
        return Routes(np.arange(len(step) + 1), links, self._delay_s[links])


@dataclass(frozen=True)
class Delay(LinkEffect):
    """A link that adds so many seconds to the way of every frame."""

    delay_s: float = 0.0


@dataclass(frozen=True)
class Case:
    """One job on a network, which ``change`` slows. ``factors``: of ranks' computing.

    ``tree``: None for links of their own, else the oversubscription of a leaf-spine fabric of pairs of GPUs.
    """

    collective: str
    rate_bps: Any
    delay_s: Any
    factors: tuple[float, ...]
    size: float
    compute_s: float
    iterations: int
    order: tuple[int, ...] = ()
    tree: float | None = None
    change: tuple[str, int, float] = ("", 0, 1.0)
    workload: bool = False

    @property
    def ranks(self) -> int:
        return len(self.factors)

    @property
    def slowed(self) -> Case:
        what, where, by = self.change
        if what == "rank":
            factors = tuple(
                f * (by if rank == where else 1) for rank, f in enumerate(self.factors)
            )
            return replace(self, factors=factors)
        column = (self.rate_bps if what == "rate" else self.delay_s).copy()
        column.flat[where] = (
            column.flat[where] / by if what == "rate" else column.flat[where] + by
        )
        return replace(self, **{"rate_bps" if what == "rate" else "delay_s": column})

    def __str__(self) -> str:
        what, where, by = self.change
        slower = {
            "rank": f"rank {where} computes {by:.3g} times as long",
            "rate": f"link {where} has 1/{by:.3g}",
        }
        how = slower.get(what, f"link {where} delays by {by:.3g} s more")
        return f"{self.collective} of {self.ranks}{' as a workload' if self.workload else ''}: {how}"

    @property
    def unshared(self) -> Case:
        """The same, with the rate and the delay of its path as a link of each pair's own."""
        from ringlight.fabric.steps import Step

        network, pairs = self.network(), np.argwhere(~np.eye(self.ranks, dtype=bool))
        gpus = tuple(f"g{rank}" for rank in self.order)
        zeros = np.zeros(len(pairs), dtype=np.int64)
        routes = network.routes(
            gpus, Step(pairs[:, 0], pairs[:, 1], zeros, zeros + 1, "reduce")
        )
        rate_bps, delay_s = (
            np.ones((self.ranks, self.ranks)),
            np.zeros((self.ranks, self.ranks)),
        )
        rate_bps[tuple(pairs.T)] = np.minimum.reduceat(
            network.capacity_bps[routes.links], routes.offsets[:-1]
        )
        delay_s[tuple(pairs.T)] = routes.latency_s
        return replace(self, rate_bps=rate_bps, delay_s=delay_s, tree=None)

    def network(self) -> Any:
        if self.tree is None:
            return Pairs(self.rate_bps, self.delay_s)

        from ringlight.fabric.trees import leaf_spine
        from ringlight.testbed.simulation.networks import PacketNetwork

        fabric = leaf_spine(
            self.ranks // 2, 2, 1e9, oversubscription=self.tree
        ).fabric()
        links = tuple(
            replace(
                link, rate_bps=link.rate_bps * float(self.rate_bps.flat[k]),
                effects={"delay": Delay(float(self.delay_s.flat[k]))},
            )
            for k, link in enumerate(fabric.links)
        )  # fmt: skip
        return PacketNetwork(replace(fabric, links=links))

    def run(self) -> Outcome:
        from ringlight.fabric.algorithms import steps_named
        from ringlight.testbed.simulation.engine import Engine
        from ringlight.testbed.simulation.jobs import Compute, Job
        from tests.simulated_jobs import simulate

        network, engine = self.network(), Engine(trace=True)
        gpus = tuple(f"g{rank}" for rank in self.order or range(self.ranks))
        stragglers = {rank: f for rank, f in enumerate(self.factors) if f != 1}
        if self.workload:
            end_s = self._workload_s(network, gpus, stragglers, engine)
        else:
            steps = steps_named(self.collective, self.ranks)
            compute = Compute(self.compute_s, stragglers)
            job = Job("job", gpus, steps, self.size, compute, self.iterations)
            made = simulate(network, [job], engine=engine)["job"]
            assert made.failed is None, made.failed
            end_s = made.end_s
        assert engine.passed is not None
        return Outcome(end_s, shared_s(engine.passed))

    def _workload_s(
        self, network: Any, gpus: tuple[str, ...], slower: Any, engine: Any
    ) -> float:
        from ringlight.testbed.simulation.workload import Execution
        from ringlight.workloads.graph_writer import data_parallel_loop

        for link, capacity in enumerate((network.capacity_bps / 8).tolist()):
            engine.link(network.key(link), capacity)
        graph = data_parallel_loop(
            self.ranks, self.compute_s, int(self.size), self.collective
        )
        run = Execution(
            engine, network, gpus, graph, iterations=self.iterations, slower=slower
        )
        run.begin()
        engine.run()
        assert run.over
        return float(run.operations.end_s.max())


def shared_s(passed: Any) -> float:
    """Link-seconds in which more than one flow was on a link."""
    events: dict[int, list[tuple[float, int]]] = {}
    for one in passed:
        for link in one.links:
            events.setdefault(link, []).extend(((one.begin_s, 1), (one.end_s, -1)))
    total = 0.0
    for changes in events.values():
        there, since_s = 0, 0.0
        for at_s, change in sorted(changes):
            total += (at_s - since_s) * (there > 1)
            there, since_s = there + change, at_s
    return total


def explained(
    number: int, case: Case, before: Outcome, after: Outcome
) -> dict[str, Any]:
    """A case that ends earlier, what its flows shared, and whether that is why."""
    by_sharing = case.tree is not None and not ends_earlier(
        case.unshared, case.slowed.unshared
    )
    less = before.shared_s - after.shared_s
    how = f"for {abs(less):.3g} link-seconds {'less' if less > 0 else 'more'}"
    why = (
        f"by sharing, {how}: with links of its own for each pair of ranks it does not end earlier"
        if by_sharing
        else "it ends earlier with links of its own for each pair of ranks"
    )
    return {
        "case": number, "what": str(case), "ends_s": before.end_s, "slowed_ends_s": after.end_s,
        "shared_s_before": before.shared_s, "shared_s_after": after.shared_s,
        "by_sharing": by_sharing, "why": why,
    }  # fmt: skip


def ends_earlier(case: Case, slowed: Case) -> bool:
    """Whether a case ends earlier as it is slowed."""
    return slowed.run().end_s < case.run().end_s * (1 - ROUNDING)


def _changed(random: Any, ranks: int, links: Sequence[int]) -> tuple[str, int, float]:
    what = str(random.choice(["rank", "rate", "delay"]))
    if what == "rank":
        return (
            what,
            int(random.integers(ranks)),
            float(random.choice([1.001, 1.05, 1.5, 4.0])),
        )
    where = int(random.choice(links))
    return (
        what,
        where,
        float(
            random.choice(
                [1.001, 1.05, 1.5, 4.0] if what == "rate" else [1e-6, 1e-4, 1e-2]
            )
        ),
    )


def _sizes(random: Any, shape: tuple[int, ...], uneven: bool) -> tuple[Any, Any]:
    """Rates and delays: all alike, or not."""
    rate = random.choice([1.0, 1.0, 0.7, 0.5, 0.3], shape) if uneven else np.ones(shape)
    delay_s = (
        random.choice([0.0, 0.0, 1e-5, 1e-3, 1e-2], shape)
        if uneven
        else np.full(shape, 1e-4)
    )
    return rate, delay_s


def _iterations(random: Any) -> Iterator[float]:
    yield float(random.choice([1e3, 1e5, 1e6, 1e7]))
    yield float(random.choice([0.0, 1e-4, 1e-2]))


def own_links(random: Any, most: int = 26) -> Case:
    """Draw a case of at most so many ranks whose transfers have links of their own."""
    collective = str(random.choice(COLLECTIVES))
    workload = bool(random.random() < 0.3)
    ranks = int(random.choice([2, 3, 4, 6, 8, 12]))
    if collective == "ring" and random.random() < 0.15:
        ranks = 26
    ranks = min(ranks, most)
    rate, delay_s = _sizes(random, (ranks, ranks), bool(random.random() < 0.6))
    size, compute_s = _iterations(random)
    slow = random.random(ranks) < 0.2
    factors = tuple(np.where(slow & (random.random() < 0.5), 1.3, 1.0).tolist())
    links = [a * ranks + (a + 1) % ranks for a in range(ranks)]
    change = _changed(random, ranks, links)
    iterations = int(random.choice([1, 2, 3]))
    return Case(
        collective,
        1e9 * rate,
        delay_s,
        factors,
        size,
        compute_s,
        iterations,
        change=change,
        workload=workload,
    )


def shared_links(random: Any) -> Case:
    """Draw a case on a leaf-spine fabric with narrow links between its switches."""
    ranks = int(random.choice([4, 6, 8, 12]))
    links = ranks + ranks // 2
    rate, delay_s = _sizes(random, (links,), bool(random.random() < 0.6))
    size, compute_s = _iterations(random)
    change = _changed(random, ranks, range(links))
    order = tuple(random.permutation(ranks).tolist())
    tree = float(random.choice([1.0, 2.0, 4.0]))
    collective = str(random.choice(COLLECTIVES))
    factors = (1.0,) * ranks
    return Case(
        collective, rate, delay_s, factors, size, compute_s, 2, order, tree, change
    )
