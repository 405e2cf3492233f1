"""Jobs that execute workloads from files, as a scenario file states them and a run folder keeps them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from ringlight.containers.image import ROOT
from ringlight.experiments.analysis.prediction import expected_s
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import Experiment, load, parse
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.language.workloads import OF_RUN_FOLDERS, WorkloadSpec, workload_of
from ringlight.experiments.record.folder import RunFolder, experiment_of
from ringlight.experiments.runner.command import carry_out_experiment, check_resumed, finish
from ringlight.extensions.chakra import reader, writer
from ringlight.extensions.crosscheck.command import trimmed
from ringlight.extensions.models.catalogue import MODELS
from ringlight.extensions.models.parallelism import generate
from ringlight.extensions.models.settings import Parallel, Training
from ringlight.workloads.devices import DEVICES
from ringlight.workloads.packed import pack
from ringlight.workloads.traffic import sent, traffic
from tests.simulated import SIX_GPUS
from tests.unit.workloads import canonical, many_kinds

DATA = ROOT / "tests/data"
FOUR, SIX = "[g0, g1, g3, g4]", "all"


def text_of(workload: str, ranks: str = FOUR, more: str = "") -> str:
    jobs = f"jobs: {{llm: {{ranks: {ranks}, workload: {workload}}}}}\n"
    lines = [line for line in SIX_GPUS.splitlines() if not line.startswith(("training:", "scale:"))]
    return "\n".join([*lines, "scale: {time: 1, payload: 1}", jobs, more])


def scenario(directory: Path, workload: str, ranks: str = FOUR, more: str = "") -> Path:
    (directory / "traces").mkdir(parents=True, exist_ok=True)
    for file in DATA.glob("chakra/all_reduce.*"):
        shutil.copy(file, directory / "traces")
    shutil.copy(DATA / "astra_sim/MLP_ModelParallel.txt", directory)
    path = directory / "a.yaml"
    path.write_text(text_of(workload, ranks, more))
    return path


def refusal(directory: Path, workload: str, ranks: str = FOUR, more: str = "") -> str:
    path = scenario(directory, workload, ranks, more)
    with pytest.raises(ScenarioError) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{path}: ").replace(f"{directory}/", "")


def loaded(directory: Path, workload: str, ranks: str = FOUR) -> Experiment:
    return load(scenario(directory, workload, ranks))


TRACE = [f"traces/all_reduce.{rank}.et" for rank in range(4)]


@pytest.mark.parametrize("named", ["traces", "traces/all_reduce", "traces/all_reduce.2.et", str(TRACE)])
def test_a_trace_is_named_by_its_directory_its_name_or_its_files(tmp_path: Path, named: str) -> None:
    found = loaded(tmp_path, f"{{files: {named}, iterations: 3}}")
    job = found.plans[0].jobs[0]
    assert found.files == tuple(TRACE)
    assert job.iterations == 3
    assert job.workload is not None
    assert job.workload.ranks == 4


def test_a_trace_is_as_emulated(tmp_path: Path) -> None:
    writer.write(many_kinds(), tmp_path / "many")
    path = scenario(tmp_path, "{files: many, device: a100, efficiency: 0.5}")
    path.write_text(path.read_text().replace("{time: 1, payload: 1}", "{time: 4, payload: 16}"))
    found = load(path)
    assert found.files == (*(f"many.{rank}.et" for rank in range(4)), "many.comm_group.json")
    workload = found.plans[0].jobs[0].workload
    assert workload is not None
    program = workload.programs[0]
    seconds = dict(zip([workload.names[n] for n in program.name], program.seconds.tolist(), strict=True))
    assert seconds["forward"] == pytest.approx(4 * 1.5e-3)
    assert seconds["backward"] == pytest.approx(4 * 2e9 / (0.5 * 312e12))
    assert sorted(program.bytes[program.kind == 1].tolist()) == [64, 4096, 1 << 18]


def test_points_of_a_sweep_read_a_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    read = reader.read
    monkeypatch.setattr(reader, "read", lambda *said: (reads.append(said), read(*said))[1])
    path = scenario(tmp_path, "{files: traces}", more="sweep: {scale.payload: [1, 2], scale.time: [1, 2, 3]}")
    found = load(path)
    assert len(found.plans) == 6
    assert len(reads) == 1
    sizes = {
        int(plan.jobs[0].workload.programs[0].bytes.max()) for plan in found.plans if plan.jobs[0].workload
    }
    assert sizes == {1 << 20, 1 << 19}


def test_a_text_gets_from_the_job_what_it_does_not_say(tmp_path: Path) -> None:
    found = loaded(tmp_path, "{files: MLP_ModelParallel.txt}", SIX)
    assert found.files == ("MLP_ModelParallel.txt",)
    workload = found.plans[0].jobs[0].workload
    assert workload is not None
    assert workload.ranks == 6
    text = (tmp_path / "MLP_ModelParallel.txt").read_text().replace("MODEL", "HYBRID_DATA_MODEL", 1)
    (tmp_path / "hybrid.txt").write_text(text)
    workload = loaded(tmp_path, "{files: hybrid.txt, model_ranks: 3}", SIX).plans[0].jobs[0].workload
    assert workload is not None
    assert [group.tolist() for group in workload.groups] == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        ("{files: traces/gone}", "workload.files: traces/gone: No such file or directory"),
        ("{files: traces/all_reduce.9.et, groups: g.json}", "workload.files: g.json: No such file"),
        ("{files: a.yaml}", "workload.files: a.yaml: no format fits"),
        (
            "{files: [traces, a.yaml]}",
            "workload.files: a.yaml: it is no file of the trace of traces",
        ),
        ("{files: /etc/passwd}", "workload.files[0]: '/etc/passwd' is not below the directory"),
        (
            "{files: traces/../../x}",
            "workload.files[0]: 'traces/../../x' is not below the directory",
        ),
        ("{files: [traces, .]}", "workload.files[1]: '.' is not below the directory"),
        ('{files: "a\\nb"}', "workload.files[0]: 'a\\nb' is not below the directory"),
        ("{files: x, groups: ../g.json}", "workload.groups: '../g.json' is not below the directory"),
        ("{files: rows.csv}", "workload.files[0]: 'rows.csv': a run folder, which gets a copy, has"),
        ("{files: plots/m.csv}", "workload.files[0]: 'plots/m.csv': a run folder"),
        (f"{{files: {'x' * 300}}}", f"workload.files: {'x' * 300}: File name too long"),
        (f"{{files: {'x' * 300}.et}}", "workload.files: "),
        ("{files: 3}", "workload.files: should be a list"),
        ("{files: []}", "workload: give one of model, placed, files and collective"),
        ("{files: traces, tp: 2}", "workload: tp: a workload of files has no such key"),
        ("{files: traces, shape: [2, 3]}", "workload.files: traces: it has 4 ranks, not 2 × 3"),
        ("{files: traces, shape: [0]}", "workload.shape[0]: should be greater than or equal to 1"),
        ("{files: traces, model_ranks: 2}", "a Chakra trace has no use for model ranks"),
        ("{files: traces, device: z80}", "workload.device: no device z80; there are v100"),
        ("{files: traces, efficiency: 0.5}", "workload: efficiency: it is of a device"),
        ("{files: MLP_ModelParallel.txt, model_ranks: 3}", "do not divide into 1 stages of groups of 3"),
        (
            "{collective: all-sum, size: 4 MB}",
            "workload.collective: there is no collective 'all-sum'",
        ),
        (
            "{collective: broadcast, algorithm: x, size: 4 MB}",
            "workload.algorithm: broadcast has no",
        ),
        (
            "{placed: resnet50, device: a100, batch: 4, mp: 4, window: 2, partners: 3}",
            "workload: partners: they and window both say how near pieces lie",
        ),
        (
            "{placed: resnet50, device: a100, batch: 4, mp: 4, partners: 1}",
            "workload.partners: 1 partners a GPU are too few for dp 1 and mp 4",
        ),
        ("{model: resnet50, device: a100, tp: 4}", "workload.tp: resnet50 is generated with dp only"),
        ("{model: gpt2-medium, device: a100, dp: 9999999}", "workload.dp: should be less than or equal"),
        ("{model: gpt2-medium, device: a100, dp: 99999, ep: 99999}", "it is for 9999800001 ranks, and the"),
        ("{model: gpt2-medium, device: a100, micro_batches: 9999999}", "workload.micro_batches: should be"),
        ("{model: gpt2-medium, device: a100}", "workload: it is for 1 ranks, and the job has 4"),
        (
            "{model: gpt2-medium, dp: 4, device: a100, element_bytes: 3}",
            "element_bytes: a100: no rate for",
        ),
        (
            "{model: gpt2-medium, dp: 4, device: a100, gradient_bytes: 0}",
            "workload.gradient_bytes: should",
        ),
        ("{model: gpt2-medium, dp: 4, device: a100, first_bucket: 2}", "workload.first_bucket: "),
        (
            "{files: traces, first_bucket: 2 MB}",
            "first_bucket: a workload of files has no such key",
        ),
        ("{model: gpt2-medium, dp: 4, device: gone.csv}", "workload.device: gone.csv: No such file or dir"),
        ("{model: gpt2-medium, dp: 4, device: ../t.csv}", "workload.device: '../t.csv' is not below the dir"),
        ("{model: gpt2-medium, dp: 4, device: rows.csv}", "workload.device: 'rows.csv': a run folder, which"),
        ("{files: traces, device: t.csv, efficiency: 0.5}", "efficiency: it is of a device, and t.csv is a"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, workload: str, said: str) -> None:
    assert said in refusal(tmp_path, workload)


def test_a_file_that_is_for_other_ranks_or_states_no_time_is_refused(tmp_path: Path) -> None:
    said = "jobs.llm.workload: it is for 4 ranks, and the job has 6"
    assert refusal(tmp_path, "{files: traces}", SIX) == said
    (tmp_path / "many.rlw").write_bytes(pack(many_kinds()))
    said = "jobs.llm.workload.device: weights states no time; name the device that computes"
    assert refusal(tmp_path, "{files: many.rlw}") == said


def test_an_arm_is_named_where_its_file_is_wrong(tmp_path: Path) -> None:
    arms = "arms: {base: {}, other: {jobs.llm.workload.files: gone}}"
    said = refusal(tmp_path, "{files: traces}", more=arms)
    assert said == "arms.other.jobs.llm.workload.files: gone: No such file or directory"


def test_a_run_folder_has_the_files_and_is_read_without_the_originals(tmp_path: Path) -> None:
    origin, runs = tmp_path / "origin", tmp_path / "runs"
    runs.mkdir()
    more = "sweep: {jobs.llm.workload.files: [traces, many.rlw]}"
    origin.mkdir()
    (origin / "many.rlw").write_bytes(pack(many_kinds()))
    experiment = load(scenario(origin, "{files: traces, device: h100}", more=more))
    assert experiment.files == (*TRACE, "many.rlw")
    with RunFolder.new(runs, "a", experiment.text, experiment.files, experiment.directory) as folder:
        folder.describe(repeat=1, backend="simulation", code="x")
    check = SimulationBackend()
    with pytest.raises(ScenarioError, match="computed by other code"):
        check_resumed(folder.path, experiment, check)
    (origin / TRACE[1]).write_bytes(b"")
    with pytest.raises(ScenarioError) as caught:
        check_resumed(folder.path, experiment, check)
    assert str(caught.value) == f"{folder.path}/{TRACE[1]}: it is another file than {origin}/{TRACE[1]}"
    shutil.rmtree(origin)
    again = experiment_of(folder.path)
    assert again.files == experiment.files
    for old, new in zip(experiment.plans, again.plans, strict=True):
        assert old.jobs[0].workload is not None
        assert new.jobs[0].workload is not None
        assert canonical(old.jobs[0].workload) == canonical(new.jobs[0].workload)


TIMES = """operation,seconds
embedding forward,1e-3
attention forward,2e-3
mlp forward,3e-3
head forward,4e-3
embedding backward,2e-3
attention backward,4e-3
mlp backward,6e-3
block 3 mlp backward,60e-3
head backward,8e-3
optimiser,10e-3
"""
MB = 1_000_000
MEASURED = "{model: gpt2-medium, dp: 4, device: tables/times.csv}"


def with_times(directory: Path, text: str = TIMES) -> Path:
    (directory / "tables").mkdir(parents=True)
    (directory / "tables/times.csv").write_text(text)
    return directory


def test_computation_takes_what_a_table_says_and_a_run_folder_has_the_table(tmp_path: Path) -> None:
    origin = with_times(tmp_path / "origin")
    experiment = loaded(origin, MEASURED)
    assert experiment.files == ("tables/times.csv",)
    workload = experiment.plans[0].jobs[0].workload
    assert workload is not None
    # 24 blocks, of which one is slower.
    whole_s = 24 * 15e-3 + 54e-3 + 25e-3
    assert float(np.nansum(workload.programs[0].seconds)) == pytest.approx(whole_s)
    done, result = carry_out_experiment(experiment, SimulationBackend(), tmp_path / "runs")
    assert not done.failures
    (took_s,) = (row["value"] for row in result["rows"] if row["metric"] == "iteration")
    assert took_s > whole_s
    shutil.rmtree(origin)
    assert finish(done.path)["rows"] == result["rows"]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("mlp forward,1 ms\n", "tables/times.csv, line 1: expected operation,seconds, not mlp forward,1 ms"),
        ("mlp forward,1\n", "tables/times.csv: no seconds for embedding forward; the table has mlp forward"),
    ],
)
def test_a_wrong_table_is_one_line_with_file_and_key(tmp_path: Path, table: str, said: str) -> None:
    assert refusal(with_times(tmp_path / "a", table), MEASURED) == f"jobs.llm.workload.device: {said}"


def test_a_table_gives_the_operations_of_a_file_their_times(tmp_path: Path) -> None:
    with_times(tmp_path, "backward,0.25\nweights,0.5\n")
    (tmp_path / "many.rlw").write_bytes(pack(many_kinds()))
    found = loaded(tmp_path, "{files: many.rlw, device: tables/times.csv}")
    assert found.files == ("many.rlw", "tables/times.csv")
    workload = found.plans[0].jobs[0].workload
    assert workload is not None
    said = {workload.names[int(name)]: k for k, name in enumerate(workload.programs[0].name)}
    assert workload.programs[0].seconds[said["backward"]] == 0.25


@pytest.mark.parametrize(
    ("keys", "training"),
    [
        ("element_bytes: 4", Training(element_bytes=4)),
        ("gradient_bytes: 4", Training(gradient_bytes=4)),
        (
            "first_bucket: 12 MB, bucket: 16 MB",
            Training(first_bucket_bytes=12 * MB, bucket_bytes=16 * MB),
        ),
    ],
)
def test_settings_of_gradients_are_the_generators(tmp_path: Path, keys: str, training: Training) -> None:
    text = "{model: gpt2-medium, dp: 2, tp: 2, device: a100, %s}"
    workload = loaded(tmp_path, text % keys).plans[0].jobs[0].workload
    assert workload is not None
    wanted = generate(MODELS["gpt2-medium"], Parallel(dp=2, tp=2), training, DEVICES["a100"])
    assert canonical(workload) == canonical(wanted)
    assert canonical(wanted) != canonical(
        generate(MODELS["gpt2-medium"], Parallel(dp=2, tp=2), Training(), DEVICES["a100"])
    )


@pytest.mark.filterwarnings("error", "ignore:unclosed:ResourceWarning")  # earlier tests left them
def test_a_simulated_run_is_reported_and_resumed_from_its_folder_alone(tmp_path: Path) -> None:
    origin, backend = tmp_path / "origin", SimulationBackend()
    done, result = carry_out_experiment(loaded(origin, "{files: traces}"), backend, tmp_path / "runs")
    assert result["complete"], done.failures
    shutil.rmtree(origin)
    assert finish(done.path)["rows"] == result["rows"]
    again = load(done.path / "scenario.yaml")
    _, resumed = carry_out_experiment(again, backend, tmp_path / "runs", resume=done.path)
    assert resumed["rows"] == result["rows"]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [done.path.name]


@pytest.mark.parametrize(
    ("other", "option"),
    [(SimulationBackend(latency_s=1e-3), "--latency"), (SimulationBackend(mtu_bytes=600), "--mtu")],
)
def test_a_simulation_with_other_options_is_not_gone_on_with(
    tmp_path: Path, other: SimulationBackend, option: str
) -> None:
    experiment = loaded(tmp_path / "origin", "{files: traces}")
    done, _ = carry_out_experiment(experiment, SimulationBackend(), tmp_path / "runs")
    with pytest.raises(ScenarioError) as caught:
        carry_out_experiment(experiment, other, tmp_path / "runs", resume=done.path)
    assert str(caught.value) == f"{done.path}: its runs were simulated with another {option}; begin anew"


@pytest.mark.parametrize(("partners", "window"), [(20, 8), (8, 8), (7, 4), (3, 2)])
def test_pieces_are_placed_for_so_many_partners(tmp_path: Path, partners: int, window: int) -> None:
    placed = {"placed": "transformer-big", "dp": 2, "mp": 8, "batch": 2, "device": "a100"}
    found, wanted = (
        workload_of(WorkloadSpec(**placed, **key), 16, tmp_path)
        for key in ({"partners": partners}, {"window": window})
    )
    assert found.name == wanted.name
    assert found.operations == wanted.operations
    sends = sent(found) > 0
    assert sends.sum(axis=1).max() <= partners


def test_a_crosscheck_may_shorten_a_workload(tmp_path: Path) -> None:
    found = trimmed(loaded(tmp_path, "{files: traces, iterations: 9}"), (), 2)
    assert [job.iterations for job in found.plans[0].jobs] == [2]
    assert found.files == tuple(TRACE)


def test_a_file_that_goes_before_it_is_copied_is_one_line_and_leaves_no_folder(tmp_path: Path) -> None:
    experiment = load(scenario(tmp_path, "{files: traces}"))
    (tmp_path / TRACE[3]).unlink()
    with pytest.raises(ScenarioError, match=r"all_reduce\.3\.et: cannot be read: No such file"):
        RunFolder.new(tmp_path / "runs", "a", experiment.text, experiment.files, experiment.directory)
    assert not list((tmp_path / "runs").iterdir())


def test_names_of_a_run_folder_are_those_that_a_run_leaves(tmp_path: Path) -> None:
    mini = load(DATA / "mini.yaml")
    done, _ = carry_out_experiment(mini, SimulationBackend(), tmp_path)
    assert {path.name for path in done.path.iterdir()} <= {*OF_RUN_FOLDERS}


def test_how_long_a_workload_takes_is_waited_for(tmp_path: Path) -> None:
    plan = loaded(tmp_path, "{files: traces, iterations: 2}").plans[0]
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


def test_every_key_is_of_some_source_and_described() -> None:
    page = (ROOT / "docs/experiments.md").read_text().partition("## Workloads")[2].partition("\n## ")[0]
    assert not [key for key in WorkloadSpec.model_fields if f"`{key}`" not in page]


def test_examples_of_the_page_are_read(tmp_path: Path) -> None:
    page = (ROOT / "docs/experiments.md").read_text().partition("## Workloads")[2].partition("\n## ")[0]
    examples = [part.partition("```")[0] for part in page.split("```yaml\n")[1:]]
    assert len(examples) == 4
    for example in examples:
        for name, job in yaml.safe_load(example)["jobs"].items():
            spec = WorkloadSpec.model_validate(job["workload"])
            assert any([spec.model, spec.placed, *spec.files, spec.collective]), name


NAMED = """\
name: named
description: Workloads by name.
fabric: {interconnect: {kind: ideal, gpus: 4, gpu: a100, rate: 400 Gbit/s}}
workloads:
  small: {collective: all-reduce, size: 1 MB}
  large: {collective: all-reduce, size: 8 MB, iterations: 3}
