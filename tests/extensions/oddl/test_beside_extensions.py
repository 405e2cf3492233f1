"""Grids beside what other extensions add, each where it is installed."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import load
from ringlight.experiments.record.events import Record
from ringlight.experiments.record.light_records import Flow
from ringlight.experiments.runner.command import carry_out_experiment
from ringlight.testbed.emulation.attached import Attached
from ringlight.testbed.emulation.onic.tables import Transmitter
from ringlight.testbed.lab import Lab
from tests.extensions.oddl.fabrics import grid_fabric
from tests.unit.test_cli import ROOT

SQUARE = "fabric: {grids: {n: {rows: 2, columns: 2, gpu: t, rate: 4 Gbit/s, wavelengths: 2}}}\n"


def module_of(name: str) -> Any:
    """Return a module among another extension's tests; the test is skipped where that is not installed."""
    extension, _, _ = name.partition(".")
    pytest.importorskip(f"ringlight.extensions.{extension}")
    return importlib.import_module(f"tests.extensions.{name}")


def test_containers_are_refused_where_light_is_asked_for() -> None:
    module_of(
        "own_containers.test_own_containers"
    ).check_refused_where_a_rank_does_not_reach_every_other(
        SQUARE, "all", "on grid n a GPU has light for one flow at a time"
    )


@pytest.mark.parametrize("jobs", ["PAIR", "TRAINED"])
def test_a_job_beside_a_grid_has_no_figures_of_its_light(jobs: str) -> None:
    containers = module_of("own_containers.test_own_containers")
    containers.check_no_figures_of_light(SQUARE, getattr(containers, jobs))


def test_averagers_do_not_stand_beside_o_nics() -> None:
    optinc = module_of("optinc.test_averagers")
    grid = {"rows": 2, "columns": 2, "gpu": "m", "rate": optinc.RATE}
    with pytest.raises(
        ValueError, match="averagers: their servers have NICs for packets"
    ):
        optinc.built({**optinc.one_level(), "grids": {"n": grid}})


def test_traces_are_replayed_on_it(tmp_path: Path) -> None:
    grid = "grids: {g: {rows: 4, columns: 8, gpu: g, rate: 10 Gbit/s}}"
    module_of("cluster.test_cluster_scenario").check_replayed_on(grid, (32,), tmp_path)


def test_its_light_is_called_by_its_port_and_colour_and_a_job_makes_some() -> None:
    module_of("console.test_console_light").check_light_is_called_by_its_port_and_colour_and_a_job_makes_some(
        {"grids": {"n": {"rows": 2, "columns": 2, "gpu": "t", "rate": "1 Gbit/s"}}},
        "n0", "n1", Transmitter(0, 3), "n0:0 λ3 into n-r0:1", "n0,n1",
    )  # fmt: skip


def test_on_a_grid_light_is_asked_for_as_a_worker_does(tmp_path: Path) -> None:
    console = module_of("console.test_console_light")
    light_echoes = console.light_echoes
    fabric = grid_fabric(2, 2)
    places = {gpu: {"directory": str(tmp_path / gpu)} for gpu in ("n0", "n1")}
    lab = Attached(Lab("zz9z"), {"onics": places}, fabric, None, None)
    with console.agents(tmp_path, "n0", "n1") as made:
        with pytest.raises(
            light_echoes.NoLight,
            match="no light leads from n0 to n1 now; a job makes some",
        ):
            light_echoes.light_between(lab, "n0", "n1")
        for gpu, peer in (("n0", "n1"), ("n1", "n0")):
            host, port = made[peer].address
            entry = {"port": 0, "wavelength": 3, "agent": f"{host}:{port}"}
            console.tell(tmp_path, gpu, {fabric.gpus[peer].ip: entry})
        found = light_echoes.light_between(lab, "n0", "n1")
        assert found.transmitters == (Transmitter(0, 3),)
        with light_echoes.asked_for(lab, found) as waited_s:
            assert waited_s > 0
            assert made["n0"]._lasers.read()[0] == 3
        with pytest.raises(light_echoes.NoLight):
            light_echoes.light_between(lab, "n0", "n3")


@pytest.mark.parametrize(
    ("file", "work_s", "bursts_s"),
    [
        # Four exchanges of four ranks, a message 420 µs of one of two processors.
        ("oddl_4.yaml", 4 * 4 * 420e-6 / 2, 0.0),
        # Four times a frame of 9,014 bytes, at 100 Gbit/s over 4 * 800.
        ("examples/two_jobs_grid.yaml", 4 * 4 * 420e-6 / 2, -4 * 8 * 9014 / 31.25e6),
    ],
)
def test_what_steps_take_besides_their_bytes(
    file: str, work_s: float, bursts_s: float
) -> None:
    module_of("crosscheck.test_blind").check_besides_bytes(file, work_s, bursts_s)


def test_light_that_comes_later_is_counted_by_iteration(tmp_path: Path) -> None:
    crosscheck = module_of("crosscheck.test_crosscheck")
    short = crosscheck.trimmed(load(ROOT / "scenarios/oddl_4.yaml"), ["oddl"], 2)
    ours = crosscheck.side(
        carry_out_experiment(short, SimulationBackend(), tmp_path)[0].path
    )
    (run,) = ours.runs
    flows, ranks = len(run.of(Flow)), len(run.jobs["train"].gpus)

    def later(record: Record) -> Record:
        lit = isinstance(record, Flow) and record.t_lit is not None
        return replace(record, t_lit=record.t_lit + 0.002) if lit else record  # type: ignore[attr-defined,call-arg]

    entry = crosscheck.entry_of(
        crosscheck.crosscheck(crosscheck.altered(ours, later), ours), run.name, "train"
    )
    assert entry["causes"]["light_by"] == "agents"
    assert entry["causes"]["set_up_s"] == pytest.approx(0.002 * flows / ranks / 2)
    assert entry["causes"]["rest_s"] == pytest.approx(
        -entry["causes"]["set_up_s"], abs=1e-3
    )
