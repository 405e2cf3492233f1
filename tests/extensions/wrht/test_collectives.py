"""All-reduces alone: times against closed forms, every step drained by itself, and what a study found."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from ringlight.experiments.analysis.base import AtBase
from ringlight.experiments.analysis.crossover import crossing
from ringlight.experiments.analysis.latency import as_simulated, latency_words
from ringlight.experiments.analysis.published import means
from ringlight.experiments.analysis.result import Analysis, analyse, document
from ringlight.experiments.analysis.rows import Row, where
from ringlight.experiments.analysis.table import Table
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.backends.simulation.collectives import alone
from ringlight.experiments.language.expand import Experiment, parse
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.record.events import CollectiveTimed, Record, RunFailed
from ringlight.experiments.report.page import tag
from ringlight.experiments.report.report import render
from ringlight.experiments.report.sections import published
from ringlight.experiments.report.sections.maps import fastest
from ringlight.experiments.report.sections.titled_sweeps import series
from ringlight.experiments.report.view import view_of
from ringlight.experiments.runner.command import (
    carry_out_experiment,
    load_checked,
    view_of_folder,
)
from ringlight.experiments.runner.experiment import choose, run_alone
from ringlight.experiments.runner.progress import Reporter
from ringlight.extensions.wrht import wdm
from ringlight.extensions.wrht.carrier import Around
from ringlight.extensions.wrht.collective import fitted
from ringlight.extensions.wrht.network import RingNetwork
from ringlight.extensions.wrht.paper import closed_form, on_ring, verdict
from ringlight.extensions.wrht.schedule import plan
from ringlight.extensions.wrht.wdm import collective_on_ring, stripes
from ringlight.fabric.algorithms import fitting_group, parse_collective, steps_named
from ringlight.fabric.planes.base import NETWORK_S
from ringlight.fabric.steps import compact
from ringlight.fabric.trees import leaf_spine
from ringlight.testbed.simulation.maxmin import drain
from ringlight.testbed.simulation.networks import Network, PacketNetwork
from ringlight.testbed.simulation.phases import (
    Phases,
    StepCost,
    needs_new_light,
    synchronous,
)
from tests.simulated import bundled
from tests.unit.page import Page, check_alone, text_of
from tests.unit.test_cli import ringlight
from tests.unit.test_schedules import sums_once

ON_RING = (
    *(
        "wrht",
        "wrht-exchange",
        "wrht-striped",
        "wrht-group-3",
        "ring",
        "ring-striped",
        "binary-tree",
    ),
    *(
        "bidirectional-ring",
        "bidirectional-ring-striped",
        "hierarchical-ring",
        "hierarchical-ring-striped",
    ),
    *(
        "bidirectional-hierarchical-ring",
        "bidirectional-hierarchical-ring-striped",
        "binary-tree-striped",
    ),
)
#: Steps of WRHT as derived by hand from the paper's construction, by (wavelengths, nodes): collecting up to
#: one root and back, and with an exchange at the top where its wavelengths fit.
DERIVED_STEPS = {
    (64, 64): (2, 2), (64, 128): (2, 2), (64, 256): (4, 3), (64, 512): (4, 3), (64, 1024): (4, 3),
    (64, 2048): (4, 3), (64, 3072): (4, 4), (64, 4096): (4, 4),
    (16, 1024): (4, 4), (16, 2048): (6, 5), (16, 3072): (6, 5), (16, 4096): (6, 5),
    (4, 1024): (8, 7), (4, 4096): (8, 8),
}  # fmt: skip
RING = "fabrics.light.rings.n."


def study(**changes: Any) -> dict[str, Any]:
    """A small file of all-reduces alone; ``changes`` to its keys."""
    raw: dict[str, Any] = {
        "name": "s",
        "description": "All-reduces.",
        "fabrics": {
            "light": {
                "light": {"launch_dbm": 10, "sensitivity_dbm": -15.6},
                "rings": {
                    "n": {
                        "nodes": 24,
                        "gpu": "gpu",
                        "rate": "40 Gbit/s",
                        "wavelengths": 4,
                        "reconfigure": "each-step",
                        "wss": {"profile": "mrr", "loss_db": 0},
                    }
                },
            },
            "tree": {
                "leaf_spine": {
                    "leaves": 3,
                    "spines": 1,
                    "gpus_per_leaf": 8,
                    "gpu": "gpu",
                    "rate": "40 Gbit/s",
                    "oversubscription": 3,
                }
            },
        },
        "training": {
            "model": "resnet50",
            "compute": "0 s",
            "batch": 1,
            "iterations": 1,
            "gradient": "100 MB",
            "synchronised": True,
        },
        "tcp": {"headers": False},
        "arms": {
            **{
                name: {"fabric": "light", "training.collective": name}
                for name in ON_RING
            },
            "electrical-ring": {"fabric": "tree", "costs.latency": "2 µs"},
            "electrical-recursive-doubling": {
                "fabric": "tree",
                "training.collective": "recursive-doubling",
                "costs.latency": "2 µs",
            },
        },
        "paper": {"citation": "Nobody", "model": "wrht"},
    }
    return raw | changes


def of(raw: dict[str, Any]) -> Experiment:
    return parse(yaml.safe_dump(raw, allow_unicode=True), "s.yaml")


def computed(experiment: Experiment, keep: Any = lambda plan: True) -> Analysis:
    backend = SimulationBackend()
    found, left = backend.batches(
        [plan for plan in choose(experiment, backend).plans if keep(plan)]
    )
    assert not left
    records: list[Record] = [record for batch in found for record in batch.compute()]
    return analyse(experiment, records, "simulated")


def beside(found: Analysis, metric: str, other: str) -> list[tuple[float, float]]:
    """Two metrics of the same run, where there are both."""

    def by_run(name: str) -> dict[tuple[str, str], Any]:
        return {
            (row.arm, str(row.point)): row.value
            for row in where(found.rows, metric=name)
        }

    mine, theirs = by_run(metric), by_run(other)
    return [(mine[key], theirs[key]) for key in mine if key in theirs]


# --- times ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [2, 3, 9, 16, 33, 96])
@pytest.mark.parametrize("wavelengths", [1, 2, 6])
def test_simulation_and_closed_form_agree(nodes: int, wavelengths: int) -> None:
    raw = study()
    raw["fabrics"]["light"]["rings"]["n"] |= {
        "nodes": nodes,
        "wavelengths": wavelengths,
    }
    raw["fabrics"]["tree"]["leaf_spine"] |= {
        "leaves": max(1, nodes // 32),
        "gpus_per_leaf": min(nodes, 32),
    }
    raw["arms"] = {
        name: arm
        for name, arm in raw["arms"].items()
        if nodes > 2 or "group" not in name
    }
    raw["sweep"] = [
        {
            "arms": [name for name in raw["arms"] if not name.startswith("electrical")],
            "over": {
                RING + "reconfigure": ["each-step", "changed-only"],
                RING + "wss.dark": ["0 s", "25 µs"],
                "costs.addition": [None, "3 Tbit/s"],
                "training.gradient": ["10 kB", "100 MB"],
            },
        },
        {
            "arms": ["electrical-ring", "electrical-recursive-doubling"],
            "over": {
                "fabrics.tree.leaf_spine.oversubscription": [1, 3],
                "costs.addition": [None, "3 Tbit/s"],
            },
        },
    ]
    pairs = beside(computed(of(raw)), "allreduce", "allreduce_closed")
    assert len(pairs) == 16 * (len(raw["arms"]) - 2) + 8
    for simulated, closed in pairs:
        assert simulated == pytest.approx(closed, rel=1e-9)


@pytest.mark.parametrize("reach", [1, 2, 7])
@pytest.mark.parametrize("group", ["", "-group-3"])
def test_they_agree_with_relays_too(reach: int, group: str) -> None:
    raw = study(
        arms={
            "a": {
                "fabric": "light",
                "training.collective": f"wrht{group}-reach-{reach}",
            }
        }
    )
    raw["arms"]["b"] = raw["arms"]["a"] | {
        "training.collective": f"wrht{group}-reach-{reach}-exchange"
    }
    raw["fabrics"]["light"]["rings"]["n"] |= {"nodes": 60}
    for simulated, closed in beside(computed(of(raw)), "allreduce", "allreduce_closed"):
        assert simulated == pytest.approx(closed, rel=1e-9)


@pytest.mark.parametrize(
    "name", [*ON_RING, "electrical-ring", "electrical-recursive-doubling"]
)
@pytest.mark.parametrize("segment", ["0 s", "5 ns"])
def test_an_all_reduce_takes_what_draining_every_step_by_itself_takes(
    name: str, segment: str
) -> None:
    raw = study()
    optical = not name.startswith("electrical")
    raw["arms"] = {
        name: raw["arms"][name]
        | {"costs.addition": "3 Tbit/s", "costs.segment": segment}
    }
    charges = ["each-step", "changed-only"] if optical else ["each-step"]
    raw["sweep"] = {
        RING + "reconfigure": charges,
        "training.gradient": ["10 kB", "1 GB"],
    }
    experiment = of(raw)
    network: Network
    if optical:
        around, ring = wdm.wdm_ring("n", 24, 4, 40e9)
        network = RingNetwork(
            around, ring, segment_s=5e-9 if segment == "5 ns" else 0.0
        )
        ranks: Sequence[str] = ring.nodes
        steps = collective_on_ring(experiment.plans[0].jobs[0].loop.collective, 24, 4)
    else:
        fabric = leaf_spine(3, 8, 40e9, oversubscription=3.0).fabric()
        network, ranks = PacketNetwork(fabric, latency_s=2e-6), tuple(fabric.gpus)
        steps = steps_named(name.removeprefix("electrical-"), 24)
    found = {
        str(row.point): row.value
        for row in where(computed(experiment).rows, metric="allreduce")
    }
    for plan_ in experiment.plans:
        total, before = 0.0, None
        for number, step in enumerate(steps):
            routes = network.routes(ranks, step, number)
            bytes_ = step.count * plan_.jobs[0].loop.gradient_bytes / steps.chunks
            capacity = network.capacity_bps / 8
            ends = drain(
                routes.offsets,
                routes.links,
                capacity,
                bytes_,
                routes.latency_s,
                compiled=False,
            )
            total += float(ends.max())
            if step.op == "reduce":
                total += float(np.bincount(step.destinations, bytes_).max()) * 8 / 3e12
            new = before is None or needs_new_light(step, before, len(ranks))
            if optical and (plan_.point[RING + "reconfigure"] == "each-step" or new):
                total += 25e-6
            before = step
        assert found[str(plan_.point)] == pytest.approx(total, rel=1e-12)


def test_phases_serve_any_size_and_cost_as_one_simulation_does() -> None:
    fabric, ring = wdm.wdm_ring("n", 12, 4, 40e9)
    network, steps = (
        RingNetwork(fabric, ring),
        collective_on_ring("hierarchical-ring-4", 12, 4),
    )
    phases = Phases(network, ring.nodes, steps)
    for size in (1e3, 0.0, 1e8):
        for cost in (
            StepCost(1e-3),
            StepCost(1e-3, "changed-only"),
            StepCost(0.0, "each-step", 1e-9),
        ):
            alone_s = synchronous(network, ring.nodes, steps, size, cost).total_s
            assert phases.time(size, cost).total_s == alone_s
    with pytest.raises(ValueError, match="a vector of -1 bytes"):
        phases.time(-1)


def test_a_lab_takes_as_long_as_the_batch() -> None:
    raw = study(
        arms={
            "wrht": {
                "fabric": "light",
                "training.collective": "wrht",
                "costs.segment": "5 ns",
            }
        }
    )
    (plan_,) = of(raw).plans
    backend = SimulationBackend()
    ((batch,), _) = backend.batches([plan_])
    (timed,) = [
        record for record in batch.compute() if isinstance(record, CollectiveTimed)
    ]
    records, failures = run_alone(backend, plan_)
    assert not failures
    found = analyse(of(raw), records, "simulated")
    (row,) = where(found.rows, metric="allreduce")
    assert row.value == pytest.approx(timed.total_s, rel=1e-9)


@pytest.mark.parametrize(("wavelengths", "nodes"), DERIVED_STEPS)
def test_wrht_has_the_steps_that_were_derived(wavelengths: int, nodes: int) -> None:
    for end, steps in zip(
        ("", "-exchange"), DERIVED_STEPS[wavelengths, nodes], strict=True
    ):
        name = fitted(f"wrht{end}", nodes, wavelengths, None)
        form = on_ring(parse_collective(name), nodes, wavelengths)
        assert steps_named(name, nodes).steps == steps
        assert form is not None
        assert form.steps == steps


def test_a_representative_receives_seventy_one_gigabytes_of_vgg16() -> None:
    assert plan(1024, 64).buffer_vectors * 553_430_176 == 70_839_062_528


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "reach", "becomes"),
    [
        ("wrht", None, "wrht-6"),
        ("wrht", 8, "wrht-6-reach-8"),
        ("wrht", 500, "wrht-6"),
        ("wrht-2-exchange", None, "wrht-2-exchange"),
        ("wrht-group-3-striped", None, "wrht-6-group-3-striped"),
        ("hierarchical-ring", 8, "hierarchical-ring-6"),
        ("ring", 8, "ring"),
        ("ring-striped", None, "ring-6-striped"),
    ],
)
def test_a_collective_fits_itself_to_the_ring(
    name: str, reach: int | None, becomes: str
) -> None:
    assert fitted(name, 100, 6, reach) == becomes
    assert str(parse_collective(becomes)) == becomes


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("star", "there is no collective 'star'"),
        ("ring-3", "ring has no wavelengths"),
        ("ring-group-3", "ring has no group"),
        ("binary-tree-exchange", "binary-tree has no exchange"),
        ("hierarchical-ring-4-reach-3", "hierarchical-ring has no reach"),
    ],
)
def test_an_option_that_an_algorithm_does_not_have_is_named(
    name: str, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        parse_collective(name)


@pytest.mark.parametrize("nodes", [2, 3, 6, 8, 12])
@pytest.mark.parametrize("wavelengths", [1, 2, 4, 6])
@pytest.mark.parametrize(
    "name", [name for name in ON_RING if name.endswith("-striped")]
)
def test_striped_schedules_sum_once_and_fit_the_wavelengths(
    nodes: int, wavelengths: int, name: str
) -> None:
    found = parse_collective(
        fitted(name.removesuffix("-striped"), nodes, wavelengths, None)
    )
    made = wdm.striped(steps_named(str(found), nodes), wavelengths)
    assert sums_once(made)
    for number, step in enumerate(made):
        wdm.check_wavelengths(step, nodes, wavelengths, number)


def test_stripes_fill_the_wavelengths_and_divide_them() -> None:
    assert [stripes(64, used) for used in (1, 4, 5, 64)] == [64, 16, 8, 1]
    assert stripes(6, 4) == 1


def test_a_compact_schedule_has_the_same_steps_and_few_objects() -> None:
    made = list(compact(steps_named("ring", 8)))
    assert len(made) == 14
    assert len({id(step) for step in made}) == 2
    assert [step.op for step in made] == ["reduce"] * 7 + ["replace"] * 7


def test_a_hierarchical_ring_has_groups_that_its_wavelengths_carry() -> None:
    assert [fitting_group(*at) for at in ((1024, 64), (1024, 4), (13, 64))] == [
        32,
        4,
        1,
    ]


def test_light_that_gets_too_little_far_goes_by_relays() -> None:
    raw = study(arms={"wrht": {"fabric": "light", "training.collective": "wrht"}})
    raw["fabrics"]["light"]["rings"]["n"] |= {"nodes": 200}
    raw["sweep"] = {RING + "wss.loss_db": [0, 1, 3]}
    found = of(raw)
    # Launch 10 dBm, 25.6 dB may be lost, the first WSS among them.
    assert [p.jobs[0].loop.collective for p in found.plans] == [
        "wrht-4",
        "wrht-4-reach-24",
        "wrht-4-reach-7",
    ]
    rows = where(computed(found).rows, metric="steps")
    assert [row.value for row in rows] == [
        plan(200, 4, reach=r).steps for r in (None, 24, 7)
    ]


# --- what is alone, and what is not ---------------------------------------------------------------


def test_only_an_all_reduce_and_nothing_else_needs_no_lab() -> None:
    raw = study(
        arms={
            "a": {"fabric": "light"},
            "b": {"fabric": "light", "training.iterations": 2},
        }
    )
    raw["arms"]["c"] = {"fabric": "light", "training.compute": "1 ms"}
    raw["arms"]["d"] = {"fabric": "tree", "training.synchronised": False}
    assert [plan.arm for plan in of(raw).plans if alone(plan)] == ["a"]


def test_batches_are_small_and_the_longest_is_first() -> None:
    backend = SimulationBackend()
    found, _ = backend.batches(of(study()).plans)
    assert len(found) == len(ON_RING) + 2
    assert found[0].collective.endswith("-striped")
    assert isinstance(found[0].medium, Around)


def test_a_run_that_cannot_be_computed_says_why_and_the_others_are() -> None:
    raw = study(
        arms={
            "ring": {"fabric": "light"},
            "wrht": {"fabric": "light", "training.collective": "wrht"},
        }
    )
    raw["arms"]["far"] = raw["arms"]["ring"] | {
        RING + "nodes": 60,
        RING + "wss.loss_db": 20,
    }
    backend = SimulationBackend()
    batches, _ = backend.batches(of(raw).plans)
    records = [record for batch in batches for record in batch.compute()]
    (failed,) = [record for record in records if isinstance(record, RunFailed)]
    assert (failed.arm, "dBm, less than the receiver's" in failed.reason) == (
        "far",
        True,
    )
    assert sum(isinstance(record, CollectiveTimed) for record in records) == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"paper": {"citation": "Nobody", "model": "whrt"}},
            "paper.model: there is no model whrt",
        ),
        (
            {"crossover": {"arms": "rung", "along": "training.gradient"}},
            "crossover.arms: there is no arm rung",
        ),
        (
            {"crossover": {"arms": "ring", "along": "training.batch"}},
            "crossover.along: there is no swept path",
        ),
    ],
)
def test_what_is_not_there_is_one_line(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "s.yaml"
    sweep = {"training.gradient": ["1 MB", "2 MB"]}
    path.write_text(yaml.safe_dump(study(sweep=sweep, **change), allow_unicode=True))
    with pytest.raises(ScenarioError) as caught:
        load_checked(path)
    assert str(caught.value).startswith(f"{path}: {said}")
    assert "\n" not in str(caught.value)


def test_an_emulation_refuses_what_only_a_simulation_counts() -> None:
    from ringlight.experiments.backends.emulation.backend import EmulationBackend

    raw = study(
        arms={
            "a": {"fabric": "light", "costs.segment": "5 ns"},
            "b": {"fabric": "tree"},
        },
        tcp={},
    )
    raw["arms"]["c"] = {"fabric": "light", "training.collective": "ring-striped"}
    said = [EmulationBackend().refuses(plan) or "" for plan in of(raw).plans]
    assert [words.partition(":")[0] for words in said] == [
        "costs",
        "jobs.train.training.synchronised",
        "jobs.train.training.collective",
    ]


# --- crossovers -----------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    st.floats(-1e3, 1e3).filter(lambda x: abs(x) > 1e-3),
    st.floats(1e-3, 1e3),
    st.lists(st.floats(1, 1e6), min_size=2, max_size=9, unique=True).filter(
        lambda xs: (
            min(b - a for a, b in zip(sorted(xs), sorted(xs)[1:], strict=False)) > 1
        )
    ),
)
def test_a_straight_line_crosses_where_it_does(
    at: float, rise: float, xs: list[float]
) -> None:
    word, found = crossing([(x, rise * (x - at)) for x in sorted(xs)])
    if at > 0:
        assert (word, found) == ("up_to", pytest.approx(at, rel=1e-6))
    else:
        assert (word, found) == ("up_to", 0.0)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ([(1, -1), (2, -1)], ("up_to", float("inf"))),
        ([(1, -1), (2, -2)], ("up_to", float("inf"))),
        ([(1, 2), (2, 2)], ("up_to", 0.0)),
        ([(1, 2), (2, 1)], ("from", 3.0)),
        ([(2, -1), (3, -2)], ("from", 1.0)),
        ([(1, 1), (3, -1)], ("from", 2.0)),
    ],
)
def test_what_never_crosses_is_said(
    line: list[tuple[float, float]], found: tuple[str, float]
) -> None:
    assert crossing(line) == found


def test_arms_are_compared_where_they_differ_in_nothing_else() -> None:
    raw = study(
        arms={
            k: v
            for k, v in study()["arms"].items()
            if k in ("wrht", "ring", "electrical-ring")
        }
    )
    raw["sweep"] = [
        {
            "arms": ["wrht", "ring"],
            "over": {RING + "nodes": [24, 48], "training.gradient": ["1 MB", "100 MB"]},
        },
        {"arms": "electrical-ring", "over": {"training.gradient": ["1 MB", "100 MB"]}},
    ]
    raw["crossover"] = {"arms": "wrht", "along": "training.gradient"}
    rows = [row for row in computed(of(raw)).rows if row.metric.startswith("faster_")]
    assert {(row.metric, row.point[RING + "nodes"]) for row in rows} == {
        ("faster_up_to.ring", 24),
        ("faster_up_to.ring", 48),
        # The tree has 24 GPUs, however many the ring has.
        ("faster_up_to.electrical-ring", 24),
    }
    at = {
        row.point[RING + "nodes"]: row.value
        for row in rows
        if row.metric == "faster_up_to.ring"
    }
    form = on_ring(parse_collective("wrht-4"), 24, 4)
    assert form is not None
    theta = form.steps
    assert at[24] == pytest.approx(
        25e-6 * 40e9 / 8 * (2 * 23 - theta) / (theta - 2 * 23 / 24), rel=1e-9
    )


# --- the bundled study ----------------------------------------------------------------------------


def test_the_bundled_study_gives_the_figures_that_it_gave() -> None:
    """Figures of the code before the study was an experiment as others, where they are soon computed."""
    wanted = json.loads((Path(__file__).parent / "golden/study.json").read_text())

    raw = yaml.safe_load(bundled("wrht").read_text(encoding="utf-8"))
    few = {RING + "nodes": [64, 128, 256], "fabrics.tree.leaf_spine.leaves": [2, 4]}
    raw["sweep"] = [
        sweep for sweep in raw["sweep"] if few.keys() & sweep["over"].keys()
    ]
    for sweep in raw["sweep"]:
        sweep["over"] |= {
            path: values for path, values in few.items() if path in sweep["over"]
        }
        if "training.gradient" in sweep["over"]:
            sweep["over"]["training.gradient"] = ["$resnet50"]
    del (
        raw["crossover"],
        raw["published"],
        raw["parameters"]["wavelengths"]["fitted_to"],
    )
    found = computed(of(raw))
    keys = {
        (row["arm"], json.dumps(row["point"], sort_keys=True)): row for row in wanted
    }
    got = {
        (row.arm, json.dumps(row.point, sort_keys=True)): row.value
        for row in where(found.rows, metric="allreduce", label="simulated")
    }
    assert len(got) > 230
    assert got.keys() <= keys.keys()
    for key, value in got.items():
        assert value == pytest.approx(keys[key]["value"], rel=1e-9), key


@pytest.fixture(scope="module")
def small() -> Analysis:
    raw = yaml.safe_load(bundled("wrht").read_text(encoding="utf-8"))
    raw["fabrics"]["light"]["rings"]["n"] |= {"nodes": 64, "wavelengths": 8}
    raw["fabrics"]["tree"]["leaf_spine"] |= {"leaves": 2}
    for sweep in raw["sweep"]:
        over = sweep["over"]
        over.pop("fabrics.light.rings.n.nodes", None)
        if "fabrics.tree.leaf_spine.leaves" in over:
            over["fabrics.tree.leaf_spine.leaves"] = [2]
        if "fabrics.light.rings.n.wavelengths" in over:
            over["fabrics.light.rings.n.wavelengths"] = [2, 8]
        if "training.collective" in over:
            over["training.collective"] = ["wrht-group-3", "wrht-group-9", "wrht"]
        if len(sizes := over.get("training.gradient", ())) > 3:
            # The models, and one size of every four.
            over["training.gradient"] = [*sizes[:-3:4], *sizes[-3:]]
    del raw["published"]
    raw["parameters"]["wavelengths"].pop("fitted_to")
    return computed(of(raw))


def test_the_verdict_follows_the_rows(small: Analysis) -> None:
    found = {
        finding.text: finding.kind
        for finding in verdict(AtBase(small.experiment, Table(small.rows)))
    }
    texts = " ".join(found)
    for title in (
        "Bidirectional ring",
        "Binary tree",
        "Electrical ring",
        "Hierarchical ring",
    ):
        assert f"{title}: " in texts
    assert (
        found["Binary tree: WRHT, with exchange or without, is faster for every size."]
        == "wins"
    )
    assert "all of WRHT's advantage is due to charging the set-up" in texts
    assert (
        "A representative receives 16 whole vectors at the same time (for vgg16 8.85"
        in texts
    )
    assert "A representative needs time to add the vectors that it received" in texts
    # Nothing is said of figures that no paper has.
    assert "note" not in found.values()
    gone = [row for row in small.rows if not row.metric.startswith("faster_")]
    assert not any(
        "is faster" in f.text for f in verdict(AtBase(small.experiment, Table(gone)))
    )


def test_a_figure_that_comes_out_exactly_is_said_to_be_one() -> None:
    experiment = load_checked(bundled("wrht"))
    ours = [
        Row(
            "wrht",
            "job all",
            f"{figure.metric}_ratio.{figure.over}",
            value,
            "1",
            "simulated",
            {"a": 1},
        )
        for figure in experiment.spec.published
        for value in ([0.178788] if figure.metric == "steps" else [0.5])
    ]
    (note,) = [f for f in verdict(AtBase(experiment, Table(ours))) if f.kind == "note"]
    assert note.text.startswith("Fitted: 82.12 %;")
    assert "Not reproduced: 80.81 %, 64.36 %, 92.42 % and 91.31 %" in note.text


# --- published means, and the page ----------------------------------------------------------------


def test_the_latency_of_the_command_line_counts_in_a_batch_too() -> None:
    raw = study(arms={"wrht": {"fabric": "light", "training.collective": "wrht"}})
    (plan_,) = of(raw).plans

    def took_s(latency_s: float) -> float:
        backend = SimulationBackend(latency_s=latency_s)
        ((batch,), _) = backend.batches([plan_])
        (timed,) = [
            record for record in batch.compute() if isinstance(record, CollectiveTimed)
        ]
        return timed.total_s

    steps = steps_named(plan_.jobs[0].loop.collective, 24).steps
    assert took_s(1e-3) - took_s(0.0) == pytest.approx(steps * 1e-3, rel=1e-9)


def test_a_paper_with_a_model_may_have_several_jobs() -> None:
    raw = study(arms={"a": {"fabric": "tree"}})
    raw["jobs"] = {"red": {"gpus": 2}, "blue": {"gpus": 2}}
    experiment = of(raw)
    (plan_,) = experiment.plans
    records, failures = run_alone(SimulationBackend(), plan_)
    assert not failures
    assert where(analyse(experiment, records, "simulated").rows, metric="jct")


def test_closed_forms_say_nothing_where_headers_take_their_part() -> None:
    raw = study(
        arms={"wrht": {"fabric": "light", "training.collective": "wrht"}}, tcp={}
    )
    rows = computed(of(raw)).rows
    assert where(rows, metric="allreduce")
    assert not [row for row in rows if row.metric.endswith("_closed")]


def test_additions_without_steps_that_are_synchronised_are_refused() -> None:
    raw = study(arms={"tree": {"fabric": "tree", "costs.addition": "3 Tbit/s"}})
    raw["training"]["synchronised"] = False
    with pytest.raises(
        ScenarioError,
        match=re.escape("costs.addition: only steps that are synchronised count it"),
    ):
        choose(of(raw), SimulationBackend())


def test_a_published_mean_is_over_its_points_alone() -> None:
    raw = study(
        arms={
            k: v
            for k, v in study()["arms"].items()
            if k in ("wrht", "ring", "electrical-ring")
        }
    )
    raw["sweep"] = [
        {
            "arms": ["wrht", "ring"],
            "over": {
                RING + "nodes": [16, 24, 32],
                "training.gradient": ["1 MB", "100 MB"],
            },
        },
        {
            "arms": "electrical-ring",
            "over": {
                "fabrics.tree.leaf_spine.leaves": [2, 3, 4],
                "training.gradient": ["1 MB", "100 MB"],
                "fabrics.tree.leaf_spine.oversubscription": [1, 3],
            },
        },
    ]
    at = {RING + "nodes": [16, 32]}
    leaves = {"fabrics.tree.leaf_spine.leaves": [2, 4]}
    raw["published"] = [
        {"arm": "wrht", "over": "ring", "metric": "allreduce", "value": 0.5, "at": at},
        {
            "arm": "wrht",
            "over": "electrical-ring",
            "metric": "steps",
            "value": "30 %",
            "at": at,
        }
        | {"over_at": leaves},
    ]
    experiment = of(raw)
    rows = computed(experiment).rows

    def figure(arm: str, metric: str, **point: Any) -> float:
        (row,) = [
            r
            for r in where(rows, arm=arm, metric=metric, point=point)
            if r.label == "simulated"
        ]
        assert isinstance(row.value, int | float)
        return row.value

    ours = [
        r for r in where(rows, metric="allreduce_ratio.ring") if r.label == "simulated"
    ]
    assert {row.point["training.gradient"] for row in ours} == {"1 MB", "100 MB"}
    for row in ours:
        size = {"training.gradient": row.point["training.gradient"]}
        ratios = [
            figure("wrht", "allreduce", **{RING + "nodes": n}, **size)
            / figure("ring", "allreduce", **{RING + "nodes": n}, **size)
            for n in (16, 32)
        ]
        assert row.value == pytest.approx(sum(ratios) / 2, rel=1e-12)
    steps = [
        r
        for r in where(rows, metric="steps_ratio.electrical-ring")
        if r.label == "simulated"
    ]
    # For every gradient and each trunk, one.
    assert len(steps) == 4
    mean = sum(steps_named("wrht-4", n).steps / (2 * (n - 1)) for n in (16, 32)) / 2
    assert [row.value for row in steps] == pytest.approx([mean] * 4, rel=1e-12)
    (theirs,) = where(rows, metric="steps_ratio.electrical-ring", label="published")
    assert theirs.value == pytest.approx(0.3)
    assert [mean.ratio for mean in means(experiment.spec, Table(rows))] == [
        0.5,
        pytest.approx(0.3),
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"over": None}, "published[0].over_at: it goes with over, which is missing"),
        ({"at": {}}, "published[0].over_at: it goes with at, which is missing"),
        (
            {"at": {"training.gradient": ["1 MB"]}},
            "published[0].at: its lists are of different lengths",
        ),
        (
            {"at": {"training.batch": [1, 2]}},
            "published[0].at: there is no swept path training.batch",
        ),
    ],
)
def test_a_mean_over_points_that_are_not_there_is_one_line(
    change: dict[str, Any], said: str
) -> None:
    raw = study(sweep={"training.gradient": ["1 MB", "2 MB"]})
    points = {"training.gradient": ["1 MB", "2 MB"]}
    raw["published"] = [
        {
            "arm": "wrht",
            "over": "ring",
            "metric": "allreduce",
            "value": 0.5,
            "at": points,
            "over_at": points,
        }
        | change
    ]
    with pytest.raises(ScenarioError, match=re.escape(said)):
        of(raw)


@pytest.mark.parametrize(
    ("most", "scale"),
    [("20 MB", "linear"), ("2 GB", "log")],
    ids=["little is spanned", "much is spanned"],
)
def test_the_axis_of_a_series_has_a_unit(most: str, scale: str) -> None:
    arms = {"ring": {"fabric": "light", "training.collective": "ring"}}
    raw = study(
        arms=arms,
        sweep=[{"title": "Sizes", "over": {"training.gradient": ["10 MB", most]}}],
    )
    found, drawn = computed(of(raw)), []
    view = view_of(found, document(found, [], {}), {})
    series(view, lambda name, caption, figure, *args: drawn.append(figure(*args)) or "")
    axis = drawn[0].axes[0]
    assert axis.get_yscale() == scale
    assert axis.yaxis.get_major_formatter()(0.02) == "20\N{NO-BREAK SPACE}ms"


def test_nothing_in_the_file_is_not_zero() -> None:
    raw = study(arms={"ring": {"fabric": "light"}})
    loss = RING + "wss.loss_db"
    del raw["fabrics"]["light"]["rings"]["n"]["wss"]["loss_db"]
    rows = [
        Row("ring", "job train", "jct", 1.0, "s", "simulated", {loss: 0, "costs": {}})
    ]
    base = AtBase(of(raw), Table(rows))
    assert base.row_at("ring", "jct") is None
    assert base.row_at("ring", "jct", {loss: 0}) == rows[0]
    assert base.row_at("ring", "jct", {loss: 0, "training.gradient": "1 MB"}) is None


def map_of(over: dict[str, list[Any]]) -> Figure | None:
    """The map of who is the fastest in a sweep of three arms; None where there is none."""
    arms = {
        name: arm
        for name, arm in study()["arms"].items()
        if name in ("wrht", "ring", "binary-tree")
    }
    compare = [{"baseline": "ring", "metrics": ["allreduce"]}]
    found = computed(of(study(arms=arms, sweep=over, compare=compare)))
    view, drawn = view_of(found, document(found, [], {}), {}), []
    fastest(
        view, lambda name, caption, figure, *args: drawn.append(figure(*args)) or ""
    )
    return drawn[0] if drawn else None


def test_a_map_is_of_two_paths_that_are_numbers_and_at_most_a_third() -> None:
    sizes, wavelengths = ["1 MB", "2 MB", "4 MB", "8 MB"], [1, 2, 3, 4]
    costs = [{"latency": f"{n} us"} for n in range(5)]
    over = {
        "costs": costs,
        "training.gradient": sizes,
        RING + "wavelengths": wavelengths,
    }
    figure = map_of(over)
    assert figure is not None
    axes = figure.axes
    assert len(axes) == len(costs)
    assert {axes[0].get_xlabel(), axes[0].get_ylabel()} == {"gradient", "wavelengths"}
    assert map_of(over | {RING + "reconfigure": ["each-step", "changed-only"]}) is None


def test_the_page_stands_alone_and_says_what_the_rows_say(
    small: Analysis, tmp_path: Path
) -> None:
    html = render(view_of(small, document(small, [], {}), {}), tmp_path)
    check_alone(html)
    said = text_of(Page(html))
    for heading in (
        *(
            "Where does WRHT win, and where does it lose?",
            "Verdict",
            "Who is compared",
            "What was swept",
        ),
        *(
            "Who is the fastest",
            "Where it stops winning",
            "Nodes and wavelengths",
            "Runs and closed forms agree",
        ),
    ):
        assert heading in said, heading
    for finding in verdict(AtBase(small.experiment, Table(small.rows))):
        assert finding.text in said
    titled = [sweep.title for sweep in small.experiment.spec.sweep]
    assert len(list(tmp_path.glob("series-*.svg"))) == len(titled) == 10
    assert tag("measured") not in html
    apart = [
        replace(row, value=1.001 * row.value)
        if row.metric == "allreduce" and isinstance(row.value, float)
        else row
        for row in small.rows
    ]
    view = view_of(replace(small, rows=tuple(apart)), document(small, [], {}), {})
    assert "Runs and closed forms disagree" in published.verdict(view, lambda *_: "")


@pytest.mark.parametrize(
    "asked", [SimulationBackend(latency_s=1e-3), SimulationBackend(mtu_bytes=600)]
)
def test_the_verdict_knows_what_the_command_asked_for(
    asked: SimulationBackend, tmp_path: Path
) -> None:
    raw = study(
        arms={name: arm for name, arm in study()["arms"].items() if "tree" not in name}
    )
    done, _ = carry_out_experiment(
        of(raw), asked, tmp_path, reporter=Reporter(quiet=True)
    )
    assert not done.failures
    assert "Runs and closed forms agree" in (done.path / "report.html").read_text()


# --- the order of ranks ---------------------------------------------------------------------------


def shuffled(collective: str = "ring", **changes: Any) -> dict[str, Any]:
    """One all-reduce in step, beside the same in two iterations and without steps; ranks alternate between
    two leaves."""
    raw = study(
        arms={
            "free": {"training.synchronised": False},
            "once": {},
            "twice": {"training.iterations": 2},
            "in-order": {"jobs.job.ranks": "all"},
        },
        fabric={
            "leaf_spine": {
                "leaves": 2, "spines": 1, "gpus_per_leaf": 4, "gpu": "a100", "rate": "100 Gbit/s",
                "oversubscription": 4,
            }
        },
    )  # fmt: skip
    del raw["fabrics"], raw["paper"]
    raw["costs"] = {"latency": "0 s"}
    raw["training"]["collective"] = collective
    raw["jobs"] = {"job": {"ranks": [f"g{k}" for k in (0, 4, 1, 5, 2, 6, 3, 7)]}}
    return raw | changes


def all_reduces(raw: dict[str, Any]) -> dict[str, float]:
    """Seconds of the all-reduces of each arm."""
    experiment, backend = of(raw), SimulationBackend()
    found, left = backend.batches(choose(experiment, backend).plans)
    records = [record for batch in found for record in batch.compute()]
    records += [record for plan in left for record in run_alone(backend, plan)[0]]
    rows = where(analyse(experiment, records, "simulated").rows, metric="allreduce")
    return {row.arm: float(row.value) for row in rows}


@pytest.mark.parametrize(
    "collective", ["ring", "bidirectional-ring", "halving-doubling"]
)
def test_an_all_reduce_in_step_knows_the_order_of_its_ranks(collective: str) -> None:
    took_s = all_reduces(shuffled(collective))
    assert took_s["once"] == pytest.approx(took_s["twice"])
    assert abs(took_s["once"] / took_s["in-order"] - 1) > 0.2
    if collective == "ring":
        assert took_s["once"] == pytest.approx(took_s["free"])
        assert took_s["once"] == pytest.approx(4 * took_s["in-order"])


def test_runs_of_one_network_and_two_orders_are_two_batches() -> None:
    backend = SimulationBackend()
    plans = [plan for plan in of(shuffled()).plans if plan.arm in ("once", "in-order")]
    found, left = backend.batches(plans)
    assert not left
    assert {batch.places for batch in found} == {
        (0, 4, 1, 5, 2, 6, 3, 7),
        tuple(range(8)),
    }


def test_gpus_that_nobody_names_are_chosen_by_a_lab() -> None:
    raw = shuffled()
    raw["jobs"] = {"job": {"gpus": 8}}
    raw["arms"] = {"once": {}}
    assert not alone(of(raw).plans[0])


def test_a_ring_of_wavelengths_knows_the_order_of_its_ranks() -> None:
    ranks = [f"n{k}" for k in (0, 4, 1, 5, 2, 6, 3, 7)]
    raw = study(
        arms={
            "once": {},
            "twice": {"training.iterations": 2},
            "in-order": {"jobs.job.ranks": "all"},
        }
    )
    del raw["fabrics"], raw["paper"]
    around = {
        "nodes": 8,
        "wavelengths": 4,
        "rate": "40 Gbit/s",
        "gpu": "a100",
        "reconfigure": "each-step",
    }
    raw["fabric"] = {"rings": {"n": around}}
    raw["costs"] = {"segment": "1 ms"}
    raw["jobs"] = {"job": {"ranks": ranks}}
    took_s = all_reduces(raw)
    # Light passes four segments, and none more than once in its direction.
    assert took_s["once"] == pytest.approx(took_s["twice"])
    assert took_s["once"] == pytest.approx(took_s["in-order"] + 14 * 3e-3)
    around["wavelengths"] = 1
    with pytest.raises(ScenarioError, match="no wavelength of 1 is free"):
        of(raw)


def test_the_plan_of_a_ring_leads_to_the_ranks_that_send() -> None:
    fabric, ring = wdm.wdm_ring("n", 4, 2, 40e9)
    plan_ = wdm.plan_ring(
        fabric, ring, steps_named("ring", 4), ("n2", "n0", "n3", "n1")
    )
    assert plan_.steps[0].pairs == {
        ("n2", "n0"),
        ("n0", "n3"),
        ("n3", "n1"),
        ("n1", "n2"),
    }
    with pytest.raises(ValueError, match="its 4 ranks are not the 4 nodes of the ring"):
        wdm.plan_ring(fabric, ring, steps_named("ring", 4), ("n2", "n0", "n3", "n9"))


def test_the_closed_form_is_silent_of_another_order() -> None:
    raw = study()
    raw["arms"] = {"a": {"fabric": "tree"}}
    gpus = list(of(raw).plans[0].setting.fabric.gpus)
    assert closed_form(of(raw).plans[0]) is not None
    raw["jobs"] = {"job": {"ranks": gpus[::2] + gpus[1::2]}}
    assert closed_form(of(raw).plans[0]) is None


# --- latency --------------------------------------------------------------------------------------


def small_messages(algorithm: str, **changes: Any) -> dict[str, Any]:
    """All-reduces of 8 kB in a workload of eight GPUs, at real rates."""
    sent = {
        "collective": "all-reduce",
        "algorithm": algorithm,
        "size": "8 kB",
        "iterations": 2,
    }
    return {
        "name": "small",
        "description": "Small messages.",
        "fabric": {"fat_tree": {"k": 4, "gpu": "a100", "rate": "100 Gbit/s"}},
        "tcp": {"headers": False},
        "jobs": {"reduce": {"ranks": [f"g{k}" for k in range(8)], "workload": sent}},
        "arms": {"a": {}},
    } | changes


def iteration_s(raw: dict[str, Any]) -> float:
    experiment, backend = of(raw), SimulationBackend()
    records = [
        record for plan in experiment.plans for record in run_alone(backend, plan)[0]
    ]
    (row,) = where(analyse(experiment, records, "simulated").rows, metric="iteration")
    return float(row.value)


def test_small_messages_have_a_latency_unless_a_file_says_none() -> None:
    """Steps of 1 kB take 80 ns of a link: a ring's fourteen have fourteen latencies, six exchanges six."""
    ring_s, halving_s = (
        iteration_s(small_messages("ring")),
        iteration_s(small_messages("halving-doubling")),
    )
    assert ring_s == pytest.approx(14 * NETWORK_S, rel=0.02)
    assert halving_s == pytest.approx(6 * NETWORK_S, rel=0.1)
    none = {"costs": {"latency": "0 s"}}
    bytes_s = 2 * 7 / 8 * 8e3 * 8 / 100e9
    assert iteration_s(small_messages("ring", **none)) == pytest.approx(bytes_s)
    # As emulated, messages have another latency, which is not the real one times D.
    scaled = {"scale": {"time": 4, "payload": 1}}
    assert iteration_s(small_messages("ring", **scaled)) == pytest.approx(4 * bytes_s)


