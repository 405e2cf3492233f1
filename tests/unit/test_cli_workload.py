"""``ringlight workload``, and scenarios that execute what it makes."""

from __future__ import annotations

import json
import random
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from ringlight.containers.image import ROOT
from ringlight.experiments.cli.common import patience
from ringlight.extensions.chakra import writer
from ringlight.extensions.models.catalogue import MODELS
from ringlight.extensions.models.parallelism import generate
from ringlight.extensions.models.settings import Parallel, Training
from ringlight.extensions.msccl.writer import msccl_text
from ringlight.fabric.kinds import collective_steps
from ringlight.workloads.devices import DEVICES
from ringlight.workloads.formats import matrix, reading
from ringlight.workloads.formats.writing import write_any
from ringlight.workloads.packed import pack
from ringlight.workloads.summary import traffic
from ringlight.workloads.traffic import traffic as traffic_matrix
from tests.simulated import SIX_GPUS
from tests.unit.test_cli import one_line, ringlight
from tests.unit.workloads import canonical, many_kinds

DATA = ROOT / "tests/data"
TRACE = str(DATA / "chakra/all_reduce")
GPT = ("--model", "gpt2-medium", "--dp", "2", "--tp", "2", "--pp", "2", "--micro-batches", "2")
EIGHT = Parallel(dp=2, tp=2, pp=2)


def answer(*arguments: str) -> dict[str, object]:
    done = ringlight("workload", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def refused(*arguments: str) -> str:
    done = ringlight("workload", *arguments)
    assert done.returncode == 2, done.stdout
    return one_line(done).removeprefix("ringlight: ")


def test_an_algorithm_is_written_as_a_file_that_runs(tmp_path: Path) -> None:
    out = tmp_path / "bruck.xml"
    made = answer("algorithm", "--kind", "all-gather", "--algorithm", "bruck", "--ranks", "5", str(out))
    wanted = collective_steps("all-gather", "bruck", 5)
    assert made == {
        "file": str(out), "kind": "all-gather", "algorithm": wanted.name, "ranks": 5, "steps": wanted.steps,
    }  # fmt: skip
    assert out.read_text() == msccl_text("all-gather", wanted)
    said = refused("algorithm", "--kind", "all-gather", "--algorithm", "brook", str(out))
    assert said.startswith("all-gather has no algorithm 'brook'; there are ")
    assert refused("algorithm", str(tmp_path / "no/ring.xml")).startswith(f"{tmp_path}/no/ring.xml: ")


def test_a_model_is_written_and_shown(tmp_path: Path) -> None:
    out = tmp_path / "g.rlw"
    made = answer("make", *GPT, "--device", "a100", str(out))
    wanted = generate(MODELS["gpt2-medium"], EIGHT, Training(micro_batches=2), DEVICES["a100"])
    assert canonical(reading.read_any([out])) == canonical(wanted)
    assert made == {
        "name": wanted.name, "ranks": 8, "operations": wanted.operations, "files": [str(out)],
    }  # fmt: skip
    found = answer("show", str(out))
    assert (found["ranks"], found["programs"], found["operations"]) == (8, 2, wanted.operations)
    assert found["groups"] == {"2": 12}
    sent = {part["purpose"]: part["sent_bytes"] for part in found["traffic"]}  # type: ignore[attr-defined]
    assert sent == {name: part.sent for name, part in traffic(wanted).items()}
    called = {(part["purpose"], part["called"]) for part in found["traffic"]}  # type: ignore[attr-defined]
    assert called >= {("pp", "message"), ("tp", "all-reduce"), ("dp", "all-reduce")}
    text = ringlight("workload", "show", str(out)).stdout
    assert f"8 ranks, 2 different programs; {wanted.operations:,} operations." in text
    assert "Groups: 12 of 2 ranks." in text
    assert "To run it, in a scenario beside it: jobs: {train: {gpus: 8, workload: {files: g.rlw}}}" in text


def test_what_show_says_to_run_is_run_by_a_scenario(tmp_path: Path) -> None:
    answer("make", "--model", "gpt2-medium", "--tp", "2", str(tmp_path / "g.et"))
    text = ringlight("workload", "show", str(tmp_path / "g")).stdout
    assert "not all of it has a time: give --device" in text
    jobs = text.partition("beside it: ")[2].partition("\n")[0]
    assert jobs == "jobs: {train: {gpus: 2, workload: {files: g, device: DEVICE}}}"
    raw = {key: value for key, value in yaml.safe_load(SIX_GPUS).items() if key != "training"}
    raw |= yaml.safe_load(jobs.replace("DEVICE", "a100"))
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(raw))
    done = ringlight("check", str(tmp_path / "a.yaml"), "--json")
    assert done.returncode == 0, done.stderr
    (arm,) = json.loads(done.stdout)["arms"].values()
    assert arm["jobs"]["train"]["workload"]["name"] == "g"
    assert arm["jobs"]["train"]["compute_s"] > 0
    assert "by all ranks" in ringlight("check", str(tmp_path / "a.yaml")).stdout


