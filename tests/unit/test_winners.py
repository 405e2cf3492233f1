"""Fabrics side by side on several workloads: what they are built of, and who wins where."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from matplotlib.figure import Figure

from ringlight.experiments.analysis.result import analyse
from ringlight.experiments.analysis.rows import Row
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import parse
from ringlight.experiments.record.events import Record, RunStarted
from ringlight.experiments.report.sections.maps import _map_of, winners
from ringlight.experiments.runner.experiment import choose, run_alone
from tests.unit.test_experiment_report import view_of_file

GPUS = "servers: {s: {gpus: {" + ", ".join(f"g{i}: a100" for i in range(8)) + "}}}"


def links(rate: str, *ends: tuple[str, str]) -> str:
    """Links of a rate, between these ends."""
    return ", ".join(f'{{ends: ["{a}", "{b}"], rate: {rate}}}' for a, b in ends)


def star(rate: str) -> str:
    """Eight GPUs on one packet switch."""
    ends = [(f"g{i}", f"p:{i + 1}") for i in range(8)]
    return f"{{{GPUS}, packet_switches: {{p: {{ports: 8}}}}, links: [{links(rate, *ends)}]}}"


def lit(rate: str) -> str:
    """The same, with an optical switch between each GPU and the packet switch."""
    ends = [(f"g{i}", f"o:{i + 1}") for i in range(8)] + [
        (f"p:{i + 1}", f"o:{i + 9}") for i in range(8)
    ]
    circuits = ", ".join(f'[g{i}, "p:{i + 1}"]' for i in range(8))
    return (
        f"{{{GPUS}, packet_switches: {{p: {{ports: 8}}}}, optical_switches: {{o: {{size: 16}}}}, "
        f"links: [{links(rate, *ends)}], circuits: [{circuits}]}}"
    )


TEXT = f"""
name: side-by-side
description: Four fabrics of eight GPUs, two workloads.
fabrics:
  ideal: {star("400 Gbit/s")}
  slow: {star("100 Gbit/s")}
  ocs: {lit("400 Gbit/s")}
  tree: {{leaf_spine: {{leaves: 2, spines: 2, gpus_per_leaf: 4, gpu: a100, rate: 400 Gbit/s}}}}
tcp: {{headers: false}}
costs: {{latency: 0 s}}
workloads:
  ring: {{collective: all-reduce, algorithm: ring, size: 64 MB}}
  exchange: {{collective: all-to-all, size: 64 MB}}
jobs: {{train: {{ranks: all, workload: ring}}}}
arms:
  slow: {{title: A slow switch, fabric: slow}}
  ideal: {{title: An ideal switch, fabric: ideal}}
  ocs: {{title: Light between, fabric: ocs}}
  tree: {{title: Leaves and spines, fabric: tree}}
