"""The table of a collective's times: its figures, its sizes, its ranks, and what the command refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ringlight.experiments.record.lab_records import LinkRate
from ringlight.extensions.bench.measuring import (
    bench_plan,
    checked,
    measured,
    parse_sizes,
    slow_links,
)
from ringlight.fabric.kinds import KINDS, bus_factor
from ringlight.workloads.graph import Collective
from tests.unit.test_choosing import ARMS, RATE, SWEPT
from tests.unit.test_cli import BUNDLED, one_line, ringlight
from tests.unit.test_simulated_workloads import STAGES, experiment, simulated


def test_the_table_of_a_ring_is_the_formulas() -> None:
    (plan,) = experiment(f"llm: {{ranks: all, workload: {STAGES}}}").plans
    sizes = parse_sizes("1MiB..64MiB", 4)
    assert sizes == (1 << 20, 1 << 22, 1 << 24, 1 << 26)
    made = bench_plan(plan, Collective("all-reduce", "ring"), sizes, 3)
    records = simulated(made)
    for one in measured(made, records, sizes, 3):
        assert one.busbw_bps == pytest.approx(25e9, rel=1e-3)
        assert one.algbw_bps == pytest.approx(25e9 * 4 / 6, rel=1e-3)
        assert one.time_s == pytest.approx(8 * one.size_bytes / one.algbw_bps)
    assert checked(records) is None
    assert slow_links(records) == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_table(kind: str) -> None:
    (plan,) = experiment(f"llm: {{ranks: all, workload: {STAGES}}}").plans
    made = bench_plan(plan, Collective(kind), (1 << 20,), 1)
    (one,) = measured(made, simulated(made), (1 << 20,), 1)
    assert one.busbw_bps == pytest.approx(one.algbw_bps * bus_factor(kind, 4))
    assert 0 < one.busbw_bps < 25e9 * (1 + 1e-6)


@pytest.mark.parametrize(
    ("text", "factor", "message"),
    [
        ("64", 2, "is not a size"),
        ("4MiB..1MiB", 2, "no smaller"),
        ("0 B", 2, "above 0"),
        ("1KiB..1GiB", 1.0, "must be above 1"),
        ("1KiB..1GiB", 1.01, "more than 64 sizes"),
    ],
)
def test_sizes_that_cannot_be_are_told(text: str, factor: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_sizes(text, factor)


def test_a_link_below_its_rate_is_slow() -> None:
    rate = LinkRate(
        t=0.0,
        fabric="f",
        link="g0 - tor0:1",
        direction="g0 to tor0",
        set_bps=1e6,
        measured_bps=9e5,
    )
    slow = replace(rate, measured_bps=5e5)
    assert slow_links([rate, slow]) == [slow]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (
            [str(BUNDLED), "--dask", "tls://h:1", "--simulate"],
            "--dask: not with --simulate",
        ),
        ([str(BUNDLED), "--hosts", "2", "--simulate"], "--hosts: not with --simulate"),
        ([str(BUNDLED), "--hosts", "2"], "--hosts: only with --dask"),
        (["nowhere.yaml", "--simulate"], "ringlight: nowhere.yaml: cannot be read"),
    ],
)
def test_wrong_input_is_one_line(arguments: list[str], part: str) -> None:
    done = ringlight("bench", *arguments)
    assert done.returncode == 2
    assert part in one_line(done)


def test_it_takes_a_point_and_values_in_place_of_the_file_s(tmp_path: Path) -> None:
    file = tmp_path / "swept.yaml"
    file.write_text(SWEPT)
    # Where there is no such place no lab comes up, should the choice get lost.
    said = one_line(
        ringlight("bench", str(file), "--point", "nix", "--rest", "nowhere")
    )
    assert f"{file}: there is no point nix; there are base-1" in said
    said = one_line(
        ringlight("bench", str(file), "--set", "nix=1", "--rest", "nowhere")
    )
    assert f"{file}: --set nix: unknown key" in said


def test_a_bench_says_its_arm_and_its_ranks_in_their_order(tmp_path: Path) -> None:
    file = tmp_path / "swept.yaml"
    file.write_text(
        SWEPT + ARMS + "jobs: {a: {ranks: [g0, g2]}, b: {ranks: [g1, g3]}}\n"
    )
    bench = ("bench", str(file), "--simulate", "--sizes", "1MiB", "--arm", "tree")
    done = ringlight(*bench)
    assert done.returncode == 0, done.stderr
    first, second, *_ = done.stdout.splitlines()
    where = f"arm tree-1 ({RATE} = 10 Gbit/s, training.iterations = 1) on fabric"
    assert first == f"all-reduce by ring, {where}; one of 8, choose with --point"
    assert (
        second
        == "4 ranks in this order: g0 g2 g1 g3 (the order of jobs a, b; another with --ranks)"
    )
    other = ringlight(*bench, "--ranks", "g3,g2,g0,g1")
    assert other.stdout.splitlines()[1] == "4 ranks in this order: g3 g2 g0 g1"

    def busbw(*more: str) -> float:
        found = json.loads(ringlight(*bench, "--json", *more).stdout)
        assert found["arm"] == "tree"
        return float(found["sizes"][0]["busbw_bps"])

    # In the jobs' order two transfers share each direction of the links between the leaves.
    narrow = ("--set", "fabric.leaf_spine.uplink_rate=10 Gbit/s")
    assert busbw(*narrow) == pytest.approx(
        busbw(*narrow, "--ranks", "g0,g1,g2,g3") / 2, rel=0.01
    )


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ("g0,g9", "--ranks: there is no GPU 'g9'; there are g0, g1, g2, g3"),
        ("g0,g0", "--ranks: GPU g0 is named twice"),
        ("g0", "--ranks: a collective needs at least 2 GPUs"),
    ],
)
def test_wrong_ranks_are_one_line(ranks: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "swept.yaml"
    file.write_text(SWEPT)
    done = ringlight("bench", str(file), "--simulate", "--ranks", ranks)
    assert done.returncode == 2
    assert said in one_line(done)
