"""The study of when light that is set for phases or steps pays: its verdicts, and a small case."""

from __future__ import annotations

import pytest

from benchmarks.phases_study import Case, fastest, pays_up_to, row

DARK_S = (1e-6, 1e-3, 1e-1)
FOUND = {"static": 3.0, "regrouped": 2.0, "phases": [1.5, 1.9, 9.0], "steps": [1.0, 2.1, 99.0]}


def test_the_fastest_and_how_long_each_pays() -> None:
    assert [fastest(FOUND, at) for at in range(3)] == ["steps", "phases", "regrouped"]
    # Of equals the simplest.
    assert fastest(FOUND | {"static": 1.0}, 0) == "static"
    assert pays_up_to(FOUND, "phases", DARK_S) == 1e-3
    assert pays_up_to(FOUND, "steps", DARK_S) == 1e-6
    assert pays_up_to(FOUND | {"regrouped": 0.5}, "steps", DARK_S) is None


@pytest.mark.parametrize("model", ["llama2-7b", "mixtral-8x7b"])
def test_longer_dark_times_never_make_an_iteration_shorter(model: str) -> None:
    found = row(Case(model, 16, 64), DARK_S)
    for name in ("phases", "steps"):
        assert found[name] == sorted(found[name])
    # Light that takes no time is at least as good for the present phase as light for all.
    assert found["steps"][0] < found["phases"][0] < found["regrouped"] < found["static"]
    assert found["layer_bytes"] == (524_288 if model == "llama2-7b" else 1_048_576)
