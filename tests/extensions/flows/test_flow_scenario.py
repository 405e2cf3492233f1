"""Flows of a file as the jobs of a scenario: simulated together, and as the workers of an emulation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringlight.containers.image import ROOT
from ringlight.experiments.analysis.metrics import Context, table
from ringlight.experiments.analysis.prediction import Foretold
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import load
from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.record import lines
from ringlight.experiments.record.events import RunFailed
from ringlight.experiments.record.runs import Run, runs_of
from ringlight.experiments.runner.experiment import run_alone
from ringlight.extensions.flows.flow_file import SizedFlow, read_flows
from ringlight.extensions.flows.metrics import (
    apart,
    flow_ratios,
    flow_times,
    run_times_s,
)
from ringlight.extensions.flows.plan import flows_of
from ringlight.extensions.flows.records import FlowsCompleted
from ringlight.extensions.flows.runs import flows_run
from ringlight.extensions.flows.source import FLOWS, MOST_EMULATED
from ringlight.extensions.flows.transport import Transport
from ringlight.extensions.flows.ways import Ways
from ringlight.extensions.flows.workload import workload_of
from ringlight.fabric.paths import Router
from ringlight.fabric.topology import circuit_cross_connects, electrical_graph
from ringlight.fabric.trees import fat_tree
from ringlight.workloads.graph import Kind
from tests.unit.test_cli import one_line, ringlight

EXAMPLE = ROOT / "scenarios/examples/flows.yaml"
FULL, HALF = load(EXAMPLE).plans
ROTOR = "{kind: rotor, gpus: 4, gpu: g, rate: 40 Gbit/s, ports: 3, slot: 100 us, dark: 10 us"


def computed(plan: RunPlan) -> Run:
    (run,) = runs_of(flows_run(plan).compute(), [plan])
    return run


def as_workers(plan: RunPlan) -> Run:
    """Return the run of workers, simulated as the comparison with a measured run has it."""
    (run,) = runs_of(run_alone(SimulationBackend(), plan)[0], [plan])
    return run


def scenario(folder: Path, fabric: str, **changes: str) -> Path:
    (folder / "flows.csv").write_text((EXAMPLE.parent / "flows.csv").read_text())
    jobs = changes.get("jobs", "flows: {file: flows.csv}")
    lines = ["name: some", "description: Some.", f"fabric: {{{fabric}}}"]
    path = folder / "some.yaml"
    path.write_text("\n".join([*lines, f"jobs: {{{jobs}}}"]))
    return path


def test_packets_and_workers_give_the_example_alike_times():
    for plan in (FULL, HALF):
        packets, workers = run_times_s(computed(plan)), run_times_s(as_workers(plan))
        assert packets is not None
        assert workers is not None
        # Rates are shared alike; windows of frames make up the rest.
        assert packets == pytest.approx(workers, rel=0.15)


def test_figures_are_percentiles_of_all_flows_and_of_each_size():
    run = computed(FULL)
    figures = flow_times(Context(run, "simulated"))
    times_s = run_times_s(run)
    assert times_s is not None
    assert figures["flow_time_median"] == np.median(times_s)
    small = [n for n, flow in enumerate(flows_of(FULL).flows) if flow.size_bytes < 1e8]
    assert figures["flow_time_p99.ten_mb"] == np.percentile(times_s[small], 99)
    assert flow_times(Context(run, "simulated")).keys().isdisjoint(["flow_time_p99.gb"])


def test_a_flow_unlike_its_simulation_is_counted():
    run = as_workers(FULL)
    packets = flows_run(FULL).compute()

    def context(other: Run) -> Context:
        return Context(run, "measured", lambda _: Foretold(other, computed=packets))

    assert apart(context(run)) == {"flows_apart": 0}
    ratios = flow_ratios(context(run))
    assert ratios["flow_time_ratio_least"] == ratios["flow_time_ratio_most"] == 1
    assert 0.85 < ratios["flow_time_packet_ratio_least"] <= 1
    # Of the other arm two flows take longer.
    assert apart(context(as_workers(HALF)))["flows_apart"] > 0
    assert not apart(Context(run, "simulated"))
    assert not flow_ratios(Context(run, "simulated"))


def test_a_scale_changes_only_the_unit_of_time(tmp_path: Path):
    """Where packets are given, an emulated second is D times a real one."""
    text = EXAMPLE.read_text().replace(
        "{file: flows.csv}", "{file: flows.csv, packet: 1500 B, header: 64 B}"
    )
    (tmp_path / "flows.csv").write_text((EXAMPLE.parent / "flows.csv").read_text())
    scaled, real = tmp_path / "scaled.yaml", tmp_path / "real.yaml"
    scaled.write_text(text)
    real.write_text(text.replace("time: 64, payload: 100", "time: 1, payload: 1"))
    emulated_s, real_s = (
        run_times_s(computed(load(path).plans[0])) for path in (scaled, real)
    )
    assert emulated_s is not None
    assert real_s is not None
    assert emulated_s / 64 == pytest.approx(real_s)


def test_each_flow_is_a_message_after_its_start():
    flows = [
        SizedFlow("g2", "g0", 300, 0.5),
        SizedFlow("g0", "g2", 100, 0),
        SizedFlow("g0", "g2", 200, 0.25),
    ]
    workload = workload_of(flows, ("g0", "g2"))
    first, second = (workload.programs[n] for n in workload.program_of.tolist())
    kinds = [Kind(int(kind)).name for kind in first.kind]
    assert kinds == ["SEND", "COMPUTE", "SEND", "RECEIVE"]
    assert first.tag[first.kind == Kind.SEND].tolist() == [1, 2]
    assert first.seconds[1] == 0.25
    assert second.seconds[second.kind == Kind.COMPUTE].tolist() == [0.5]
    assert second.bytes[second.kind == Kind.RECEIVE].tolist() == [100, 200]
    # The second waits for its start, and flows of a pair have one stream.
    assert first.after.tolist() == [1]
    assert first.stream[0] == first.stream[2]


def test_rotors_carry_flows_by_slots_and_jobs_as_a_fluid(tmp_path: Path):
    slots = scenario(tmp_path, f"interconnect: {ROTOR}, model: slots}}")
    (plan,) = load(slots).plans
    run = computed(plan)
    (record,) = run.of(FlowsCompleted)
    assert len(record.times_s) == 9
    # 300 MB at 40 Gbit/s less the dark time take at least so long.
    assert record.times_s[2] > 300e6 * 8 / 40e9 / 0.9
    assert FLOWS.refused(plan, simulated=True) is None
    assert "only simulated" in str(FLOWS.refused(plan, simulated=False))


@pytest.mark.parametrize(
    ("fabric", "jobs", "part"),
    [
        (
            f"interconnect: {ROTOR}, model: fluid}}",
            "flows: {file: flows.csv}",
            "fabric.interconnect.model: fluid is for long transfers",
        ),
        (
            f"interconnect: {ROTOR}, model: slots}}",
            "a: {ranks: all, workload: {collective: all-reduce, size: 1 MB}}",
            "fabric.interconnect.model: slots are for flows",
        ),
        (
            "interconnect: {kind: ideal, gpus: 4, gpu: g, rate: 40 Gbit/s}",
            "flows: {file: flows.csv}",
            "fabric.interconnect.kind: ideal; flows pass packet switches or rotors",
        ),
        (
            "leaf_spine: {leaves: 1, spines: 1, gpus_per_leaf: 2, gpu: g, rate: 1 Gbit/s}",
            "flows: {file: flows.csv}",
            "jobs.flows.file: ",
        ),
        (
            "leaf_spine: {leaves: 1, spines: 1, gpus_per_leaf: 4, gpu: g, rate: 1 Gbit/s}",
            "flows: {file: flows.csv, header: 2 kB}",
            "jobs.flows: a header of 2000 bytes in a packet of 1500 bytes",
        ),
    ],
)
def test_what_cannot_carry_flows_or_jobs_is_one_line(
    tmp_path: Path, fabric: str, jobs: str, part: str
):
    done = ringlight("simulate", str(scenario(tmp_path, fabric, jobs=jobs)))
    assert done.returncode
    assert part in one_line(done)


def test_the_report_speaks_of_flows_and_not_of_jobs(tmp_path: Path):
    done = ringlight("simulate", str(EXAMPLE), "--runs", str(tmp_path))
    assert not done.returncode
    (page,) = tmp_path.glob("*/report.html")
    html = page.read_text()
    assert "Job completion time runs" not in html
    assert "10 MB to 100 MB" in html
    (drawing,) = tmp_path.glob("*/plots/flows.svg")
    labels = re.findall(r"<text[^>]*>([^<]*)</text>", drawing.read_text())
    assert {"50 MB", "100 MB", "200 MB", "500 ms", "1 s", "2 s"} <= set(labels)


def test_more_flows_than_workers_send_are_only_simulated(tmp_path: Path):
    fabric = (
        "leaf_spine: {leaves: 1, spines: 1, gpus_per_leaf: 4, gpu: g, rate: 1 Gbit/s}"
    )
    path = scenario(tmp_path, fabric)
    rows = ["g0,g1,100,0"] * (MOST_EMULATED + 1)
    (tmp_path / "flows.csv").write_text(
        "\n".join(["source,destination,bytes,start_s", *rows])
    )
    (plan,) = load(path).plans
    assert not plan.jobs
    assert "workers send up to" in str(FLOWS.refused(plan, simulated=False))
    assert not computed(plan).of(RunFailed)


def test_ways_behind_the_same_switches_are_those_of_the_router():
    """Looked up once for a pair of switches, each pair's way begins and ends with its own links."""
    fabric = fat_tree(4, 10e9).fabric()
    ways = Ways(fabric, Transport())
    router = Router(
        fabric, electrical_graph(fabric, circuit_cross_connects(fabric, ()))
    )
    rates: list[Any] = []
    for source in fabric.gpus:
        for destination in fabric.gpus:
            if source == destination:
                continue
            way = ways.way(source, destination)
            assert len(way.hops) == len(router.path(source, destination))
            (link,) = way.hops[0]
            for hop in way.hops[1:]:
                assert set(way.after(link)) <= hop.keys()
                link = way.after(link)[-1]
            assert not way.after(link)
            rates.append((*way.hops[0], *way.hops[-1]))
    # Each GPU has one link to its switch, and one from there.
    assert len({first for first, _ in rates}) == len(fabric.gpus)
    assert len({last for _, last in rates}) == len(fabric.gpus)


def test_the_file_of_the_example_is_read():
    flows = read_flows(EXAMPLE.parent / "flows.csv", FULL.setting.fabric.gpus)
    assert len(flows) == 9
    document = FLOWS.document(FULL)
    assert FLOWS.line(document) == "9 flows of 1.2 GB in all, which start within 0.06 s"


def test_the_page_lists_every_metric_and_record():
    """To bring it up to date, put what both ``table`` give in place of its tables."""
    page = (ROOT / "docs" / "flows.md").read_text()
    assert f"\n{table('ringlight.extensions.flows')}" in page
    assert f"\n{lines.table('ringlight.extensions.flows.records')}" in page