def test_from_one_format_to_the_other_and_back(tmp_path: Path) -> None:
    packed, trace, again = (tmp_path / name for name in ("many kinds.rlw", "many kinds.et", "again.bin"))
    packed.write_bytes(pack(many_kinds()))
    files = answer("convert", str(packed), str(trace))["files"]
    assert files == [
        *(f"{tmp_path}/many kinds.{rank}.et" for rank in range(4)), f"{tmp_path}/many kinds.comm_group.json",
    ]  # fmt: skip
    answer("convert", str(tmp_path / "many kinds.1.et"), "--format", "packed", str(again))
    assert canonical(reading.read_any([again])) == canonical(many_kinds())
    answer("convert", str(DATA / "simai/microAllReduce.txt"), str(tmp_path / "micro.rlw"))
    assert reading.read_any([tmp_path / "micro.rlw"]).ranks == 8


def test_a_text_is_told_what_it_does_not_say() -> None:
    text = str(DATA / "astra_sim/MLP_ModelParallel.txt")
    assert "the text does not say how many ranks there are" in refused("show", text)
    assert answer("show", text, "--ranks", "6")["groups"] == {"6": 1}
    assert answer("show", text, "--ranks", "6", "--model-ranks", "3")["ranks"] == 6


def test_groups_and_shape_of_a_trace(tmp_path: Path) -> None:
    files = writer.write(many_kinds(), tmp_path / "many")
    files[-1].rename(tmp_path / "elsewhere.json")
    assert "nothing says which ranks pg_name" in refused("show", str(files[0]))
    assert answer("show", str(files[0]), "--groups", str(tmp_path / "elsewhere.json"))["ranks"] == 4
    assert answer("show", TRACE, "--shape", "2x2")["ranks"] == 4
    for path in (DATA / "chakra").glob("all_reduce.*.et"):
        shutil.copy(path, tmp_path)
    (tmp_path / "all_reduce.comm_group.json").write_text('{"one": [0]}')
    shown = ringlight("workload", "show", str(tmp_path / "all_reduce.0.et"))
    assert "all_reduce.comm_group.json: no collective of" in shown.stderr
    assert "it has 4 ranks, not 2 × 3" in refused("show", TRACE, "--shape", "2x3")