sweep: {{jobs.train.workload: [ring, exchange]}}
compare: {{baseline: ideal, metrics: [iteration]}}
"""


def rows() -> list[Row]:
    experiment, backend = parse(TEXT, "side.yaml"), SimulationBackend()
    records: list[Record] = []
    for plan in choose(experiment, backend).plans:
        records += run_alone(backend, plan)[0]
    return analyse(experiment, records, "simulated").rows


def test_counts_of_parts_stand_beside_times() -> None:
    found = {
        (r.arm, r.metric): r.value for r in rows() if r.metric.endswith("_per_gpu")
    }
    assert found["ideal", "transceivers_per_gpu"] == 2
    assert found["ideal", "packet_switches_per_gpu"] == pytest.approx(1 / 8)
    assert found["ocs", "optical_ports_per_gpu"] == 2
    assert ("ideal", "optical_ports_per_gpu") not in found
    assert found["tree", "packet_ports_per_gpu"] == 1 + 2 * (2 * 2 / 8)
    assert found["tree", "transceivers_per_gpu"] == 2 + 2 * (2 * 2 / 8)


def test_the_map_has_ratios_to_the_best_and_dashes_for_what_is_missing() -> None:
    def all_but_one(records: list[Record]) -> list[Record]:
        (begun,) = [record for record in records if isinstance(record, RunStarted)]
        return (
            [] if (begun.arm, *begun.point.values()) == ("ocs", "exchange") else records
        )

    view = view_of_file(TEXT, "side.yaml", all_but_one)
    found = _map_of(view)
    assert found is not None
    assert found.workloads == ["ring", "exchange"]
    # In the order of what all ran, the ring: who failed at the other is not behind who is slower there.
    assert found.arms[-1] == "slow"
    assert "ocs" in found.arms[:3]
    ratios = {
        arm: [found.ratio(row, k) for k in range(2)]
        for row, arm in enumerate(found.arms)
    }
    assert ratios["ideal"] == pytest.approx([1.0, 1.0])
    assert ratios["slow"] == pytest.approx([4.0, 4.0])
    assert ratios["ocs"][0] == pytest.approx(1.0)
    assert ratios["ocs"][1] is None
    drawn = []

    def draw(
        name: str, caption: str, figure: Callable[..., Figure], *args: object
    ) -> str:
        drawn.append((name, caption, figure(*args)))
        return f"<img {name}>"

    shown = winners(view, draw)
    assert [name for name, _, _ in drawn] == ["winners"]
    assert "Iteration" in drawn[0][1]
    assert (
        shown.index("A slow switch")
        > shown.index("Light between")
        > shown.index("An ideal switch")
    )
    assert "(4.00)" in shown
    assert "optical ports" in shown


def test_what_is_no_map_of_workloads_has_none() -> None:
    assert (
        _map_of(view_of_file(TEXT.replace("[ring, exchange]", "[ring]"), "side.yaml"))
        is None
    )
    other = TEXT.replace(
        "jobs.train.workload: [ring, exchange]", "workloads.ring.size: [1 MB, 2 MB]"
    )
    assert _map_of(view_of_file(other, "side.yaml")) is None


SEARCHED = (
    TEXT.replace("algorithm: ring, size: 64 MB", "algorithm: $by, size: 64 MB")
    + """
parameters: {by: {value: ring, source: assumed, why: To be searched.}}
search: {along: parameters.by.value, metric: iteration}
"""
)
#: Two packet switches with four GPUs each, joined by a slow link.
NEAR = [(f"g{i}", f"p{i // 4}:{i % 4 + 1}") for i in range(8)]
SERVERS = (
    f"{{{GPUS}, packet_switches: {{p0: {{ports: 5}}, p1: {{ports: 5}}}}, "
    f"links: [{links('2.4 Tbit/s', *NEAR)}, {links('100 Gbit/s', ('p0:5', 'p1:5'))}]}}"
)


def test_each_fabric_has_its_best_collective_where_they_are_searched() -> None:
    by = "parameters.by.value: [ring, hierarchical-ring-group-4]"
    text = SEARCHED.replace(
        "{jobs.train.workload: [ring, exchange]}",
        f"""
      - over: {{jobs.train.workload: [ring], {by}}}
      - over: {{jobs.train.workload: [exchange], parameters.by.value: [ring]}}""",
    )
    text = text.replace(f"  slow: {star('100 Gbit/s')}", f"  slow: {SERVERS}")
    view = view_of_file(text, "side.yaml")
    found = _map_of(view)
    assert found is not None
    assert (found.metric, found.workloads) == ("iteration_best", ["ring", "exchange"])
    # 64 MB by a ring over eight GPUs, 2 * 7/8 of them at 100 Gbit/s; or 2 * 3/4 at 2.4 Tbit/s, and a fourth
    # part of each of four GPUs between the switches. Who is fast need not wait for the slow.
    ring_s, inside_s, between_s = (
        64e6 * 8 * 1.75 / 100e9,
        64e6 * 8 * 1.5 / 2.4e12,
        64e6 * 8 / 100e9,
    )
    times = {
        at.arm: at
        for line in found.times
        for at in line
        if at.point == {"jobs.train.workload": "ring"}
    }
    assert times["slow"].number("iteration_best") == pytest.approx(
        inside_s + between_s, rel=0.1
    )
    assert times["slow"].value("iteration_best_at") == "hierarchical-ring-group-4"
    # Where all pairs are alike the ring is as fast as any, and stands first.
    assert times["ideal"].number("iteration_best") == pytest.approx(ring_s / 4, rel=0.1)
    assert times["ideal"].value("iteration_best_at") == "ring"
    page = winners(view, lambda name, caption, figure, *args: str(figure(*args)) and "")
    assert "Iteration, and what each fabric is built of" in page
    assert "<td class=n>0.25</td>" in page, (
        "parts are counted where collectives are searched, too"
    )
