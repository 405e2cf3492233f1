"""Evaluates OptINC's unit: exactness of designed weights, area, and light that is not perfect.

``designed``: the paper's four cases with weights by formula, *designed, not trained*. Every input there is
through the compressed network (the same function with its used units only), beside the exact mean: inputs,
wrong ones, the largest distance of an output from its goal in levels, seconds. A random sample goes through
the whole network of the paper's sizes, too, and ``apart`` is the largest difference of both networks'
outputs there. ``s`` is time as it passes, ``cpu_s`` the processor's, which others spoil less.

``area``: interferometers (MZIs) that the paper's cascade adds, beside the paper's figure; of its tables they
are in the report of ``scenarios/optinc.yaml``.

``physics``: the share of inputs answered wrongly against each of eight sources, one at a time: phase bits,
phases that are off for good, loss in each MZI, noise of detectors and of transmitters, mismatch of
transmitters, the brightness of the constant light of biases, and of all light that enters. What is random is
drawn for each seed. Every input there is, or where there are more than ALL_INPUTS a random sample of
``--inputs`` (``--seed``), which is also taken where ``--inputs`` is given. ``--only`` names a quantity,
mildest values first, and may come again. ``largest_scale`` is by what Sigma amplifies at most.

``budget``: up to which value each source alone leaves at most BUDGET of the trained network's inputs wrong
(the mean over seeds), and which part of these they may all have at once.

``shares``: the trained network's share of wrong answers, mean and largest over seeds, where what enters or
its biases are off by 1 %, or noisy: over every input once, and over inputs as servers with random numbers
make them.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

# layers are small: threads would wait for each other more than they compute
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt

from benchmarks.harness import check_known, show, tell
from ringlight.extensions.optinc.unit.averaging import (
    combination,
    goals_of,
    index_of,
    to_answers,
)
from ringlight.extensions.optinc.unit.designed import designed as weights_of
from ringlight.extensions.optinc.unit.imperfect import (
    Full,
    Imperfections,
    OnMeshes,
    on_meshes,
)
from ringlight.extensions.optinc.unit.network import (
    Network,
    Signals,
    compressed,
    forward,
    light,
    read,
    table_of,
    wrong_of,
)
from ringlight.extensions.optinc.unit.structure import (
    CASES,
    Structure,
    inserted_mzis,
    mzis,
    network_mzis,
)
from ringlight.extensions.optinc.unit.sweeps import (
    Physics,
    Spread,
    harmless,
    wrong_shares,
)
from ringlight.extensions.optinc.unit.weights import trained

#: Section III, cascade: what two more matrices add to a network of scenario 1, in %.
CASCADE = 10.5
#: Inputs up to which all are computed, and how many of more.
ALL_INPUTS, SAMPLED_INPUTS = 2**20, 2**16


@dataclass(frozen=True)
class Quantity:
    """What is not ideal: its name with unit, values from the mildest on, and the physics of one."""

    title: str
    values: Sequence[float]
    physics: Callable[[float], Physics]


QUANTITIES: Mapping[str, Quantity] = {
    "phase_bits": Quantity(
        "resolution of phases, bits",
        range(24, 5, -1),
        lambda v: Physics(Imperfections(phase_bits=int(v))),
    ),
    "phase_sigma": Quantity(
        "static phase error σ, rad",
        [part * 10.0**power for power in range(-7, -1) for part in (1, 3)],
        lambda v: Physics(Imperfections(phase_sigma=v)),
    ),
    "loss_db": Quantity(
        "loss per MZI, dB",
        (1e-6, 1e-5, 1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0),
        lambda v: Physics(Imperfections(loss_db=v)),
    ),
    "noise": Quantity(
        "noise of detectors σ, levels",
        (0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5),
        lambda v: Physics(signals=Signals(noise=v)),
    ),
    "transmitters": Quantity(
        "noise of transmitters σ, levels",
        (0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1),
        lambda v: Physics(signals=Signals(transmitters=v)),
    ),
    "mismatch": Quantity(
        "static mismatch of transmitters σ",
        (0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.02, 0.03, 0.1),
        lambda v: Physics(signals=Signals(mismatch=v)),
    ),
    "bias": Quantity(
        "constant light too bright by",
        (0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.02, 0.03, 0.1),
        lambda v: Physics(Imperfections(bias=v)),
    ),
    "scale": Quantity(
        "all light too bright by",
        (0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.02, 0.03, 0.1),
        lambda v: Physics(signals=Signals(scale=v)),
    ),
}
#: A quantity's value and what was found there.
Found = list[tuple[float, Spread]]


def designed(sample: int = 4096, seed: int = 1) -> dict[str, Any]:
    """``sample``: random inputs, of ``seed``, that go through the whole network, too."""
    began, cpu = time.perf_counter(), time.process_time()
    rows = [
        _exactness(case, structure, sample, seed) for case, structure in CASES.items()
    ]
    return {
        "s": time.perf_counter() - began,
        "cpu_s": time.process_time() - cpu,
        "cases": rows,
    }


def _exactness(
    case: str, structure: Structure, sample: int, seed: int
) -> dict[str, Any]:
    coding, begin = structure.coding, time.perf_counter()
    whole = weights_of(structure)
    small = compressed(whole)
    found = wrong_of(table_of(small, coding))
    table_s = time.perf_counter() - begin
    index = np.random.default_rng(seed).integers(0, coding.combinations, sample)
    lights = light(combination(index, coding), coding)
    outputs = forward(whole, lights)
    answers = to_answers(read(outputs, coding), coding)
    return {
        "case": case,
        "weights": "designed, not trained",
        "inputs": found.inputs,
        "wrong": found.wrong,
        "worst": found.worst,
        "used_units": small.sizes,
        "largest_weight": max(float(np.abs(weight).max()) for weight in whole.weights),
        "table_s": table_s,
        "sample": sample,
        "sample_wrong": int((answers != goals_of(index, coding)).sum()),
        "apart": float(np.abs(outputs - forward(small, lights)).max()),
        "s": time.perf_counter() - begin,
    }


def area() -> dict[str, Any]:
    """Interferometers (MZIs) that the paper's cascade adds, beside the paper's figure."""
    base = CASES["8bit_4"]
    inserted, network, unit = inserted_mzis(base), network_mzis(base), mzis(base)
    of_network, of_unit = 100 * inserted / network, 100 * inserted / unit
    cells = (
        f"{inserted:,}",
        f"{network:,}: {of_network:.2f} %",
        f"{unit:,}: {of_unit:.2f} %",
        f"{CASCADE} %",
    )
    show(
        (
            "Cascade: MZIs more",
            "of a network's",
            "of a unit's, P and T counted",
            "the paper's",
        ),
        [cells],
    )
    return {
        "inserted_mzis": inserted,
        "of_network": of_network,
        "of_unit": of_unit,
        "paper": CASCADE,
    }


def physics(
    case: str = "8bit_4",
    weights: list[str] = ["trained", "designed"],
    seeds: int = 5,
    inputs: int | None = None,
    seed: int = 1,
    only: list[str] = [],
) -> dict[str, Any]:
    """``seeds``: 0, 1 .. so many; ``inputs``: a random sample of so many, of ``seed``; ``only``: a quantity
    as NAME=VALUE,VALUE; ``pictures``: a folder to draw into."""
    check_known("--case", [case], CASES)
    check_known("--weights", weights, ("trained", "designed"))
    if seeds < 1 or (inputs is not None and inputs < 1):
        raise SystemExit("--seeds and --inputs are at least 1")
    try:
        quantities = dict(map(with_values, only)) if only else dict(QUANTITIES)
    except ValueError as error:
        raise SystemExit(f"--only {error}") from None
    began, cpu = time.perf_counter(), time.process_time()
    structure = CASES[case]
    coding = structure.coding
    count = coding.combinations
    index = np.arange(count)
    if inputs is not None or count > ALL_INPUTS:
        index = np.random.default_rng(seed).integers(0, count, inputs or SAMPLED_INPUTS)
    results: dict[str, dict[str, Found]] = {}
    scales = {}
    for name in weights:
        on = on_meshes(_network(name, case), structure.approximated)
        scales[name] = max(
            float((layer.scale if isinstance(layer, Full) else layer.scales).max())
            for layer in on.layers
        )
        results[name] = {}
        for title, quantity in quantities.items():
            tell(f"{name}: {quantity.title}, {len(quantity.values)} values")
            results[name][title] = [
                (
                    value,
                    wrong_shares(
                        on, coding, index, quantity.physics(value), range(seeds)
                    ),
                )
                for value in quantity.values
            ]
    for title, quantity in quantities.items():
        found_of = [found[title] for found in results.values()]
        show(
            (quantity.title, *(f"{name}: % wrong" for name in results)),
            [
                (f"{value:g}", *(percent(found[row][1]) for found in found_of))
                for row, value in enumerate(quantity.values)
            ],
        )
    return {
        "case": case,
        "inputs": index.size,
        "of": count,
        "seeds": seeds,
        "s": time.perf_counter() - began,
        "cpu_s": time.process_time() - cpu,
        "weights": {
            name: {
                "largest_scale": scales[name],
                "none_wrong_up_to": {
                    title: harmless(rows) for title, rows in found.items()
                },
                **{
                    title: [
                        {"value": value, **asdict(shares)} for value, shares in rows
                    ]
                    for title, rows in found.items()
                },
            }
            for name, found in results.items()
        },
    }


#: Share of all inputs that may be answered wrongly within the budget.
BUDGET = 1e-4


def budget(seeds: int = 5) -> dict[str, Any]:
    """Largest value of each source that keeps the trained network to BUDGET, alone and together.

    Together each source has the same part of what it may have alone; phases get so many more bits.
    """
    case = CASES["8bit_4"]
    on = on_meshes(trained("8bit_4")[0], case.approximated)
    index = np.arange(case.coding.combinations)

    def wrong(physics: Physics) -> float:
        shares = [
            wrong_shares(on, case.coding, index, physics, [seed]).median
            for seed in range(seeds)
        ]
        return statistics.fmean(shares if physics.drawn else shares[:1])

    def most(low: float, high: float, at: Callable[[float], Physics]) -> float:
        """The largest value within the budget, to 1 %; ``low`` is within it, ``high`` is not."""
        while high / low > 1.01:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if wrong(at(middle)) <= BUDGET else (low, middle)
        return low

    alone = {}
    for name, quantity in QUANTITIES.items():
        tell(f"{quantity.title} alone")
        if name == "phase_bits":
            alone[name] = float(
                min(v for v in quantity.values if wrong(quantity.physics(v)) <= BUDGET)
            )
        else:
            alone[name] = most(
                quantity.values[0] / 10, quantity.values[-1], quantity.physics
            )

    def share_of(part: float) -> dict[str, float]:
        return {
            name: value + math.ceil(math.log2(1 / part))
            if name == "phase_bits"
            else part * value
            for name, value in alone.items()
        }

    part = most(1e-3, 1.0, lambda part: combined(share_of(part)))
    found = share_of(part)
    ends = {"alone": alone, "together": found}
    show(
        ["source", "alone up to", f"all together, {part:.0%} of each"],
        [
            [QUANTITIES[name].title, *(f"{value[name]:.3g}" for value in ends.values())]
            for name in alone
        ],
    )
    return {
        **ends,
        "part": part,
        "seeds": seeds,
        "wrong_together": wrong(combined(found)),
    }


def shares(seeds: int = 5, seed: int = 1) -> dict[str, Any]:
    """Compare readings: shares of inputs or of servers' numbers, biases off all alike or each by its own."""
    case = CASES["8bit_4"]
    coding = case.coding
    on = on_meshes(trained("8bit_4")[0], case.approximated)
    shape = (coding.servers, SAMPLED_INPUTS)
    numbers = np.random.default_rng(seed).integers(0, 2**coding.bits, shape)
    indices: dict[str, npt.NDArray[Any]] = {
        "every input once": np.arange(coding.combinations),
        "random numbers": index_of(numbers, coding),
    }

    def each_bias(seed: int) -> OnMeshes:
        random = np.random.default_rng(seed)
        assert on.biases is not None
        off = (1 + 0.01 * random.standard_normal(bias.shape) for bias in on.biases)
        return replace(
            on,
            biases=tuple(
                (a * b).astype(on.dtype) for a, b in zip(on.biases, off, strict=True)
            ),
        )

    cases: dict[str, tuple[Callable[[int], OnMeshes], Physics]] = {
        f"{QUANTITIES[name].title}: {value:+g}": (
            lambda _: on,
            QUANTITIES[name].physics(value),
        )
        for name, value in (
            ("transmitters", 0.02),
            ("transmitters", 0.1),
            ("mismatch", 0.01),
            ("bias", 0.01),
            ("bias", -0.01),
            ("scale", 0.01),
            ("scale", -0.01),
        )
    }
    cases["each bias off by a part of its own, σ: +0.01"] = each_bias, Physics()
    found = {
        title: {
            over: [
                wrong_shares(of(seed), coding, index, physics, [seed]).median
                for seed in range(seeds)
            ]
            for over, index in indices.items()
        }
        for title, (of, physics) in cases.items()
    }
    show(
        ["% wrong, mean (largest)", *indices],
        [
            [
                title,
                *(
                    f"{100 * statistics.fmean(own):.2f} ({100 * max(own):.2f})"
                    for own in row.values()
                ),
            ]
            for title, row in found.items()
        ],
    )
    return found


