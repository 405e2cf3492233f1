"""What divided light carried, from what workers and O-NICs counted; and the bytes that it is held against."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ringlight.experiments.analysis.result import analyse
from ringlight.experiments.analysis.rows import where
from ringlight.experiments.language.expand import Experiment, parse
from ringlight.experiments.record.events import Record, RunStarted, WorkerDone
from ringlight.experiments.record.lab_records import ProcessEnded
from ringlight.experiments.record.light_records import LightCounters
from ringlight.extensions.sip_ml.records import Divisions, LightDecisions
from ringlight.fabric.algorithms import steps_named
from ringlight.workloads.traffic import delivered, delivered_in_steps, sent
from tests.simulated import records_of, the

DIVIDED = """
name: divided
description: Four GPUs over three optical switches.
scale: {time: 10, payload: 10}
fabric: {interconnect: {kind: parallel-ocs, gpus: 4, gpu: a100, rate: 30 Gbit/s, switches: 3}}
jobs: {train: {ranks: all, workload: {collective: all-to-all, size: 4 MB, iterations: 2}}}
"""
#: By (sender, receiver): the light's figures of a run, which a test may spoil.
Counts = dict[str, dict[tuple[int, int], int]]


def _kernel(found: Experiment, counts: Counts | None) -> dict[str, Any]:
    """As the testbed tells it: 100 bytes before the run, on port 0 to everybody."""
    gpus = found.plans[0].setting.fabric.gpus
    ips = [gpu.ip for gpu in gpus.values()]

    def count(name: str, pair: tuple[int, int]) -> int:
        return 100 + (counts[name][pair] if counts else 0)

    onics = {}
    for rank, gpu in enumerate(gpus):
        others = [other for other in range(len(ips)) if other != rank]
        path = {"port": 0, "wavelength": None, "packets": 1, "bytes": 1}
        onics[gpu] = {
            "lightpaths": {
                "peers": [
                    {
                        "peer": ips[o],
                        "fresh": count("fresh", (rank, o)),
                        "resent": count("resent", (rank, o)),
                    }
                    for o in others
                ],
                "sent": [
                    {"peer": ips[o], **path, "payload": count("taken", (rank, o))}
                    for o in others
                ],
                "received": [
                    {"peer": ips[o], **path, "payload": count("given", (o, rank))}
                    for o in others
                ],
            }
        }
    return {"onics": onics, "switches": {}, "totals": {}}


def _rows(spoil: Callable[[Counts], None], *, restarted: bool = False) -> Any:
    found = parse(DIVIDED, "divided.yaml")
    workload = found.plans[0].jobs[0].workload
    assert workload is not None
    to_send = delivered(workload, 2)
    pairs = [(i, j) for i in range(4) for j in range(4) if i != j]
    told = {pair: int(to_send[pair]) for pair in pairs}
    counts: Counts = {
        "payload": dict(told),
        "resent": dict.fromkeys(pairs, 0),
        **{
            name: {pair: told[pair] + 17 for pair in pairs}
            for name in ("fresh", "taken", "given")
        },
    }
    spoil(counts)

    def with_light() -> Iterator[Record]:
        for record in records_of(found):
            yield record
            if isinstance(record, RunStarted):
                said: dict[str, Any] = {"t": record.t, "run": record.run}
                for moment, now in (("before", None), ("after", counts)):
                    yield LightCounters(
                        **said, moment=moment, kernel=_kernel(found, now), agents={}
                    )
                for rank in range(4):
                    light = {
                        str(j): [counts["payload"][i, j], 17]
                        for i, j in pairs
                        if i == rank
                    }
                    yield WorkerDone(**said, job="train", rank=rank, light=light)
                yield Divisions(**said, job="train", decisions=2, dark_s=0.5)
                made = [
                    {
                        f"{part}_s": s
                        for part in ("read", "decide", "hold", "write", "dark")
                    }
                    for s in (1.0, 3.0)
                ]
                yield LightDecisions(**said, job="train", decisions=made)
                if restarted:
                    death = {
                        "kind": "controller",
                        "name": "controller",
                        "how": "killed by SIGKILL",
                    }
                    yield ProcessEnded(**said, **death, planned=False)

    return analyse(found, list(with_light()), "measured").rows


def _wrong(spoil: Callable[[Counts], None]) -> int:
    return int(the(_rows(spoil), "light_bytes_wrong"))


def test_what_agrees_at_every_end_is_not_wrong() -> None:
    rows = _rows(lambda counts: None)
    assert the(rows, "light_bytes_wrong") == 0
    # Each of four GPUs sends a tenth of a quarter of 4 MB to three others, twice.
    assert the(rows, "light_payload") == 12 * 2 * 100_000
    assert the(rows, "light_framing") == 12 * 17
    assert the(rows, "light_resent") == 0
    assert the(rows, "lightpaths_used") == 12
    assert the(rows, "division_write") == 2.0
    assert the(rows, "divisions") == 2
    assert the(rows, "divisions_dark") == 0.5


def test_divisions_are_not_counted_where_a_controller_took_some_with_it() -> None:
    rows = _rows(lambda counts: None, restarted=True)
    assert the(rows, "light_bytes_wrong") == 0
    assert not where(rows, metric="divisions")
    assert not where(rows, metric="divisions_dark")


@pytest.mark.parametrize(
    ("name", "wrong"),
    # A worker's payload is held against the matrix and against what its O-NIC sent.
    [("payload", 8), ("fresh", 4), ("taken", 4), ("given", 4)],
)
def test_four_bytes_that_one_end_has_and_another_has_not_are_wrong(
    name: str, wrong: int
) -> None:
    for by in (4, -4):
        assert (
            _wrong(
                lambda counts, by=by: counts[name].update(
                    {(2, 1): counts[name][2, 1] + by}
                )
            )
            == wrong
        )  # type: ignore[misc]


def test_mistakes_of_two_pairs_do_not_make_up_for_each_other() -> None:
    def swap(counts: Counts) -> None:
        counts["given"][0, 1] += 4
        counts["given"][1, 0] -= 4

    assert _wrong(swap) == 8


def test_what_was_sent_again_is_told_apart() -> None:
    rows = _rows(lambda counts: counts["resent"].update({(0, 1): 1000}))
    assert the(rows, "light_resent") == 1000
    assert the(rows, "light_bytes_wrong") == 0


def test_nothing_is_said_of_light_that_nobody_counted() -> None:
    found = parse(DIVIDED, "divided.yaml")
    assert not where(
        analyse(found, records_of(found), "simulated").rows, metric="light_bytes_wrong"
    )


@pytest.mark.parametrize("size", [4, 400, 1_000_004])
@pytest.mark.parametrize("ranks", [3, 4, 7])
def test_whole_elements_sum_to_what_a_ring_sends(size: int, ranks: int) -> None:
    steps = steps_named("ring", ranks)
    found = delivered_in_steps(steps, size)
    assert (found % 4 == 0).all()
    assert found.sum() == 2 * (ranks - 1) * size
    # No pair is off its equal share by more than an element a step.
    assert np.abs(
        found - 2 * (ranks - 1) * size / ranks * (found > 0)
    ).max() <= 4 * len(list(steps))


def test_a_vector_that_is_no_whole_number_of_elements_is_refused() -> None:
    with pytest.raises(ValueError, match="1002 bytes are no whole number of float32"):
        delivered_in_steps(steps_named("ring", 4), 1002)


@pytest.mark.parametrize(
    "what",
    [
        "{collective: all-reduce, size: 1600 B}",
        "{collective: all-gather, size: 1600 B}",
        "{collective: all-to-all-v, size: 1600 B, split: {skew: 1, seed: 3}}",
        "{placed: resnet50, dp: 2, mp: 2, batch: 4, device: a100}",
    ],
)
def test_in_whole_elements_is_what_the_demand_is_in_parts_of_them(what: str) -> None:
    text = DIVIDED.replace("{collective: all-to-all, size: 4 MB, iterations: 2}", what)
    workload = (
        parse(text.replace("payload: 10}", "payload: 1}"), "d.yaml")
        .plans[0]
        .jobs[0]
        .workload
    )
    assert workload is not None
    whole = delivered(workload, 1)
    assert whole.sum() == pytest.approx(sent(workload).sum(), rel=1e-9)
    np.testing.assert_allclose(whole, sent(workload), rtol=0.02, atol=64)
