"""Jobs that execute workloads, as a scenario file states them and a run folder keeps them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import yaml
from pydantic import TypeAdapter

from ringlight.containers.image import ROOT
from ringlight.experiments.analysis.prediction import expected_s
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language import workloads
from ringlight.experiments.language.expand import load, parse
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.language.workload_keys import OF_RUN_FOLDERS, WorkloadKeys
from ringlight.experiments.language.workloads import (
    CollectiveKeys,
    FilesKeys,
    WorkloadSpec,
)
from ringlight.experiments.record.folder import RunFolder, experiment_of
from ringlight.experiments.runner.command import (
    carry_out_experiment,
    check_resumed,
    finish,
)
from ringlight.fabric.extension import Extension, InstalledExtension
from ringlight.workloads.graph import Collective
from ringlight.workloads.graph_writer import Book, Writer
from ringlight.workloads.packed import pack
from ringlight.workloads.traffic import traffic
from tests.door import door
from tests.unit.workloads import canonical, many_kinds
from tests.workload_jobs import SIX, loaded, refusal, scenario

DATA = ROOT / "tests/data"


def with_file(directory: Path) -> Path:
    """A directory with ``four.rlw``: four ranks that compute and reduce a MiB."""
    directory.mkdir(parents=True, exist_ok=True)
    writer = Writer(book := Book())
    writer.compute("forward", seconds=1e-3)
    writer.collective("gradients", Collective("all-reduce"), 1 << 20, 0)
    group = book.group(range(4))
    workload = book.workload("four", [writer.done()], [0] * 4, [[group]] * 4, [[]] * 4)
    (directory / "four.rlw").write_bytes(pack(workload))
    return directory


def test_a_workload_is_as_emulated(tmp_path: Path) -> None:
    (tmp_path / "many.rlw").write_bytes(pack(many_kinds()))
    path = scenario(tmp_path, "{files: many.rlw, device: a100, efficiency: 0.5}")
    path.write_text(
        path.read_text().replace("{time: 1, payload: 1}", "{time: 4, payload: 16}")
    )
    found = load(path)
    assert found.files == ("many.rlw",)
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


def test_points_of_a_sweep_read_a_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []
    read = workloads.read_any
    monkeypatch.setattr(
        workloads, "read_any", lambda *said: (reads.append(said), read(*said))[1]
    )
    path = scenario(
        with_file(tmp_path),
        "{files: four.rlw}",
        more="sweep: {scale.payload: [1, 2], scale.time: [1, 2, 3]}",
    )
    found = load(path)
    assert len(found.plans) == 6
    assert len(reads) == 1
    sizes = {
        int(plan.jobs[0].workload.programs[0].bytes.max())
        for plan in found.plans
        if plan.jobs[0].workload
    }
    assert sizes == {1 << 20, 1 << 19}


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        ("{files: gone}", "workload.files: gone: No such file or directory"),
        ("{files: a.yaml}", "workload.files: a.yaml: no format fits; there are "),
        (
            "{files: [four.rlw, a.yaml]}",
            "workload.files: a.yaml: four.rlw is a packed workload, which",
        ),
        (
            "{files: /etc/passwd}",
            "workload.files[0]: '/etc/passwd' is not below the directory",
        ),
        (
            "{files: traces/../../x}",
            "workload.files[0]: 'traces/../../x' is not below the directory",
        ),
        ("{files: [four.rlw, .]}", "workload.files[1]: '.' is not below the directory"),
        ('{files: "a\\nb"}', "workload.files[0]: 'a\\nb' is not below the directory"),
        (
            "{files: rows.csv}",
            "workload.files[0]: 'rows.csv': a run folder, which gets a copy, has",
        ),
        ("{files: plots/m.csv}", "workload.files[0]: 'plots/m.csv': a run folder"),
        (f"{{files: {'x' * 300}}}", f"workload.files: {'x' * 300}: File name too long"),
        ("{files: 3}", "workload.files: should be a list"),
        ("{files: []}", "workload: give one of collective"),
        (
            "{files: four.rlw, collective: all-reduce}",
            "workload: give one of collective",
        ),
        ("{file: four.rlw}", "workload.file: unknown key; the nearest is files"),
        (
            "{files: four.rlw, size: 2 MB}",
            "workload: size: a workload of files has no such key",
        ),
        (
            "{files: four.rlw, device: z80}",
            "workload.device: no device z80; there are v100",
        ),
        (
            "{files: four.rlw, efficiency: 0.5}",
            "workload: efficiency: it is of a device",
        ),
        (
            "{files: four.rlw, device: t.csv, efficiency: 0.5}",
            "efficiency: it is of a device, and t.csv is",
        ),
        (
            "{files: four.rlw, device: gone.csv}",
            "workload.device: gone.csv: No such file or dir",
        ),
        (
            "{files: four.rlw, device: ../t.csv}",
            "workload.device: '../t.csv' is not below the dir",
        ),
        (
            "{files: four.rlw, device: rows.csv}",
            "workload.device: 'rows.csv': a run folder, which",
        ),
        (
            "{collective: all-sum, size: 4 MB}",
            "workload.collective: there is no collective 'all-sum'",
        ),
        (
            "{collective: broadcast, algorithm: x, size: 4 MB}",
            "workload.algorithm: broadcast has no",
        ),
        (
            "{collective: {file: four.rlw}, size: 4 MB}",
            "collective.file: four.rlw: this is no algorithm",
        ),
        (
            "{collective: all-reduce}",
            "workload: size: a workload of one collective needs it",
        ),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, workload: str, said: str) -> None:
    assert said in refusal(with_file(tmp_path), workload)


def test_a_file_that_is_for_other_ranks_or_states_no_time_is_refused(
    tmp_path: Path,
) -> None:
    said = "jobs.llm.workload: it is for 4 ranks, and the job has 6"
    assert refusal(with_file(tmp_path), "{files: four.rlw}", SIX) == said
    (tmp_path / "many.rlw").write_bytes(pack(many_kinds()))
    said = "jobs.llm.workload.device: weights states no time; name the device that computes"
    assert refusal(tmp_path, "{files: many.rlw}") == said


def test_an_arm_is_named_where_its_file_is_wrong(tmp_path: Path) -> None:
    arms = "arms: {base: {}, other: {jobs.llm.workload.files: gone}}"
    said = refusal(with_file(tmp_path), "{files: four.rlw}", more=arms)
    assert said == "arms.other.jobs.llm.workload.files: gone: No such file or directory"


def test_a_run_folder_has_the_files_and_is_read_without_the_originals(
    tmp_path: Path,
) -> None:
    origin, runs = tmp_path / "origin", tmp_path / "runs"
    runs.mkdir()
    more = "sweep: {jobs.llm.workload.files: [four.rlw, many.rlw]}"
    origin.mkdir()
    (origin / "many.rlw").write_bytes(pack(many_kinds()))
    experiment = load(
        scenario(with_file(origin), "{files: four.rlw, device: h100}", more=more)
    )
    assert experiment.files == ("four.rlw", "many.rlw")
    with RunFolder.new(
        runs, "a", experiment.text, experiment.files, experiment.directory
    ) as folder:
        folder.describe(repeat=1, backend="simulation", code="x")
    check = SimulationBackend()
    with pytest.raises(ScenarioError, match="computed by other code"):
        check_resumed(folder.path, experiment, check)
    (origin / "four.rlw").write_bytes(b"")
    with pytest.raises(ScenarioError) as caught:
        check_resumed(folder.path, experiment, check)
    assert (
        str(caught.value)
        == f"{folder.path}/four.rlw: it is another file than {origin}/four.rlw"
    )
    shutil.rmtree(origin)
    again = experiment_of(folder.path)
    assert again.files == experiment.files
    for old, new in zip(experiment.plans, again.plans, strict=True):
        assert old.jobs[0].workload is not None
        assert new.jobs[0].workload is not None
        assert canonical(old.jobs[0].workload) == canonical(new.jobs[0].workload)


def test_a_table_gives_the_operations_of_a_file_their_times(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/times.csv").write_text("backward,0.25\nweights,0.5\n")
    (tmp_path / "many.rlw").write_bytes(pack(many_kinds()))
    found = loaded(tmp_path, "{files: many.rlw, device: tables/times.csv}")
    assert found.files == ("many.rlw", "tables/times.csv")
    workload = found.plans[0].jobs[0].workload
    assert workload is not None
    said = {
        workload.names[int(name)]: k for k, name in enumerate(workload.programs[0].name)
    }
    assert workload.programs[0].seconds[said["backward"]] == 0.25


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (
            "backward,1 ms\n",
            "times.csv, line 1: expected operation,seconds, not backward,1 ms",
        ),
        ("backward,1\n", "times.csv: no seconds for weights; the table has backward"),
    ],
)
def test_a_wrong_table_is_one_line_with_file_and_key(
    tmp_path: Path, table: str, said: str
) -> None:
    (tmp_path / "many.rlw").write_bytes(pack(many_kinds()))
    (tmp_path / "times.csv").write_text(table)
    wanted = f"jobs.llm.workload.device: {said}"
    assert refusal(tmp_path, "{files: many.rlw, device: times.csv}") == wanted


@pytest.mark.filterwarnings(
    "error", "ignore:unclosed:ResourceWarning"
)  # earlier tests left them
def test_a_simulated_run_is_reported_and_resumed_from_its_folder_alone(
    tmp_path: Path,
) -> None:
    origin, backend = tmp_path / "origin", SimulationBackend()
    done, result = carry_out_experiment(
        loaded(with_file(origin), "{files: four.rlw}"), backend, tmp_path / "runs"
    )
    assert result["complete"], done.failures
    shutil.rmtree(origin)
    assert finish(done.path)["rows"] == result["rows"]
    again = load(done.path / "scenario.yaml")
    _, resumed = carry_out_experiment(
        again, backend, tmp_path / "runs", resume=done.path
    )
    assert resumed["rows"] == result["rows"]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [done.path.name]


@pytest.mark.parametrize(
    ("other", "option"),
    [
        (SimulationBackend(latency_s=1e-3), "--latency"),
        (SimulationBackend(mtu_bytes=600), "--mtu"),
    ],
)
def test_a_simulation_with_other_options_is_not_gone_on_with(
    tmp_path: Path, other: SimulationBackend, option: str
) -> None:
    experiment = loaded(with_file(tmp_path / "origin"), "{files: four.rlw}")
    done, _ = carry_out_experiment(experiment, SimulationBackend(), tmp_path / "runs")
    with pytest.raises(ScenarioError) as caught:
        carry_out_experiment(experiment, other, tmp_path / "runs", resume=done.path)
    assert (
        str(caught.value)
        == f"{done.path}: its runs were simulated with another {option}; begin anew"
    )


def test_a_file_that_goes_before_it_is_copied_is_one_line_and_leaves_no_folder(
    tmp_path: Path,
) -> None:
    experiment = load(scenario(with_file(tmp_path), "{files: four.rlw}"))
    (tmp_path / "four.rlw").unlink()
    with pytest.raises(ScenarioError, match=r"four\.rlw: cannot be read: No such file"):
        RunFolder.new(
            tmp_path / "runs",
            "a",
            experiment.text,
            experiment.files,
            experiment.directory,
        )
    assert not list((tmp_path / "runs").iterdir())


def test_names_of_a_run_folder_are_those_that_a_run_leaves(tmp_path: Path) -> None:
    mini = load(DATA / "mini.yaml")
    done, _ = carry_out_experiment(mini, SimulationBackend(), tmp_path)
    assert {path.name for path in done.path.iterdir()} <= {*OF_RUN_FOLDERS}


def test_how_long_a_workload_takes_is_waited_for(tmp_path: Path) -> None:
    plan = loaded(with_file(tmp_path), "{files: four.rlw, iterations: 2}").plans[0]
    (expected,) = expected_s(plan).values()
    workload = plan.jobs[0].workload
    assert workload is not None
    one_link_s = 8 * int(np.sum(workload.programs[0].bytes)) / 10e9
    assert expected > 2 * one_link_s


def test_a_matrix_is_a_workload_of_one_exchange(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("0,8,0,0\n0,0,8,0\n0,0,0,8\n8,0,0,0\n")
    workload = loaded(tmp_path, "{files: m.csv}").plans[0].jobs[0].workload
    assert workload is not None
    assert traffic(workload).sum() == 32


def test_a_source_of_an_extension_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = InstalledExtension(
        Extension("torus", workloads={"torus": "keys:TorusKeys"}), "acme"
    )
    monkeypatch.setitem(sys.modules, "acme", ModuleType("acme"))
    monkeypatch.setitem(sys.modules, "acme.keys", keys := ModuleType("acme.keys"))
    keys.__dict__["TorusKeys"] = WorkloadKeys
    with door(installed, readers=(workloads.sources,)):
        assert list(workloads.sources()) == ["collective", "files", "torus"]
        assert workloads.sources()["torus"] is WorkloadKeys


def test_every_key_of_the_core_is_described() -> None:
    page = (
        (ROOT / "docs/experiments.md")
        .read_text()
        .partition("## Workloads")[2]
        .partition("\n## ")[0]
    )
    described = {*FilesKeys.model_fields, *CollectiveKeys.model_fields}
    assert not [key for key in described if f"`{key}`" not in page]


def test_examples_of_the_page_are_read() -> None:
    page = (
        (ROOT / "docs/experiments.md")
        .read_text()
        .partition("## Workloads")[2]
        .partition("\n## ")[0]
    )
    examples = [part.partition("```")[0] for part in page.split("```yaml\n")[1:]]
    assert len(examples) == 2
    for example in examples:
        for job in yaml.safe_load(example)["jobs"].values():
            assert TypeAdapter(WorkloadSpec).validate_python(job["workload"])


NAMED = """\
name: named
description: Workloads by name.
fabric: {leaf_spine: {leaves: 2, spines: 2, gpus_per_leaf: 2, gpu: a100, rate: 400 Gbit/s}}
workloads:
  small: {collective: all-reduce, size: 1 MB}
  large: {collective: all-reduce, size: 8 MB, iterations: 3}
