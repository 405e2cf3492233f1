"""What ``benchmarks/controllers.py`` makes of pings and of runs."""

from __future__ import annotations

from typing import Any

from benchmarks.controllers import Echoes, back, medians, read_echoes, same_light, table

SAID = """PING 10.82.0.2 (10.82.0.2) 56(84) bytes of data.
[1000.100000] 64 bytes from 10.82.0.2: icmp_seq=1 ttl=64 time=0.020 ms
[1000.400000] 64 bytes from 10.82.0.2: icmp_seq=7 ttl=64 time=0.021 ms
From 10.82.0.1 icmp_seq=8 Destination Host Unreachable
[1000.450000] 64 bytes from 10.82.0.2: icmp_seq=9 ttl=64 time=0.021 ms

--- 10.82.0.2 ping statistics ---
10 packets transmitted, 3 received, 70% packet loss, time 450ms
"""


def test_answers_are_counted_from_when_light_had_moved_and_the_last_ping_may_be_under_way() -> (
    None
):
    echoes = read_echoes("g0", "g1", SAID, offset_s=900.0)
    assert sorted(echoes.at) == [1, 7, 9]
    assert round(echoes.back_s(100.2) or 0.0, 6) == 0.2
    assert echoes.back_s(100.5) is None
    assert echoes.lost == 6


def test_one_pair_without_an_answer_is_no_answer_of_all() -> None:
    never = Echoes("g0", "g1", {1: 99.0}, 11)
    again = Echoes("g0", "g2", {1: 99.0, 2: 100.5}, 2)
    assert back([never, again], 100.0, "pairs", "pings") == {
        "pairs_s": None,
        "pings_lost": 10,
    }
    assert back([again], 100.0, "pairs", "pings") == {"pairs_s": 0.5, "pings_lost": 0}


def test_the_table_has_the_worst_beside_the_median_and_light_that_differs_is_seen() -> (
    None
):
    def arm(name: str, circuits: Any, *listener_s: float | None) -> dict[str, Any]:
        figures = (
            "regroup_s",
            "dark_s",
            "told_s",
            "usual_s",
            "longest_s",
            "blackout_s",
            "pairs_s",
        )
        rest = dict.fromkeys(figures, 0.05) | dict.fromkeys(
            ("beacons_lost", "pings_lost", "listener_lost"), 4
        )
        runs = [
            {"moves": [], "circuits": circuits, **rest, "listener_s": one}
            for one in listener_s
        ]
        return {"arm": name, "runs": runs, **medians(runs)}

    lit = [["g0", "p0:1"]]
    arms = [arm("ringlight", lit, 0.03, 0.02, 0.01), arm("none", lit, 0.5, None, 0.4)]
    said = table(arms, 10.0)
    assert "| 20 ms (30 ms) | 500 ms (not in 10 s) |" in said
    assert "| 50 ms | 50 ms |" in said
    assert same_light(arms)
    assert not same_light([*arms, arm("faucet", [["g0", "p0:2"]], 0.1)])
