"""Jobs that execute models, as a scenario file states them and a run folder keeps them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from pydantic import TypeAdapter

from ringlight.containers.image import ROOT
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import parse
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.language.workload_keys import WorkloadKeys
from ringlight.experiments.language.workloads import WorkloadSpec, workload_of
from ringlight.experiments.runner.command import carry_out_experiment, finish
from ringlight.extensions.models.catalogue import MODELS
from ringlight.extensions.models.keys import ModelKeys
from ringlight.extensions.models.parallelism import generate
from ringlight.extensions.models.placed_keys import PlacedKeys
from ringlight.extensions.models.settings import Parallel, Training
from ringlight.workloads.devices import DEVICES
from ringlight.workloads.traffic import sent
from tests.unit.workloads import canonical
from tests.workload_jobs import loaded, refusal


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        (
            "{placed: resnet50, device: a100, batch: 4, mp: 4, window: 2, partners: 3}",
            "workload: partners: they and window both say how near pieces lie",
        ),
        (
            "{placed: resnet50, device: a100, batch: 4, mp: 4, partners: 1}",
            "workload.partners: 1 partners a GPU are too few for dp 1 and mp 4",
        ),
        (
            "{model: resnet50, device: a100, tp: 4}",
            "workload.tp: resnet50 is generated with dp only",
        ),
        (
            "{model: gpt2-medium, device: a100, dp: 9999999}",
            "workload.dp: should be less than or equal",
        ),
        (
            "{model: gpt2-medium, device: a100, dp: 99999, ep: 99999}",
            "it is for 9999800001 ranks, and the",
        ),
        (
            "{model: gpt2-medium, device: a100, micro_batches: 9999999}",
            "workload.micro_batches: should be",
        ),
        (
            "{model: gpt2-medium, device: a100}",
            "workload: it is for 1 ranks, and the job has 4; its ranks are dp · tp · pp · ep",
        ),
        (
            "{model: gpt2-medium, dp: 4, device: a100, element_bytes: 3}",
            "element_bytes: a100: no rate for",
        ),
        (
            "{model: gpt2-medium, dp: 4, device: a100, gradient_bytes: 0}",
            "workload.gradient_bytes: should",
        ),
        (
            "{model: gpt2-medium, dp: 4, device: a100, first_bucket: 2}",
            "workload.first_bucket: ",
        ),
        (
            "{model: gpt2-medium, dp: 4, device: gone.csv}",
            "workload.device: gone.csv: No such file or dir",
        ),
        (
            "{model: gpt2-medium, dp: 4, device: ../t.csv}",
            "workload.device: '../t.csv' is not below the dir",
        ),
        (
            "{model: gpt2-medium, dp: 4, device: rows.csv}",
            "workload.device: 'rows.csv': a run folder, which",
        ),
        (
            "{model: vgg16, device: a100, files: a}",
            "give one of collective, files, model and placed",
        ),
        (
            "{placed: resnet50, device: a100, batch: 4, tp: 2}",
            "tp: a workload of placed has no such key",
        ),
        (
            "{model: vgg16, dp: 4}",
            "workload: device: a workload of a model needs it; give v100, ",
        ),
        (
            "{model: gpt2-medium, dp: 4, device: a100, tensor: 2}",
            "workload.tensor: unknown key; there are iterations, light, device, efficiency, model, dp, ",
        ),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, workload: str, said: str) -> None:
    assert said in refusal(tmp_path, workload)


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


def test_computation_takes_what_a_table_says_and_a_run_folder_has_the_table(
    tmp_path: Path,
) -> None:
    origin = with_times(tmp_path / "origin")
    experiment = loaded(origin, MEASURED)
    assert experiment.files == ("tables/times.csv",)
    workload = experiment.plans[0].jobs[0].workload
    assert workload is not None
    # 24 blocks, of which one is slower.
    whole_s = 24 * 15e-3 + 54e-3 + 25e-3
    assert float(np.nansum(workload.programs[0].seconds)) == pytest.approx(whole_s)
    done, result = carry_out_experiment(
        experiment, SimulationBackend(), tmp_path / "runs"
    )
    assert not done.failures
    (took_s,) = (row["value"] for row in result["rows"] if row["metric"] == "iteration")
    assert took_s > whole_s
    shutil.rmtree(origin)
    assert finish(done.path)["rows"] == result["rows"]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (
            "mlp forward,1 ms\n",
            "tables/times.csv, line 1: expected operation,seconds, not mlp forward,1 ms",
        ),
        (
            "mlp forward,1\n",
            "tables/times.csv: no seconds for embedding forward; the table has mlp forward",
        ),
    ],
)
def test_a_wrong_table_is_one_line_with_file_and_key(
    tmp_path: Path, table: str, said: str
) -> None:
    assert (
        refusal(with_times(tmp_path / "a", table), MEASURED)
        == f"jobs.llm.workload.device: {said}"
    )


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
def test_settings_of_gradients_are_the_generators(
    tmp_path: Path, keys: str, training: Training
) -> None:
    text = "{model: gpt2-medium, dp: 2, tp: 2, device: a100, %s}"
    workload = loaded(tmp_path, text % keys).plans[0].jobs[0].workload
    assert workload is not None
    wanted = generate(
        MODELS["gpt2-medium"], Parallel(dp=2, tp=2), training, DEVICES["a100"]
    )
    assert canonical(workload) == canonical(wanted)
    assert canonical(wanted) != canonical(
        generate(
            MODELS["gpt2-medium"], Parallel(dp=2, tp=2), Training(), DEVICES["a100"]
        )
    )


@pytest.mark.parametrize(("partners", "window"), [(20, 8), (8, 8), (7, 4), (3, 2)])
def test_pieces_are_placed_for_so_many_partners(
    tmp_path: Path, partners: int, window: int
) -> None:
    placed = {
        "placed": "transformer-big",
        "dp": 2,
        "mp": 8,
        "batch": 2,
        "device": "a100",
    }
    found, wanted = (
        workload_of(PlacedKeys(**placed, **key), 16, tmp_path)
        for key in ({"partners": partners}, {"window": window})
    )
    assert found.name == wanted.name
    assert found.operations == wanted.operations
    sends = sent(found) > 0
    assert sends.sum(axis=1).max() <= partners


SEARCHED = """
name: whole
description: Eight GPUs.
parameters: {pieces: {value: 2, source: assumed, why: To be searched.}}
fabric: {leaf_spine: {leaves: 2, spines: 2, gpus_per_leaf: 4, gpu: a100, rate: 400 Gbit/s}}
tcp: {headers: false}
jobs: {red: {ranks: all, workload: {placed: resnet50, mp: $pieces, batch: 64, device: a100}}}
sweep: {parameters.pieces.value: [1, 2, 8]}
"""


def test_a_placed_model_has_as_many_replicas_as_fill_the_job() -> None:
    found = [plan.jobs[0].workload for plan in parse(SEARCHED, "whole.yaml").plans]
    names = [workload.name for workload in found if workload is not None]
    assert [name.split()[:5] for name in names] == [
        ["resnet50", "dp", str(8 // mp), "mp", str(mp)] for mp in (1, 2, 8)
    ]


def test_replicas_that_do_not_fill_the_job_are_refused() -> None:
    with pytest.raises(
        ScenarioError, match="mp: 8 GPUs do not divide into replicas of 3"
    ):
        parse(SEARCHED.replace("[1, 2, 8]", "[1, 3]"), "whole.yaml")


def test_every_key_is_described_and_examples_are_read() -> None:
    page = (
        (ROOT / "docs/models.md")
        .read_text()
        .partition("## In a scenario")[2]
        .partition("\n## ")[0]
    )
    keys = {
        *ModelKeys.model_fields,
        *PlacedKeys.model_fields,
    } - WorkloadKeys.model_fields.keys()
    assert not [key for key in keys if f"`{key}`" not in page]
    examples = [part.partition("```")[0] for part in page.split("```yaml\n")[1:]]
    assert len(examples) == 2
    for example in examples:
        for job in yaml.safe_load(example)["jobs"].values():
            assert TypeAdapter(WorkloadSpec).validate_python(job["workload"])
