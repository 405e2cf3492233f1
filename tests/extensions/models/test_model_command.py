"""``ringlight workload make``, and what its workloads look like."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringlight.extensions.models.catalogue import MODELS
from ringlight.extensions.models.parallelism import generate
from ringlight.extensions.models.settings import Parallel, Training
from ringlight.workloads.devices import DEVICES
from ringlight.workloads.formats import reading
from ringlight.workloads.summary import traffic
from tests.unit.test_cli import ringlight
from tests.unit.workloads import canonical
from tests.workload_command import answer, refused

GPT = (
    "--model",
    "gpt2-medium",
    "--dp",
    "2",
    "--tp",
    "2",
    "--pp",
    "2",
    "--micro-batches",
    "2",
)
EIGHT = Parallel(dp=2, tp=2, pp=2)


def test_a_model_is_written_and_shown(tmp_path: Path) -> None:
    out = tmp_path / "g.rlw"
    made = answer("make", *GPT, "--device", "a100", str(out))
    wanted = generate(
        MODELS["gpt2-medium"], EIGHT, Training(micro_batches=2), DEVICES["a100"]
    )
    assert canonical(reading.read_any([out])) == canonical(wanted)
    assert made == {
        "name": wanted.name, "ranks": 8, "operations": wanted.operations, "files": [str(out)],
    }  # fmt: skip
    found = answer("show", str(out))
    assert (found["ranks"], found["programs"], found["operations"]) == (
        8,
        2,
        wanted.operations,
    )
    assert found["groups"] == {"2": 12}
    sent = {part["purpose"]: part["sent_bytes"] for part in found["traffic"]}  # type: ignore[attr-defined]
    assert sent == {name: part.sent for name, part in traffic(wanted).items()}
    called = {(part["purpose"], part["called"]) for part in found["traffic"]}  # type: ignore[attr-defined]
    assert called >= {("pp", "message"), ("tp", "all-reduce"), ("dp", "all-reduce")}
    text = ringlight("workload", "show", str(out)).stdout
    assert f"8 ranks, 2 different programs; {wanted.operations:,} operations." in text
    assert "Groups: 12 of 2 ranks." in text
    assert (
        "To run it, in a scenario beside it: jobs: {train: {gpus: 8, workload: {files: g.rlw}}}"
        in text
    )


def test_the_list_has_every_model_and_device() -> None:
    found = answer("make", "--list")
    assert [one["model"] for one in found["models"]] == list(MODELS)  # type: ignore[attr-defined]
    assert [one["device"] for one in found["devices"]] == list(DEVICES)  # type: ignore[attr-defined]
    text = ringlight("workload", "make", "--list").stdout
    assert "174,604,259,328" in text
    assert "arXiv:2005.14165" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["make"], "give --model and OUT, or --list"),
        (
            ["make", "--model", "gpt2", "x.rlw"],
            "--model: no model gpt2; there are vgg16",
        ),
        (
            ["make", "--model", "gpt2-medium", "--tp", "3", "x.rlw"],
            "--tp: 3 does not divide the 16 heads",
        ),
        (
            ["make", "--model", "gpt2-medium", "--bucket", "3", "x.rlw"],
            "--bucket: '3' is not a size",
        ),
        (
            ["make", "--model", "gpt2-medium", "--schedule", "x", "x.rlw"],
            "--schedule: no x; there are gpipe",
        ),
        (
            ["make", "--model", "gpt2-medium", "--algorithm", "x", "x.rlw"],
            "--algorithm: 'x' should be KIND=",
        ),
        (
            ["make", "--model", "gpt2-medium", "--algorithm", "x=y", "x.rlw"],
            "--algorithm: there is no",
        ),
        (
            ["make", "--model", "vgg16", "--dp", "99999", "--ep", "99", "x.rlw"],
            "--dp: 9899901 ranks; at",
        ),
        (
            ["make", "--model", "gpt2-medium", "--virtual-stages", "2", "x.rlw"],
            "--virtual-stages: only a",
        ),
        (["make", "--model", "gpt2-medium", "x.csv"], "x.csv: it should end with "),
        (
            ["make", "--model", "gpt2-medium", "/gone/x.rlw"],
            "/gone/x.rlw: No such file",
        ),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_code_2(
    arguments: list[str], said: str
) -> None:
    assert said in refused(*arguments)
