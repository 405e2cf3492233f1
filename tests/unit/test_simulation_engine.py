"""The simulator's engine: rates after changes."""

from __future__ import annotations

import numpy as np
import pytest

from ringlight.testbed.simulation.engine import Engine, Flow
from ringlight.testbed.simulation.maxmin import rates


@pytest.mark.parametrize("start", range(0, 200, 20))
@pytest.mark.sampled(5)
def test_after_any_change_all_have_the_rates_of_a_common_solution(start: int) -> None:
    """Only flows that a change concerns are looked at again; the others must be where they belong."""
    for seed in range(start, start + 20):
        random = np.random.default_rng(seed)
        links, engine, live = int(random.integers(3, 30)), Engine(), list[Flow]()
        for link in range(links):
            engine.link(link, float(random.choice([1.0, 2.0, 3.5, 10.0])))
        for _ in range(40):
            for _ in range(int(random.integers(1, 4))):
                if live and random.random() < 0.45:
                    engine.stop(live.pop(int(random.integers(len(live)))))
                elif random.random() < 0.1:
                    engine.set_capacity(int(random.integers(links)), float(random.choice([1.0, 2.0, 5.0])))
                else:
                    way = random.choice(links, int(random.integers(1, min(5, links) + 1)), replace=False)
                    live.append(engine.start(way.tolist(), 1e12, lambda: None))
            engine.run(engine.now_s + 1e-6)
            offsets = np.cumsum([0, *(len(flow.links) for flow in live)])
            passed = np.array([link for flow in live for link in flow.links], dtype=np.int64)
            capacity = np.array([engine.capacity(link) for link in range(links)])
            expected = rates(offsets, passed, capacity).tolist()
            assert [flow.rate for flow in live] == pytest.approx(expected, rel=1e-12), f"seed {seed}"
