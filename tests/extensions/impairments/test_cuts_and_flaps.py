"""A link that is cut and restored is, to a job, one that has flapped."""

from __future__ import annotations

import pytest

from tests.unit.test_simulated_cuts import LINK, at, cut_for, done_s, ran


# In the middle of an all-reduce; before one, which finds no way; and twice as long.
@pytest.mark.parametrize(("begin", "end"), [(140, 640), (50, 300), (140, 1240)])
def test_data_waits_for_tcp_after_a_cut_as_it_does_after_a_flap(
    begin: int, end: int
) -> None:
    down = f"impairments: {{flap: {{down: {end - begin} ms, up: 100 s}}}}"
    flapped = done_s(ran(at(begin, f"impair, target: {LINK}, {down}")))
    cut = done_s(ran(*cut_for(begin, end)))
    assert cut == pytest.approx(flapped)
    # Whoever has something to send waits for longer than the link is away.
    assert cut > done_s(ran()) + (end - max(begin, 100)) / 1e3 + 0.05
