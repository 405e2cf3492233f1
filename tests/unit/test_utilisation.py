"""Definitions of GPU utilisation, and which of them agree with what is published."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.experiments.analysis.metrics.utilisation import activity
from ringlight.fabric.utilisation import (
    DEFINITIONS,
    Activity,
    mean_share,
    waiting_counted,
)
from tests.simulated import analysed, the

share = st.floats(0.02, 0.98)


def gpu(
    compute_s: float, exchange_s: float, n: int = 10, window_s: float = 1e3
) -> Activity:
    """One that computes and exchanges n times; bytes at the full rate take a tenth of the exchange."""
    spans = [(compute_s, exchange_s, 0.8 * exchange_s)] * n
    total_s = n * (compute_s + exchange_s)
    return replace(activity(spans, 0.1 * exchange_s, total_s), window_s=window_s)


def test_each_definition_counts_what_it_says() -> None:
    did = [gpu(0.3, 0.7)]
    found = {
        name: mean_share(definition, did) for name, definition in DEFINITIONS.items()
    }
    assert found == pytest.approx(
        {
            "compute": 0.3,
            "full_rate": 0.37,
            "overlap": 0.3 / 0.7,
            "moving": 0.3 + 0.56,
            "collective": 1.0,
            "window": 3.0 / 1e3,
        }
    )


def test_the_mean_is_over_gpus() -> None:
    assert mean_share(
        DEFINITIONS["compute"], [gpu(0.2, 0.8), gpu(0.6, 0.4)]
    ) == pytest.approx(0.4)


@given(
    work_s=st.floats(0.01, 1),
    slow=st.floats(1.5, 10),
    quick=st.floats(1.0, 1.4),
    faster=share,
)
def test_what_counts_the_same_work_shows_the_speed_up(
    work_s: float, slow: float, quick: float, faster: float
) -> None:
    """However unequal the GPUs are: some compute for a part of the time and wait for the slowest."""
    mixed = [work_s, faster * work_s]
    runs = [[gpu(w, times * work_s - w) for w in mixed] for times in (slow, quick)]
    before, after = (
        {name: mean_share(of, did) for name, of in DEFINITIONS.items()} for did in runs
    )
    assert after["compute"] / before["compute"] == pytest.approx(slow / quick)
    assert after["collective"] / before["collective"] == pytest.approx(1.0)


@given(before=share, ratio=st.floats(1.1, 5), counted=st.floats(0, 1))
def test_the_share_of_waiting_that_counts_is_found_again(
    before: float, ratio: float, counted: float
) -> None:
    after = min(0.99, before * ratio)
    low, high = (u + counted * (1 - u) for u in (before, after))
    if after / before > 1.01:
        assert waiting_counted(before, after, high / low) == pytest.approx(
            counted, abs=1e-6
        )


ARMS = """
arms: {fragmented: {jobs.red.ranks: [g0, g3, g1, g4]}, regrouped: {jobs.red.ranks: [g0, g1, g2]}}
paper: {citation: Doe}
compare: {baseline: fragmented, metrics: [jct, gpu_utilisation]}
published:
  - {arm: regrouped, over: fragmented, metric: gpu_utilisation, range: [%s], words: so much}
"""


@pytest.fixture(scope="module")
def gain() -> float:
    """By how much the GPUs of the second arm are better used."""
    return float(
        the(
            analysed(ARMS % "1, 1").rows,
            "gpu_utilisation.compute_ratio",
            arm="regrouped",
        )
    )


@pytest.mark.parametrize(
    ("least", "most", "counted"),
    [(1.1, 1.2, None), (1.2, 0.9, None), (0.9, 1.1, (0.0, 1.0)), (0.5, 0.6, None)],
)
def test_which_definitions_agree_and_how_much_waiting_must_count(
    gain: float, least: float, most: float, counted: Any
) -> None:
    """``least`` of 1 and more, and all of ``most``, are shares of the gain of computing alone."""
    low, high = (
        least if least < 1 else least * gain,
        most * gain if most > 1 else most,
    )
    if low > high:
        low, high = 1 + 0.25 * (gain - 1), 1 + 0.5 * (gain - 1)
    rows = analysed(ARMS % f"{low}, {high}").rows
    agrees = the(rows, "gpu_utilisation.compute_ratio_agrees", arm="regrouped")
    assert agrees is (low <= gain <= high)
    found = [row for row in rows if row.metric.startswith("waiting_counted")]
    if counted is not None:
        assert [row.value for row in found] == [
            pytest.approx(share) for share in counted
        ]
    elif low > gain or high < 1:
        assert found == []
    else:
        before, after = (
            the(rows, "gpu_utilisation.compute", arm=arm)
            for arm in ("fragmented", "regrouped")
        )
        for row, wanted in zip(found, (high, low), strict=True):
            said = (after + row.value * (1 - after)) / (
                before + row.value * (1 - before)
            )
            assert said == pytest.approx(wanted)
    assert {row.label for row in found} <= {"analytic"}


def test_nothing_is_claimed_where_nothing_is_published() -> None:
    rows = analysed(
        ARMS.partition("paper:")[0] + "compare: {baseline: fragmented}\n"
    ).rows
    assert not [
        row for row in rows if "agrees" in row.metric or "waiting" in row.metric
    ]