def test_a_matrix_and_a_timeline(tmp_path: Path) -> None:
    out, line = tmp_path / "m.csv", tmp_path / "t.json"
    answer("make", *GPT, "--device", "a100", str(tmp_path / "g.rlw"))
    more = ("--matrix", str(out), "--perfetto", str(line), "--rate", "400 Gbit/s")
    found = answer("show", str(tmp_path / "g.rlw"), *more)
    wanted = traffic_matrix(reading.read_any([tmp_path / "g.rlw"]))
    assert np.array_equal(traffic_matrix(matrix.read(out)), wanted)
    spans = [event for event in json.loads(line.read_text())["traceEvents"] if event["ph"] == "X"]
    assert len(spans) == found["operations"] == found["perfetto"]["spans"]  # type: ignore[index]
    assert len({event["pid"] for event in spans}) == 8
    assert max(event["ts"] + event["dur"] for event in spans) == pytest.approx(
        1e6 * found["perfetto"]["seconds"], rel=1e-6  # type: ignore[index]
    )  # fmt: skip
    assert {event["cat"] for event in spans} == {"compute", "memory", "send", "receive", "all-reduce"}


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
        (["show", "gone.et"], "gone.et: there are no files NAME.RANK.et"),
        (["show", "README.md"], "README.md: no format fits"),
        (
            ["show", "tests/extensions/msccl/data/custom_allreduce.xml"],
            "this is an algorithm (MSCCL), no workload; run it with ringlight bench SCENARIO --algorithm",
        ),
        (["show", TRACE, "--shape", "2xx"], "--shape: '2xx' should be whole numbers"),
        (["show", TRACE, "--device", "z80"], "--device: no device z80; there are"),
        (["show", TRACE, "--efficiency", "0.5"], "--efficiency: it is of a device"),
        (["show", TRACE, "--perfetto", "x", "--rate", "3"], "--rate: '3' is not a"),
        (["show", TRACE, "--matrix", "/gone/m"], "--matrix: /gone/m: No such file"),
        (["show", TRACE, "--model-ranks", "2"], "has no use for model ranks"),
        (["make"], "give --model and OUT, or --list"),
        (["make", "--model", "gpt2", "x.rlw"], "--model: no model gpt2; there are vgg16"),
        (["make", "--model", "gpt2-medium", "--tp", "3", "x.rlw"], "--tp: 3 does not divide the 16 heads"),
        (["make", "--model", "gpt2-medium", "--bucket", "3", "x.rlw"], "--bucket: '3' is not a size"),
        (["make", "--model", "gpt2-medium", "--schedule", "x", "x.rlw"], "--schedule: no x; there are gpipe"),
        (["make", "--model", "gpt2-medium", "--algorithm", "x", "x.rlw"], "--algorithm: 'x' should be KIND="),
        (["make", "--model", "gpt2-medium", "--algorithm", "x=y", "x.rlw"], "--algorithm: there is no"),
        (["make", "--model", "vgg16", "--dp", "99999", "--ep", "99", "x.rlw"], "--dp: 9899901 ranks; at"),
        (["make", "--model", "gpt2-medium", "--virtual-stages", "2", "x.rlw"], "--virtual-stages: only a"),
        (["make", "--model", "gpt2-medium", "x.csv"], "x.csv: it should end with .rlw or .et"),
        (["make", "--model", "gpt2-medium", "/gone/x.rlw"], "/gone/x.rlw: No such file"),
        (["make", "--model", "gpt2-medium", "/gone/x.et"], "/gone/x.0.et: No such file"),
        (["convert", "x"], "give the files of a workload, and OUT"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_code_2(arguments: list[str], said: str) -> None:
    assert said in refused(*arguments)


def test_damaged_files_are_one_line(tmp_path: Path) -> None:
    chance, whole, path = random.Random(11), pack(many_kinds()), tmp_path / "a.rlw"
    for _ in range(5):
        data = bytearray(whole)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        assert refused("show", str(path)).startswith(f"{path}: ")


def test_files_that_would_be_read_with_a_new_trace_are_refused(tmp_path: Path) -> None:
    write_any(many_kinds(), tmp_path / "a.et")
    write_any(many_kinds(), tmp_path / "a.et")
    (tmp_path / "a.4.et").write_bytes(b"")
    with pytest.raises(ValueError, match=r"a\.4\.et: it would be read with this trace"):
        write_any(many_kinds(), tmp_path / "a.et")


@pytest.mark.parametrize("end", [".rlw", ".et"])
def test_what_is_not_read_as_it_was_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    other = generate(MODELS["vgg16"], Parallel(dp=4), Training())
    monkeypatch.setattr("ringlight.workloads.formats.writing.read_any", lambda _: other)
    with pytest.raises(ValueError, match="what was written is not what is read from it"):
        write_any(many_kinds(), tmp_path / f"a{end}")


def test_who_waits_is_told_what_for(capfd: pytest.CaptureFixture[str]) -> None:
    with patience("quick", 30):
        pass
    with patience("reading", 0.01):
        deadline = time.monotonic() + 5
        said = ""
        while not said and time.monotonic() < deadline:
            time.sleep(0.01)
            said = capfd.readouterr().err
    assert said == "ringlight: reading\n"