def combined(values: Mapping[str, float]) -> Physics:
    """A unit with every source at its value, by name."""
    each = [QUANTITIES[name].physics(value) for name, value in values.items()]
    meshes: dict[str, Any] = {}
    signals: dict[str, Any] = {}
    for one in each:
        meshes |= {name: value for name, value in asdict(one.meshes).items() if value}
        signals |= {name: value for name, value in asdict(one.signals).items() if value}
    return Physics(Imperfections(**meshes), Signals(**signals))


def _network(weights: str, case: str) -> Network:
    return trained(case)[0] if weights == "trained" else weights_of(CASES[case])


def with_values(text: str) -> tuple[str, Quantity]:
    """A quantity's name, and it with other values, of ``name=value,value``. Raises ValueError."""
    name, _, listed = text.partition("=")
    if name not in QUANTITIES:
        raise ValueError(f"{text}: not one of {', '.join(QUANTITIES)}")
    try:
        values = [float(value) for value in listed.split(",")]
    except ValueError:
        raise ValueError(f"{text}: numbers with commas between them") from None
    return name, replace(QUANTITIES[name], values=values)


def percent(shares: Spread) -> str:
    """The median in %, and where seeds differ the smallest and the largest, three digits each."""
    low, middle, high = (
        "0" if not share else f"{100 * share:.3g}"
        for share in (shares.minimum, shares.median, shares.maximum)
    )
    return middle if low == high else f"{middle} ({low} to {high})"


PARTS = (designed, area, physics, budget, shares)