jobs: {train: {ranks: all, workload: small}}
"""


def test_a_job_names_its_workload_and_a_sweep_goes_over_names() -> None:
    swept = parse(
        f"{NAMED}sweep: {{jobs.train.workload: [small, large]}}\n", "named.yaml"
    ).plans
    (own,) = parse(
        NAMED.replace(
            "workload: small", "workload: {collective: all-reduce, size: 1 MB}"
        ),
        "n",
    ).plans
    found = [plan.jobs[0].workload for plan in swept]
    assert [w.programs[0].bytes.tolist() for w in found if w] == [
        [1_000_000],
        [8_000_000],
    ]
    assert [plan.jobs[0].iterations for plan in swept] == [1, 3]
    assert own.jobs[0].workload is not None
    assert own.jobs[0].workload.programs[0].bytes.tolist() == [1_000_000]
    (changed,) = parse(
        f"{NAMED}arms: {{a: {{workloads.small.size: 2 MB}}}}\n", "named.yaml"
    ).plans
    assert changed.jobs[0].workload is not None
    assert changed.jobs[0].workload.programs[0].bytes.tolist() == [2_000_000]


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        (
            "all, workload: small",
            "all, workload: smal",
            "jobs.train.workload: there is no workload smal; there are small, large",
        ),
        (
            "workloads:",
            "workload_s:",
            "workload_s: unknown key; the nearest is workloads",
        ),
        (
            "size: 8 MB",
            "size: 8",
            "workloads.large.size: 8 has no unit; write for example",
        ),
        (
            "size: 8 MB",
            "sizes: 8 MB",
            "workloads.large.sizes: unknown key; the nearest is size",
        ),
        (
            "all-reduce, size: 1",
            "all, size: 1",
            "workloads.small.collective: there is no collective 'all'",
        ),
    ],
)
def test_what_is_wrong_with_a_named_workload_is_said_where_it_stands(
    right: str, wrong: str, said: str
) -> None:
    assert right in NAMED
    with pytest.raises(ScenarioError) as caught:
        parse(NAMED.replace(right, wrong), "named.yaml")
    assert str(caught.value).startswith(f"named.yaml: {said}")
