"""The models beside the claims of ODDL's journal paper, on sixteen nodes."""

from __future__ import annotations

import pytest

from benchmarks.oddl_claims import RATE_BPS, claims, packet_fabric


def test_leaves_are_oversubscribed_by_thin_or_by_few_uplinks() -> None:
    """Four leaves of four nodes: a leaf's uplinks together have half of what its nodes have, either way."""
    for kind, count, rate_bps in (("thin", 4, RATE_BPS / 2), ("few", 2, RATE_BPS)):
        fabric = packet_fabric(4, 2, kind)
        joined = [({link.a.node, link.b.node}, link) for link in fabric.links]
        uplinks = [
            link
            for ends, link in joined
            if "leaf0" in ends and ends & {f"spine{k}" for k in range(4)}
        ]
        assert [link.rate_bps for link in uplinks] == [rate_bps] * count
        assert sum(link.rate_bps for link in uplinks) == 4 * RATE_BPS / 2


def test_a_ring_in_order_pays_for_thin_uplinks_only() -> None:
    """One flow leaves each leaf: a full uplink carries it, one of half the rate takes twice as long."""
    found = claims(16)["fat_tree"]
    over = {name: entry["over_oddl"] for name, entry in found.items()}
    assert over[
        "leaf-spine 2:1 by thin uplinks, ring, ranks in order"
    ] == pytest.approx(2 * over["leaf-spine 1:1, ring, ranks in order"], rel=0.01)
    assert over["leaf-spine 2:1 by few uplinks, ring, ranks in order"] == pytest.approx(
        over["leaf-spine 1:1, ring, ranks in order"], rel=0.01
    )
    assert not any("8:1" in name for name in over), (
        "sixteen nodes have no leaf of eight"
    )
