"""The simulator's engine: rates after changes."""

from __future__ import annotations

import numpy as np
import pytest

from ringlight.testbed.simulation.engine import Engine
from ringlight.testbed.simulation.link_flows import LinkFlow
from ringlight.testbed.simulation.maxmin import Limits, rates, rates_of_many


@pytest.mark.parametrize("start", range(0, 200, 20))
@pytest.mark.sampled(5)
def test_after_any_change_all_have_the_rates_of_a_common_solution(start: int) -> None:
    """Only flows that a change concerns are looked at again; the others must be where they belong."""
    for seed in range(start, start + 20):
        random = np.random.default_rng(seed)
        links, engine, live = int(random.integers(3, 30)), Engine(), list[LinkFlow]()
        for link in range(links):
            engine.link(link, float(random.choice([1.0, 2.0, 3.5, 10.0])))
        for _ in range(40):
            for _ in range(int(random.integers(1, 4))):
                if live and random.random() < 0.45:
                    engine.stop(live.pop(int(random.integers(len(live)))))
                elif random.random() < 0.1:
                    engine.set_capacity(
                        int(random.integers(links)),
                        float(random.choice([1.0, 2.0, 5.0])),
                    )
                else:
                    way = random.choice(
                        links, int(random.integers(1, min(5, links) + 1)), replace=False
                    )
                    live.append(engine.start(way.tolist(), 1e12, lambda: None))
            engine.run(engine.now_s + 1e-6)
            offsets = np.cumsum([0, *(len(flow.links) for flow in live)])
            passed = np.array(
                [link for flow in live for link in flow.links], dtype=np.int64
            )
            capacity = np.array([engine.capacity(link) for link in range(links)])
            expected = rates(offsets, passed, capacity).tolist()
            assert [flow.rate for flow in live] == pytest.approx(expected, rel=1e-12), (
                f"seed {seed}"
            )


def test_a_flow_has_all_of_its_bytes_though_it_stands_still_between_two_lots() -> None:
    """It is sent over a dark link in the very instant in which its first lot has passed."""
    engine = Engine()
    lit, dark = engine.link("lit", 1.0), engine.link("dark", 0.0)
    lots, ends = [1.0, 0.0], list[float]()
    flow = LinkFlow(1.0, lambda: ends.append(engine.now_s), lambda _: lots.pop(0))
    engine.begin(flow, [lit])
    engine.at(1.0, engine.reroute, flow, [dark])
    engine.at(3.0, engine.set_capacity, dark, 1.0)
    engine.run()
    assert ends == [4.0]


def passed(engine: Engine, flow: LinkFlow) -> float:
    """Bytes of a thousand that have passed."""
    return 1e3 - flow.left + flow.rate * (engine.now_s - flow.since_s)


@pytest.mark.parametrize("start", range(0, 200, 20))
@pytest.mark.sampled(5)
def test_flows_with_limits_that_follow_others_have_the_rates_of_a_common_solution(
    start: int,
) -> None:
    """Nobody is further ahead of the one that it follows than it may be; who has come so far has its rate."""
    waiting = 0
    for seed in range(start, start + 20):
        random = np.random.default_rng([seed, 1])
        links, engine, live = int(random.integers(3, 30)), Engine(), list[LinkFlow]()
        #: By flow how many more bytes than the other it may have passed.
        leads: dict[LinkFlow, float] = {}
        for link in range(links):
            engine.link(link, float(random.choice([1.0, 2.0, 3.5, 10.0])))
        for _ in range(40):
            for _ in range(int(random.integers(1, 4))):
                draw = random.random()
                some = live[int(random.integers(len(live)))] if live else None
                if some and draw < 0.3:
                    live.remove(some)
                    engine.stop(some)
                    continue
                way = random.choice(
                    links, int(random.integers(1, min(5, links) + 1)), replace=False
                )
                if some and draw < 0.37:
                    engine.limit(some, float(random.choice([0.3, 2.0, np.inf])))
                elif some and draw < 0.44:
                    engine.reroute(some, way.tolist())
                elif draw < 0.5:
                    engine.set_capacity(
                        int(random.integers(links)),
                        float(random.choice([0.0, 1.0, 5.0])),
                    )
                else:
                    flow = LinkFlow(
                        1e3, lambda: None, most=float(random.choice([0.5, np.inf]))
                    )
                    if some and some.behind is None:
                        lead = float(random.uniform(5e-7, 3e-6))
                        engine.follow(flow, some, lead)
                        leads[flow] = lead - passed(engine, some)
                    engine.begin(flow, way.tolist())
                    live.append(flow)
            engine.run(engine.now_s + 1e-6)
            offsets = np.cumsum([0, *(len(flow.links) for flow in live)])
            ways = np.array(
                [link for flow in live for link in flow.links], dtype=np.int64
            )
            capacity = np.array([engine.capacity(link) for link in range(links)])
            after = [
                live.index(flow.ahead) if flow.close and flow.ahead else -1
                for flow in live
            ]
            limits = Limits([flow.most for flow in live], after)
            expected = rates_of_many(offsets, ways, capacity, limits).tolist()
            assert [flow.rate for flow in live] == pytest.approx(expected, rel=1e-12), (
                f"seed {seed}"
            )
            for flow in live:
                if flow.ahead:
                    gap = (
                        passed(engine, flow.ahead) + leads[flow] - passed(engine, flow)
                    )
                    assert gap > -1e-12, f"seed {seed}"
                    assert gap < 1e-12 or not flow.close
                    assert gap > 1e-12 or flow.rate <= flow.ahead.rate * (1 + 1e-9)
                    waiting += flow.close
    assert waiting
