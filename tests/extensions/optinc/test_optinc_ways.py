"""The ways of averaging of OptINC's training study: on all codes of a few bits, and as a table of a page."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.optinc_training import WAYS
from docs.figures.optinc_averaging import ON_PAGE, ways_table, write_ways

#: Every combination of four codes of four bits, (4, 65536).
EVERY = np.array(list(product(range(16), repeat=4))).T
MEANS = EVERY.mean(axis=0)


@pytest.mark.parametrize("name", WAYS)
def test_codes_that_are_equal_come_back_but_with_a_constant(name: str) -> None:
    equal = (EVERY[0] == EVERY).all(axis=0)
    off = (WAYS[name](EVERY) - MEANS)[equal]
    assert set(off) == ({0.375} if name == "floor and a constant" else {0.0})


@pytest.mark.parametrize(
    ("name", "bias"),
    [
        ("exact mean of the codes", 0),
        ("dithered", 0),
        ("floor and a constant", 0),
        ("floor", -0.375),
    ],
)
def test_over_all_codes_nothing_but_the_floor_is_off(name: str, bias: float) -> None:
    off = WAYS[name](EVERY) - MEANS
    # of 65,536 draws of less than a step each
    assert off.mean() == pytest.approx(bias, abs=0.01)
    assert np.abs(off).max() < 1


def test_dithering_is_right_on_average_for_each_combination() -> None:
    """Four codes whose mean is 0 to 3 quarters of a step above a code, many times."""
    for last in range(4):
        codes = np.array([[7], [7], [7], [7 + last]]).repeat(20_000, axis=1)
        found = WAYS["dithered"](codes)
        assert set(found) <= {7.0, 8.0}
        assert found.mean() == pytest.approx(7 + last / 4, abs=0.015)


def outcome(ranks: int, **other: Any) -> dict[str, Any]:
    own = {"accuracy_percent": [54.0, 1.0], "loss_nats": [1.5, None]}
    over = {
        "accuracy_over_ring_points": [-0.25, 0.125],
        "loss_over_ring_nats": [0.0, 0.5],
    }
    seeds = {"of_seeds_points": [-0.5, 0.0], "of_seeds_nats": [-0.5, 0.5]}
    names = ["ring, float32", *(f"OptINC, 8 bits, {way}" for way in ON_PAGE)]
    rows = [{"what": name, "ranks": ranks, **own, **over, **seeds} for name in names]
    return {"model": "digits", "seeds": 10, "iterations": 1000, "plain": rows, **other}


def test_the_table_has_every_way_and_the_ring(tmp_path: Path) -> None:
    assert set(ON_PAGE) == {"nearest", *WAYS}
    page = tmp_path / "page.md"
    page.write_text("Before.\n<!-- ways -->\nold\n<!-- end of ways -->\nAfter.\n")
    files = [tmp_path / f"{ranks}.json" for ranks in (4, 8)]
    for ranks, file in zip((4, 8), files, strict=True):
        file.write_text(json.dumps(outcome(ranks)))
    write_ways(page, files)
    text = page.read_text()
    assert text.startswith(
        "Before.\n<!-- ways -->\n| digits, averaged by | N = 4: accuracy, points | loss |"
    )
    cells = "−0.25 ± 0.12 | +0.00000 ± 0.50000"
    assert f"| nearest (the product) | {cells} | {cells} |" in text
    assert "54.00 ± 1.00 % and 1.5000 with N = 8. 10 seeds, 1,000 iterations." in text
    apart = "+0.00 ± 0.00 | +0.00000 ± 0.00000"
    assert f"| dithered minus nearest, seed by seed | {apart} | {apart} |" in text
    assert text.endswith("\n<!-- end of ways -->\nAfter.\n")
    write_ways(page, files)
    assert page.read_text() == text


def test_outcomes_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="digits: of different seeds and iterations"):
        ways_table([outcome(4), outcome(8, seeds=3)])
    with pytest.raises(KeyError, match="nearest"):
        ways_table([outcome(4), {**outcome(8), "plain": outcome(8)["plain"][:1]}])
    page = tmp_path / "page.md"
    page.write_text("Nothing.")
    with pytest.raises(ValueError, match="0 blocks of ways"):
        write_ways(page, [])
