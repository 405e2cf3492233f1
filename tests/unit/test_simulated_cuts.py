"""Links that are cut and restored in a simulation: what TCP makes of that, and what a job says."""

from __future__ import annotations

import pytest

from ringlight.experiments.language.expand import parse
from ringlight.experiments.record.events import JobState, Record
from tests.simulated import records_of

#: One GPU at each of two leaves: a ring over the only spine, or one of several.
LEAVES = """
name: leaves
description: Two leaves.
fabric: {{leaf_spine: {{leaves: 2, spines: {spines}, gpus_per_leaf: 1, rate: 10 Gbit/s, queue: 20 ms, gpu: a}}}}
training: {{model: resnet50, compute: 100 ms, batch: 4, iterations: 4}}
tcp: {{rto_min: 200 ms, headers: false}}
costs: {{latency: 0 s}}
arms: {{base: {{events: [{events}]}}}}
"""
LINK = "link leaf0 spine0"


def ran(*events: str, spines: int = 1) -> list[Record]:
    text = LEAVES.format(spines=spines, events=", ".join(events))
    return records_of(parse(text, "leaves.yaml"))


def done_s(records: list[Record]) -> float:
    """When the job has ended."""
    return next(r.t for r in records if isinstance(r, JobState) and "SUCC" in r.state)


def at(time_ms: int, do: str) -> str:
    return f"{{when: {{at: {time_ms} ms}}, do: {do}}}"


def cut_for(begin_ms: int, end_ms: int, target: str = LINK) -> tuple[str, str]:
    cut = "lose" if target.startswith("nic") else "cut"
    return (
        at(begin_ms, f"{cut}, target: {target}"),
        at(end_ms, f"restore, target: {target}"),
    )


def test_tcp_tries_again_after_its_time_out_and_twice_as_long() -> None:
    # 200 ms, a queue of 20 ms, the same twice, and the delayed acknowledgement of 40 ms.
    lost_s = 3 * 0.22 + 0.04
    whole = done_s(ran())
    assert done_s(ran(*cut_for(140, 640))) == pytest.approx(whole + lost_s)
    assert done_s(ran(*cut_for(140, 640, "nic g1"))) == pytest.approx(whole + lost_s)


def test_a_switch_that_is_back_is_found_by_tcp_too() -> None:
    killed = ran(at(140, "kill, target: switch spine0, back_after: 500 ms"))
    assert done_s(killed) == pytest.approx(done_s(ran()) + 3 * 0.22 + 0.04)


def test_nobody_waits_who_sends_nothing_or_has_another_way() -> None:
    whole = done_s(ran())
    assert done_s(ran(*cut_for(10, 90))) == pytest.approx(whole)
    assert done_s(ran(*cut_for(140, 640), spines=2)) == pytest.approx(
        done_s(ran(spines=2))
    )


def test_a_way_that_opens_elsewhere_is_found_by_tcp_too() -> None:
    both = (at(140, f"cut, target: {LINK}"), at(140, "cut, target: link leaf0 spine1"))
    back = at(640, "restore, target: link leaf0 spine1")
    lost_s = 3 * 0.22 + 0.04
    assert done_s(ran(*both, back, spines=2)) == pytest.approx(
        done_s(ran(spines=2)) + lost_s
    )


def test_a_link_that_is_back_in_the_same_instant_was_never_away() -> None:
    assert done_s(ran(*cut_for(140, 140))) == pytest.approx(done_s(ran()))


def test_a_job_that_stands_still_names_its_way_and_the_cut_link() -> None:
    records = ran(at(140, f"cut, target: {LINK}"))
    (failed,) = [r for r in records if isinstance(r, JobState) and r.state == "FAILED"]
    assert failed.reason in (
        f"it stands still: no path from {a} to {b}: the link leaf0:2 spine0:1 is cut"
        for a, b in (("g0", "g1"), ("g1", "g0"))
    )
