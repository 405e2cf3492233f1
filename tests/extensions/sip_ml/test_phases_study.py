"""The study of when light that is set for phases or steps pays: its verdicts, and a small case."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.phases_study import (
    ONE_BYTES,
    PORTS,
    RATE_BPS,
    Case,
    Choice,
    StepLight,
    bucket_bytes,
    bucket_name,
    fastest,
    least,
    names,
    pays_up_to,
    row,
    workload,
)
from ringlight.extensions.models.settings import MIB
from ringlight.fabric import alltoall

DARK_S = (1e-6, 1e-3, 1e-1)
FOUND = {
    "static": 3.0,
    "regrouped": 2.0,
    "phases": [1.5, 1.9, 9.0],
    "steps": [1.0, 2.1, 99.0],
}


def test_the_fastest_and_how_long_each_pays() -> None:
    assert [fastest(FOUND, at) for at in range(3)] == ["steps", "phases", "regrouped"]
    # Of equals the simplest.
    assert fastest(FOUND | {"static": 1.0}, 0) == "static"
    assert pays_up_to(FOUND, "phases", DARK_S) == 1e-3
    assert pays_up_to(FOUND, "steps", DARK_S) == 1e-6
    assert pays_up_to(FOUND | {"regrouped": 0.5}, "steps", DARK_S) is None


def test_all_strategies_choose_among_the_same_collectives() -> None:
    assert Case("llama2-7b", 16, 64).choices == [
        Choice("ring", "direct"),
        Choice("halving-doubling", "direct"),
    ]
    assert len(Case("mixtral-8x7b", 16, 64).choices) == 4
    # At each dark time the faster one; what cannot be it any more is not computed.
    asked = []

    def run(choice: Choice, dark_s: float) -> float:
        asked.append((choice.all_reduce, dark_s))
        return {"ring": 1 + 10 * dark_s, "halving-doubling": 2 + dark_s, "tree": 50.0}[
            choice.all_reduce
        ]

    choices = [Choice(name, "direct") for name in ("tree", "halving-doubling", "ring")]
    assert least(run, choices, (0.0, 0.05, 1.0)) == [1.0, 1.5, 3.0]
    assert asked.count(("tree", 0.0)) == 1
    assert ("halving-doubling", 0.05) not in asked
    assert [dark_s for name, dark_s in asked if name == "tree"] == [0.0]


def test_a_bucket_is_a_size_or_all_gradients() -> None:
    assert bucket_bytes("25 MiB") == Case("llama2-7b", 16, 64).bucket_bytes == 25 * MIB
    assert bucket_bytes("one") == ONE_BYTES
    assert [
        bucket_name(Case("llama2-7b", 16, 64, size)) for size in (25 * MIB, ONE_BYTES)
    ] == [
        "25 MiB",
        "one",
    ]
    for text, said in (
        ("much", "'much' is not a size"),
        ("0 B", "'0 B' holds no gradient"),
    ):
        with pytest.raises(SystemExit, match=said):
            bucket_bytes(text)
    # A rank reduces its gradients once, or bucket by bucket.
    counts = {}
    for size in (25 * MIB, 100 * MIB, ONE_BYTES):
        made = workload(Case("llama2-7b", 16, 64, size), Choice("ring", "direct"))
        program = made.programs[0]
        counts[size] = [made.names[name] for name in program.name.tolist()].count(
            "dp gradients"
        )
    assert counts[ONE_BYTES] == 1 < counts[100 * MIB] < counts[25 * MIB], counts


def test_light_for_a_step_is_of_whole_ports() -> None:
    case = Case("mixtral-8x7b", 16, 64)
    network = StepLight(names(case), 4)
    (step,) = alltoall.direct(4)
    routes = network.routes(names(case)[:4], step)
    links = routes.links.reshape(-1, 3)
    # Three partners of a GPU with eight ports: two for each.
    assert network.capacity_bps[links[:, 2]] == pytest.approx(RATE_BPS / PORTS * 2)
    assert len(np.unique(links[:, 2])) == len(step) == 12
    pairwise = network.routes(names(case)[:4], next(iter(alltoall.pairwise(4))))
    assert network.capacity_bps[pairwise.links] == pytest.approx(RATE_BPS)


@pytest.mark.parametrize("bucket", [25 * MIB, ONE_BYTES])
@pytest.mark.parametrize("model", ["llama2-7b", "mixtral-8x7b"])
def test_longer_dark_times_never_make_an_iteration_shorter(
    model: str, bucket: int
) -> None:
    found = row(Case(model, 16, 64, bucket), DARK_S)
    for name in ("phases", "steps"):
        assert found[name] == sorted(found[name])
    # Any light that is chosen for the job is better than a torus. Phases wait for their turns, which light
    # for all need not, so which of the others is the fastest is what the study measures.
    assert (
        max(found["phases"][0], found["steps"][0], found["regrouped"]) < found["static"]
    )
    assert found["layer_bytes"] == (524_288 if model == "llama2-7b" else 1_048_576)
