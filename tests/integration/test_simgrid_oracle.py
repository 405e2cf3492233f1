"""Finish times of random flows over random fabrics against SimGrid, which we did not write."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringlight.fabric.schedules import ring
from ringlight.fabric.trees import leaf_spine
from ringlight.testbed.simulation.engine import Engine
from ringlight.testbed.simulation.jobs import Job
from ringlight.testbed.simulation.maxmin import drain
from ringlight.testbed.simulation.networks import PacketNetwork
from tests.simulated_jobs import simulate

PYTHON = Path("/usr/bin/python3")
DRIVER = Path(__file__).resolve().parents[1] / "simgrid_flows.py"
RING_DRIVER = DRIVER.with_name("simgrid_ring.py")
CASES = 100
TOLERANCE = 1e-6


def simgrid_is_there() -> bool:
    if not PYTHON.exists():
        return False
    return (
        subprocess.run(
            [str(PYTHON), "-c", "import simgrid"], capture_output=True, timeout=60
        ).returncode
        == 0
    )


pytestmark = pytest.mark.skipif(
    not simgrid_is_there(),
    reason="SimGrid is not installed: apt-get install python3-simgrid",
)

Case = dict[str, Any]


def star(random: np.random.Generator, flows: int) -> tuple[list[list[int]], np.ndarray]:
    """A packet switch: each flow leaves one port and enters another; ports of two rates."""
    ports = int(random.integers(2, max(3, flows)))
    ends = [random.choice(ports, 2, replace=False) for _ in range(flows)]
    return [[2 * int(a), 2 * int(b) + 1] for a, b in ends], random.choice(
        [10e6, 40e6], 2 * ports
    )


def tree(random: np.random.Generator, flows: int) -> tuple[list[list[int]], np.ndarray]:
    """Two levels with an oversubscribed trunk for each leaf."""
    leaves, per_leaf = int(random.integers(2, 9)), int(random.integers(1, 17))
    gpus = leaves * per_leaf
    paths = []
    for _ in range(flows):
        a, b = (int(x) for x in random.choice(gpus, 2, replace=False))
        up, down = 2 * gpus + 2 * (a // per_leaf), 2 * gpus + 2 * (b // per_leaf) + 1
        paths.append(
            [2 * a, *([up, down] if a // per_leaf != b // per_leaf else []), 2 * b + 1]
        )
    trunk = 10e6 * per_leaf / random.uniform(1, 6)
    return paths, np.concatenate((np.full(2 * gpus, 10e6), np.full(2 * leaves, trunk)))


def torus(
    random: np.random.Generator, flows: int
) -> tuple[list[list[int]], np.ndarray]:
    """A random permutation on a square torus, first along the row, then along the column."""
    side = max(2, round(flows**0.5))
    nodes = side * side
    paths = []
    for a, b in zip(range(nodes), random.permutation(nodes).tolist(), strict=True):
        at, path = [a % side, a // side], []
        for axis, goal in enumerate((b % side, b // side)):
            while at[axis] != goal:
                way = 1 if (goal - at[axis]) % side <= side // 2 else -1
                path.append(4 * (at[1] * side + at[0]) + 2 * axis + (way < 0))
                at[axis] = (at[axis] + way) % side
        if path:
            paths.append(path)
    return paths or [[0]], np.full(4 * nodes, 10e6)


def anything(
    random: np.random.Generator, flows: int
) -> tuple[list[list[int]], np.ndarray]:
    """Any links in any order."""
    links = int(random.integers(1, 2 * flows + 2))
    most = min(links, 6)
    paths = [
        random.choice(links, random.integers(1, most + 1), replace=False).tolist()
        for _ in range(flows)
    ]
    return paths, random.uniform(1e6, 50e6, links)


def cases() -> list[Case]:
    made = []
    for number in range(CASES):
        random = np.random.default_rng(number)
        kind = (star, tree, torus, anything)[number % 4]
        flows = 1024 if number >= CASES - 4 else int(random.integers(2, 90))
        paths, capacity = kind(random, flows)
        flows = len(paths)
        # Whole bytes. Many sizes make many events; few make many at once.
        sizes = (
            random.integers(1e6, 16e6, flows)
            if number % 3
            else random.choice([1e6, 4e6, 6e6], flows)
        )
        if flows > 512:
            sizes = random.choice(np.linspace(1e6, 16e6, 24).astype(int), flows)
        starts = (
            random.choice([0.0, 0.1, 0.25, 1.7], flows)
            if number % 2
            else np.zeros(flows)
        )
        made.append(
            {
                "capacity": capacity.tolist(), "paths": paths, "sizes": np.round(sizes).tolist(),
                "starts": starts.tolist(), "precision": 1e-12,
            }
        )  # fmt: skip
    return made


def ask_simgrid(asked: list[Case]) -> list[list[float]]:
    done = subprocess.run(
        [str(PYTHON), str(DRIVER)], input="".join(json.dumps(case) + "\n" for case in asked),
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line)["ends"] for line in done.stdout.splitlines()]


def ends_of(case: Case, *, compiled: bool | None) -> np.ndarray:
    offsets = np.cumsum([0, *map(len, case["paths"])])
    links = np.array([link for path in case["paths"] for link in path])
    return drain(
        offsets, links, np.array(case["capacity"]), np.array(case["sizes"]), np.array(case["starts"]),
        compiled=compiled,
    )  # fmt: skip


def ends_by_engine(case: Case) -> np.ndarray:
    engine = Engine()
    number = [engine.link(k, capacity) for k, capacity in enumerate(case["capacity"])]
    ends = np.full(len(case["paths"]), np.nan)
    for k, (path, size, start) in enumerate(
        zip(case["paths"], case["sizes"], case["starts"], strict=True)
    ):
        engine.start(
            [number[link] for link in path],
            size,
            lambda k=k: ends.__setitem__(k, engine.now_s),
            start,
        )
    engine.run()
    return ends


def test_finish_times_are_those_of_simgrid() -> None:
    asked = cases()
    answers = ask_simgrid(asked)
    assert len(answers) == CASES
    assert max(len(case["paths"]) for case in asked) >= 1000
    worst = 0.0
    for number, (case, expected) in enumerate(zip(asked, answers, strict=True)):
        found = {"batch": ends_of(case, compiled=None)}
        if number < 40:
            found["engine"] = ends_by_engine(case)
            found["loops"] = ends_of(case, compiled=True)
        for name, ends in found.items():
            off = float(np.max(np.abs(ends - expected) / np.array(expected)))
            assert off <= TOLERANCE, f"case {number}, {name}: {off:g}"
            worst = max(worst, off)
    print(f"largest relative difference to SimGrid in {CASES} cases: {worst:.2g}")  # noqa: T201


@pytest.mark.parametrize("seed", range(3))
def test_a_ring_in_any_order_ends_when_simgrid_s_messages_do(seed: int) -> None:
    """Followed by streams here, and chunk by chunk there."""
    random = np.random.default_rng(seed)
    fabric = leaf_spine(
        4, 12, 10e9, spines=2, oversubscription=float(random.choice([2, 4]))
    ).fabric()
    ranks = tuple(random.permutation([*fabric.gpus]).tolist())
    network = PacketNetwork(fabric)
    job = Job("a", ranks, ring(len(ranks)), 1e6 * len(ranks))
    took_s = simulate(network, [job])["a"].end_s
    routes = network.routes(ranks, next(iter(job.steps)))
    paths = np.split(routes.links, routes.offsets[1:-1])
    case = {
        "capacity": (network.capacity_bps / 8).tolist(),
        "paths": [p.tolist() for p in paths],
        "size": 1e6,
    }
    done = subprocess.run(
        [str(PYTHON), str(RING_DRIVER)], input=json.dumps(case), capture_output=True, text=True, timeout=240,
        check=True,
    )  # fmt: skip
    assert took_s == pytest.approx(
        json.loads(done.stdout.splitlines()[-1])["end_s"], rel=TOLERANCE
    )