def test_what_is_said_of_latency() -> None:
    facts, older = SimulationBackend().facts(), {"latency_s": 0.0}

    def words(environment: Mapping[str, Any] = facts, **changes: Any) -> str:
        return latency_words(of(small_messages("ring", **changes)).plans, environment)

    assert words() == "2.7 µs (default, of NCCL's model of a step between servers)"
    assert words(costs={"latency": "1 µs"}) == "1 µs (costs.latency)"
    none = "small messages are not modelled"
    assert words(costs={"latency": "0 s"}) == f"0 s (costs.latency; {none})"
    assert (
        words(scale={"time": 4})
        == f"0 s (default of runs scaled for an emulation; {none})"
    )
    late = SimulationBackend(latency_s=1e-6).facts()
    assert words(late) == "3.7 µs (default and --latency)"
    assert words(late, scale={"time": 4}) == "1 µs (--latency)"
    old = as_simulated(of(small_messages("ring")), older)
    assert (
        latency_words(old.plans, older)
        == f"0 s (of before there was a default; {none})"
    )
    assert words(older, costs={"latency": "1 µs"}) == "1 µs (costs.latency)"


def test_the_latency_is_in_the_first_lines_of_a_simulation_and_of_its_page(
    tmp_path: Path,
) -> None:
    file, runs = tmp_path / "small.yaml", tmp_path / "runs"
    file.write_text(yaml.safe_dump(small_messages("ring")))
    done = ringlight("simulate", str(file), "--runs", str(runs))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith(
        "Latency of a transfer: 2.7 µs (default, "
    )
    (folder,) = runs.iterdir()
    head, _, _ = (folder / "report.html").read_text().partition("</header>")
    assert "2.7 µs (default, " in head
    bench = ringlight("bench", str(file), "--simulate", "--sizes", "8kB")
    assert "Latency of a transfer: 2.7 µs (default, " in bench.stdout


def test_a_run_folder_of_before_is_read_as_it_was_simulated(tmp_path: Path) -> None:
    """Its transfers had no latency, which its environment does not give as a default."""
    none = of(small_messages("ring", costs={"latency": "0 s"}))
    done, _ = carry_out_experiment(none, SimulationBackend(), tmp_path)
    file = done.path / "scenario.yaml"
    file.write_text(yaml.safe_dump(small_messages("ring")))
    new, _ = view_of_folder(done.path)
    assert new.experiment.plans[0].costs.latency_s is None
    environment = json.loads((done.path / "environment.json").read_text())
    del environment["network_latency_s"]
    (done.path / "environment.json").write_text(json.dumps(environment))
    old, _ = view_of_folder(done.path)
    assert old.experiment.plans[0].costs.latency_s == 0.0
    assert latency_words(old.experiment.plans, environment).startswith(
        "0 s (of before "
    )