jobs: {train: {ranks: all, workload: small}}
"""


def test_a_job_names_its_workload_and_a_sweep_goes_over_names() -> None:
    swept = parse(f"{NAMED}sweep: {{jobs.train.workload: [small, large]}}\n", "named.yaml").plans
    (own,) = parse(
        NAMED.replace("workload: small", "workload: {collective: all-reduce, size: 1 MB}"), "n"
    ).plans
    found = [plan.jobs[0].workload for plan in swept]
    assert [w.programs[0].bytes.tolist() for w in found if w] == [[1_000_000], [8_000_000]]
    assert [plan.jobs[0].iterations for plan in swept] == [1, 3]
    assert own.jobs[0].workload is not None
    assert own.jobs[0].workload.programs[0].bytes.tolist() == [1_000_000]
    (changed,) = parse(f"{NAMED}arms: {{a: {{workloads.small.size: 2 MB}}}}\n", "named.yaml").plans
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
        ("workloads:", "workload_s:", "workload_s: unknown key; the nearest is workloads"),
        ("size: 8 MB", "size: 8", "workloads.large.size: 8 has no unit; write for example"),
        ("size: 8 MB", "sizes: 8 MB", "workloads.large.sizes: unknown key; the nearest is size"),
        ("all-reduce, size: 1", "all, size: 1", "workloads.small.collective: there is no collective 'all'"),
    ],
)
def test_what_is_wrong_with_a_named_workload_is_said_where_it_stands(
    right: str, wrong: str, said: str
) -> None:
    assert right in NAMED
    with pytest.raises(ScenarioError) as caught:
        parse(NAMED.replace(right, wrong), "named.yaml")
    assert str(caught.value).startswith(f"named.yaml: {said}")
