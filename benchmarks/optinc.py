"""Evaluates OptINC's unit: exactness of designed weights, area, and light that is not perfect.

Tables go to stderr, JSON to stdout.

    python benchmarks/optinc.py designed [--sample 4096] [--seed 1]
    python benchmarks/optinc.py area
    python benchmarks/optinc.py physics [--case 8bit_4] [--weights trained] [--weights designed]
                                        [--seeds 5] [--pictures docs/images]
                                        [--inputs 65536] [--only phase_bits=30,28 --only phase_sigma=1e-9]
    python benchmarks/optinc.py budget [--seeds 5]
    python benchmarks/optinc.py shares [--seeds 5]

``designed``: the paper's four cases with weights by formula, *designed, not trained*. Every input there is
through the compressed network (the same function with its used units only), beside the exact mean: inputs,
wrong ones, the largest distance of an output from its goal in levels, seconds. A random sample goes through
the whole network of the paper's sizes, too, and ``apart`` is the largest difference of both networks'
outputs there. ``s`` is time as it passes, ``cpu_s`` the processor's, which others spoil less.

``area``: interferometers (MZIs) of the paper's Tables I and II and of its cascade, beside the
paper's figures.

``physics``: the share of inputs answered wrongly against each of eight sources, one at a time: phase bits,
phases that are off for good, loss in each MZI, noise of detectors and of transmitters, mismatch of
transmitters, the brightness of the constant light of biases, and of all light that enters. What is random is
drawn for each seed. Every input there is, or where there are more than ALL_INPUTS a random sample of
``--inputs`` (``--seed``), which is also taken where ``--inputs`` is given. ``--only`` names a quantity,
mildest values first, and may come again. ``largest_scale`` is by what Sigma amplifies at most. ``--pictures``
draws the shares and two meshes of the trained network into a folder.

``budget``: up to which value each source alone leaves at most BUDGET of the trained network's inputs wrong
(the mean over seeds), and which part of these they may all have at once.

``shares``: the trained network's share of wrong answers, mean and largest over seeds, where what enters or
its biases are off by 1 %, or noisy: over every input once, and over inputs as servers with random numbers
make them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
# layers are small: threads would wait for each other more than they compute
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ringlight.experiments.report.charts import legend, plain_ticks, sheet
from ringlight.experiments.report.drawing import PALETTE, QUIET, STYLE
from ringlight.fabric.optinc.averaging import combination, goals_of, index_of, to_answers
from ringlight.fabric.optinc.designed import designed as weights_of
from ringlight.fabric.optinc.imperfect import Full, Imperfections, OnMeshes, on_meshes
from ringlight.fabric.optinc.network import (
    Network,
    Signals,
    compressed,
    forward,
    light,
    read,
    table_of,
    wrong_of,
)
from ringlight.fabric.optinc.structure import (
    CASES,
    Structure,
    area_ratio,
    around_mzis,
    inserted_mzis,
    mzis,
    network_mzis,
)
from ringlight.fabric.optinc.sweeps import Physics, Spread, harmless, wrong_shares
from ringlight.fabric.optinc.weights import trained

#: The paper's Table I: area in % of the same unit with no layer approximated.
TABLE_I = {"8bit_4": 39.3, "8bit_8": 40.9, "8bit_16": 40.4, "16bit_4": 49.3}
#: The paper's Table II, 16 bits and four servers: the first and the last approximated layer, area in %.
TABLE_II = {(4, 6): 49.3, (4, 7): 47.9, (4, 8): 47.4, (3, 6): 43.7, (3, 7): 42.2}
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
        "resolution of phases, bits", range(24, 5, -1), lambda v: Physics(Imperfections(phase_bits=int(v)))
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
#: Looks of lines: where one lies on another, both are seen.
LOOKS: tuple[dict[str, Any], ...] = (
    {"color": PALETTE[0], "marker": "o", "markersize": 6, "linewidth": 2.4},
    {"color": PALETTE[1], "marker": "s", "markersize": 3, "linewidth": 1.2, "linestyle": "--"},
)
#: A quantity's value and what was found there.
Found = list[tuple[float, Spread]]


def designed(chosen: argparse.Namespace) -> dict[str, Any]:
    sample, seed = chosen.sample, chosen.seed
    rows = []
    all_began, all_cpu = time.perf_counter(), time.process_time()
    for case, structure in CASES.items():
        coding = structure.coding
        begin = time.perf_counter()
        whole = weights_of(structure)
        small = compressed(whole)
        found = wrong_of(table_of(small, coding))
        table_s = time.perf_counter() - begin
        index = np.random.default_rng(seed).integers(0, coding.combinations, sample)
        lights = light(combination(index, coding), coding)
        outputs = forward(whole, lights)
        exact = goals_of(index, coding)
        rows.append(
            {
                "case": case,
                "weights": "designed, not trained",
                "inputs": found.inputs,
                "wrong": found.wrong,
                "worst": found.worst,
                "used_units": small.sizes,
                "largest_weight": max(float(np.abs(weight).max()) for weight in whole.weights),
                "table_s": table_s,
                "sample": sample,
                "sample_wrong": int((to_answers(read(outputs, coding), coding) != exact).sum()),
                "apart": float(np.abs(outputs - forward(small, lights)).max()),
                "s": time.perf_counter() - begin,
            }
        )
    return {"s": time.perf_counter() - all_began, "cpu_s": time.process_time() - all_cpu, "cases": rows}


def area(_: argparse.Namespace) -> dict[str, Any]:
    first = {case: (structure, TABLE_I[case]) for case, structure in CASES.items()}
    second = {
        f"{begin}-{end}": (replace(CASES["16bit_4"], approximated=frozenset(range(begin, end + 1))), paper)
        for (begin, end), paper in TABLE_II.items()
    }
    tables = {
        "table_1": {name: _area(*row) for name, row in first.items()},
        "table_2": {name: _area(*row) for name, row in second.items()},
    }
    heads = [
        "",
        "MZIs, none approximated",
        "MZIs",
        "area, %",
        "the paper's, %",
        "apart, points",
        "without P and T, %",
        "with the light of biases, %",
    ]
    for head, rows in zip(("Table I", "Table II: layers"), tables.values(), strict=True):
        _table(
            [head, *heads[1:]],
            [
                [
                    name,
                    f"{row['mzis_none_approximated']:,}",
                    f"{row['mzis']:,}",
                    f"{row['area']:.2f}",
                    f"{row['paper']:.1f}",
                    f"{row['apart']:+.2f}",
                    f"{row['area_without_p_and_t']:.2f}",
                    f"{row['area_with_biases']:.2f}",
                ]
                for name, row in rows.items()
            ],
        )
    base = CASES["8bit_4"]
    inserted, network, unit = inserted_mzis(base), network_mzis(base), mzis(base)
    cascade = {
        "inserted_mzis": inserted,
        "of_network": 100 * inserted / network,
        "of_unit": 100 * inserted / unit,
        "paper": CASCADE,
    }
    _table(
        ["Cascade: MZIs more", "of a network's", "of a unit's, P and T counted", "the paper's"],
        [
            [
                f"{inserted:,}",
                f"{network:,}: {cascade['of_network']:.2f} %",
                f"{unit:,}: {cascade['of_unit']:.2f} %",
                f"{CASCADE} %",
            ]
        ],
    )
    return {**tables, "cascade": cascade}


def _area(structure: Structure, paper: float) -> dict[str, float]:
    none = replace(structure, approximated=frozenset())
    ours = 100 * area_ratio(structure)
    return {
        "mzis_none_approximated": mzis(none),
        "mzis": mzis(structure),
        "around_mzis": around_mzis(structure.coding),
        "area": ours,
        "paper": paper,
        "apart": ours - paper,
        "area_with_biases": 100 * area_ratio(structure, biases=True),
        "area_without_p_and_t": 100 * network_mzis(structure) / network_mzis(none),
    }


def physics(chosen: argparse.Namespace) -> dict[str, Any]:
    began, cpu = time.perf_counter(), time.process_time()
    structure = CASES[chosen.case]
    coding = structure.coding
    count = coding.combinations
    index = np.arange(count)
    if chosen.inputs is not None or count > ALL_INPUTS:
        index = np.random.default_rng(chosen.seed).integers(0, count, chosen.inputs or SAMPLED_INPUTS)
    seeds = range(chosen.seeds)
    results: dict[str, dict[str, Found]] = {}
    scales = {}
    quantities = dict(chosen.only or QUANTITIES.items())
    for name in chosen.weights:
        on = on_meshes(_network(name, chosen.case), structure.approximated)
        scales[name] = max(
            float((layer.scale if isinstance(layer, Full) else layer.scales).max()) for layer in on.layers
        )
        results[name] = {}
        for title, quantity in quantities.items():
            print(f"{name}: {quantity.title}, {len(quantity.values)} values", file=sys.stderr, flush=True)
            results[name][title] = [
                (value, wrong_shares(on, coding, index, quantity.physics(value), seeds))
                for value in quantity.values
            ]
    for title, quantity in quantities.items():
        _table(
            [quantity.title, *(f"{name}: % wrong" for name in results)],
            [
                [f"{value:g}", *(percent(found[title][row][1]) for found in results.values())]
                for row, value in enumerate(quantity.values)
            ],
        )
    if chosen.pictures is not None:
        with rc_context(STYLE):
            _draw_shares(results, index.size, chosen.pictures / "optinc-physics.png")
    return {
        "case": chosen.case,
        "inputs": index.size,
        "of": count,
        "seeds": chosen.seeds,
        "s": time.perf_counter() - began,
        "cpu_s": time.process_time() - cpu,
        "weights": {
            name: {
                "largest_scale": scales[name],
                "none_wrong_up_to": {title: harmless(rows) for title, rows in found.items()},
                **{
                    title: [{"value": value, **asdict(shares)} for value, shares in rows]
                    for title, rows in found.items()
                },
            }
            for name, found in results.items()
        },
    }


#: Share of all inputs that may be answered wrongly within the budget.
BUDGET = 1e-4


def budget(chosen: argparse.Namespace) -> dict[str, Any]:
    """Largest value of each source that keeps the trained network to BUDGET, alone and together.

    Together each source has the same part of what it may have alone; phases get so many more bits.
    """
    case = CASES["8bit_4"]
    on = on_meshes(trained("8bit_4")[0], case.approximated)
    index, seeds = np.arange(case.coding.combinations), range(chosen.seeds)

    def wrong(physics: Physics) -> float:
        shares = [wrong_shares(on, case.coding, index, physics, [seed]).median for seed in seeds]
        return statistics.fmean(shares if physics.drawn else shares[:1])

    def most(low: float, high: float, at: Callable[[float], Physics]) -> float:
        """The largest value within the budget, to 1 %; ``low`` is within it, ``high`` is not."""
        while high / low > 1.01:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if wrong(at(middle)) <= BUDGET else (low, middle)
        return low

    alone = {}
    for name, quantity in QUANTITIES.items():
        print(f"{quantity.title} alone", file=sys.stderr, flush=True)
        if name == "phase_bits":
            alone[name] = float(min(v for v in quantity.values if wrong(quantity.physics(v)) <= BUDGET))
        else:
            alone[name] = most(quantity.values[0] / 10, quantity.values[-1], quantity.physics)

    def share_of(part: float) -> dict[str, float]:
        return {
            name: value + math.ceil(math.log2(1 / part)) if name == "phase_bits" else part * value
            for name, value in alone.items()
        }

    part = most(1e-3, 1.0, lambda part: combined(share_of(part)))
    found = share_of(part)
    ends = {"alone": alone, "together": found}
    _table(
        ["source", "alone up to", f"all together, {part:.0%} of each"],
        [[QUANTITIES[name].title, *(f"{value[name]:.3g}" for value in ends.values())] for name in alone],
    )
    return {**ends, "part": part, "seeds": chosen.seeds, "wrong_together": wrong(combined(found))}


def shares(chosen: argparse.Namespace) -> dict[str, Any]:
    """Compare readings: shares of inputs or of servers' numbers, biases off all alike or each by its own."""
    case = CASES["8bit_4"]
    coding = case.coding
    on = on_meshes(trained("8bit_4")[0], case.approximated)
    shape = (coding.servers, SAMPLED_INPUTS)
    numbers = np.random.default_rng(chosen.seed).integers(0, 2**coding.bits, shape)
    indices: dict[str, npt.NDArray[Any]] = {
        "every input once": np.arange(coding.combinations),
        "random numbers": index_of(numbers, coding),
    }

    def each_bias(seed: int) -> OnMeshes:
        random = np.random.default_rng(seed)
        assert on.biases is not None
        off = (1 + 0.01 * random.standard_normal(bias.shape) for bias in on.biases)
        return replace(
            on, biases=tuple((a * b).astype(on.dtype) for a, b in zip(on.biases, off, strict=True))
        )

    cases: dict[str, tuple[Callable[[int], OnMeshes], Physics]] = {
        f"{QUANTITIES[name].title}: {value:+g}": (lambda _: on, QUANTITIES[name].physics(value))
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
                wrong_shares(of(seed), coding, index, physics, [seed]).median for seed in range(chosen.seeds)
            ]
            for over, index in indices.items()
        }
        for title, (of, physics) in cases.items()
    }
    _table(
        ["% wrong, mean (largest)", *indices],
        [
            [title, *(f"{100 * statistics.fmean(own):.2f} ({100 * max(own):.2f})" for own in row.values())]
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


def only(text: str) -> tuple[str, Quantity]:
    """A quantity's name, and it with other values, of ``name=value,value``. Raises ArgumentTypeError."""
    name, _, listed = text.partition("=")
    if name not in QUANTITIES:
        raise argparse.ArgumentTypeError(f"{text}: not one of {', '.join(QUANTITIES)}")
    try:
        values = [float(value) for value in listed.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: numbers with commas between them") from None
    return name, replace(QUANTITIES[name], values=values)


def percent(shares: Spread) -> str:
    """The median in %, and where seeds differ the smallest and the largest, three digits each."""
    low, middle, high = (
        "0" if not share else f"{100 * share:.3g}"
        for share in (shares.minimum, shares.median, shares.maximum)
    )
    return middle if low == high else f"{middle} ({low} to {high})"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Table in Markdown, for a page."""
    for cells in (heads, ["---"] * len(heads), *rows):
        print(f"| {' | '.join(cells)} |", file=sys.stderr)
    print(file=sys.stderr)


def _draw_shares(results: Mapping[str, Mapping[str, Found]], inputs: int, file: Path) -> None:
    figure, axes = sheet(11.0, rows=4, columns=2, top=0.45, gap=(0.7, 0.75))
    flat = [axis for row in axes for axis in row]
    one = 100 / inputs
    for axis, (title, quantity) in zip(flat, QUANTITIES.items(), strict=True):
        for look, found in zip(LOOKS, results.values(), strict=False):
            values = [value for value, _ in found[title]]
            shares = [[100 * part for part in (s.minimum, s.median, s.maximum)] for _, s in found[title]]
            low, middle, high = zip(*shares, strict=True)
            axis.fill_between(values, low, high, color=look["color"], alpha=0.2, linewidth=0)
            axis.plot(values, middle, **look)
        # below one input there is only none: straight from there to 0
        axis.set_yscale("symlog", linthresh=one, linscale=0.5)
        axis.set_ylim(-one / 3, 200)
        ticks = [0.0, *(10.0**power for power in range(-6, 3) if 10.0**power > one)]
        axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_yticks([], minor=True)
        if title == "phase_bits":
            axis.invert_xaxis()
            axis.set_xticks(range(24, 5, -2))
        else:
            axis.set_xscale("log")
            if quantity.values[-1] / quantity.values[0] < 100:
                plain_ticks(axis.xaxis, quantity.values[0], quantity.values[-1])
        axis.set_title(f"{quantity.title[0].upper()}{quantity.title[1:]}")
        axis.set_ylabel("inputs wrong, %")
    handles = [
        Line2D([], [], **look, label=f"{name} weights") for look, name in zip(LOOKS, results, strict=False)
    ]
    legend(
        figure,
        "network",
        [*handles, Patch(color=QUIET, alpha=0.2, label="of seeds, smallest to largest (line: median)")],
    )
    figure.savefig(file, dpi=160, facecolor="white")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known: dict[str, Callable[[argparse.Namespace], Any]] = {
        "designed": designed,
        "area": area,
        "physics": physics,
        "budget": budget,
        "shares": shares,
    }
    parser.add_argument("parts", nargs="*", default=list(known), help=f"of {', '.join(known)}")
    parser.add_argument("--sample", type=int, default=4096, help="inputs through the whole network")
    parser.add_argument("--seed", type=int, default=1, help="of a sample, and of random numbers")
    parser.add_argument("--case", choices=CASES, default="8bit_4", help="of physics")
    parser.add_argument(
        "--weights",
        choices=("trained", "designed"),
        action="append",
        help="of physics; more than once for both",
    )
    parser.add_argument("--seeds", type=int, default=5, help="of physics, budget and shares: 0, 1 ..")
    parser.add_argument("--inputs", type=int, help="of physics: a random sample of so many")
    parser.add_argument(
        "--only", type=only, action="append", metavar="QUANTITY=VALUES",
        help=f"of physics: {', '.join(QUANTITIES)}",
    )  # fmt: skip
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="of physics: draw them")
    chosen = parser.parse_args()
    if unknown := set(chosen.parts) - set(known):
        parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(known)}")
    if chosen.seeds < 1:
        parser.error(f"--seeds {chosen.seeds}: at least 1")
    if chosen.inputs is not None and chosen.inputs < 1:
        parser.error(f"--inputs {chosen.inputs}: at least 1")
    if chosen.only and chosen.pictures is not None:
        parser.error("--pictures show every quantity: not with --only")
    chosen.weights = chosen.weights or ["trained", "designed"]
    try:
        print(json.dumps({name: known[name](chosen) for name in chosen.parts}, indent=2))
    except (OSError, ValueError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")


if __name__ == "__main__":
    main()
