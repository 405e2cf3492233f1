"""Jobs that execute traces, as a scenario file states them and a run folder keeps them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ringlight.containers.image import ROOT
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import load
from ringlight.experiments.record.folder import RunFolder, experiment_of
from ringlight.experiments.runner.command import carry_out_experiment, finish
from ringlight.extensions.chakra import writer
from tests.unit.workloads import canonical, many_kinds
from tests.workload_jobs import loaded, refusal, scenario

DATA = ROOT / "tests/extensions/chakra/data"
TRACE = [f"traces/all_reduce.{rank}.et" for rank in range(4)]


def with_traces(directory: Path) -> Path:
    """A directory with a trace of four ranks in it."""
    (directory / "traces").mkdir(parents=True, exist_ok=True)
    for file in DATA.glob("all_reduce.*"):
        shutil.copy(file, directory / "traces")
    return directory


@pytest.mark.parametrize(
    "named", ["traces", "traces/all_reduce", "traces/all_reduce.2.et", str(TRACE)]
)
def test_a_trace_is_named_by_its_directory_its_name_or_its_files(
    tmp_path: Path, named: str
) -> None:
    found = loaded(with_traces(tmp_path), f"{{files: {named}, iterations: 3}}")
    job = found.plans[0].jobs[0]
    assert found.files == tuple(TRACE)
    assert job.iterations == 3
    assert job.workload is not None
    assert job.workload.ranks == 4


def test_a_trace_is_as_emulated(tmp_path: Path) -> None:
    writer.write(many_kinds(), tmp_path / "many")
    path = scenario(tmp_path, "{files: many, device: a100, efficiency: 0.5}")
    path.write_text(
        path.read_text().replace("{time: 1, payload: 1}", "{time: 4, payload: 16}")
    )
    found = load(path)
    assert found.files == (
        *(f"many.{rank}.et" for rank in range(4)),
        "many.comm_group.json",
    )
    workload = found.plans[0].jobs[0].workload
    assert workload is not None
    program = workload.programs[0]
    seconds = dict(
        zip(
            [workload.names[n] for n in program.name],
            program.seconds.tolist(),
            strict=True,
        )
    )
    assert seconds["forward"] == pytest.approx(4 * 1.5e-3)
    assert seconds["backward"] == pytest.approx(4 * 2e9 / (0.5 * 312e12))
    assert sorted(program.bytes[program.kind == 1].tolist()) == [64, 4096, 1 << 18]


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        (
            "{files: traces/gone}",
            "workload.files: traces/gone: No such file or directory",
        ),
        (
            "{files: traces/all_reduce.9.et, groups: g.json}",
            "workload.files: g.json: No such file",
        ),
        (
            "{files: [traces, a.yaml]}",
            "workload.files: a.yaml: it is no file of the trace of traces",
        ),
        ("{files: [traces, .]}", "workload.files[1]: '.' is not below the directory"),
        (
            "{files: x, groups: ../g.json}",
            "workload.groups: '../g.json' is not below the directory",
        ),
        (f"{{files: {'x' * 300}.et}}", "workload.files: "),
        (
            "{files: traces, shape: [2, 3]}",
            "workload.files: traces: it has 4 ranks, not 2 × 3",
        ),
        (
            "{files: traces, shape: [0]}",
            "workload.shape[0]: should be greater than or equal to 1",
        ),
        (
            "{files: traces, model_ranks: 2}",
            "a Chakra trace has no use for model ranks",
        ),
        (
            "{files: traces, size: 2 MB}",
            "workload: size: a workload of files has no such key",
        ),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, workload: str, said: str) -> None:
    assert said in refusal(with_traces(tmp_path), workload)


def test_a_run_folder_has_all_files_of_a_trace(tmp_path: Path) -> None:
    origin, runs = tmp_path / "origin", tmp_path / "runs"
    runs.mkdir()
    experiment = loaded(with_traces(origin), "{files: traces, device: h100}")
    with RunFolder.new(
        runs, "a", experiment.text, experiment.files, experiment.directory
    ) as folder:
        folder.describe(repeat=1, backend="simulation", code="x")
    shutil.rmtree(origin)
    again = experiment_of(folder.path)
    assert again.files == tuple(TRACE)
    (old,), (new,) = experiment.plans, again.plans
    assert old.jobs[0].workload is not None
    assert new.jobs[0].workload is not None
    assert canonical(old.jobs[0].workload) == canonical(new.jobs[0].workload)


def test_a_simulated_run_is_reported_from_its_folder_alone(tmp_path: Path) -> None:
    experiment = loaded(with_traces(tmp_path / "origin"), "{files: traces}")
    done, result = carry_out_experiment(
        experiment, SimulationBackend(), tmp_path / "runs"
    )
    assert result["complete"], done.failures
    shutil.rmtree(tmp_path / "origin")
    assert finish(done.path)["rows"] == result["rows"]
