"""Algorithms of the user's, MSCCL files: in a scenario and in a bench, and on their way to the workers."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import parse
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.record.events import Iteration
from ringlight.experiments.runner.experiment import run_alone
from ringlight.extensions.msccl.reader import read_msccl
from ringlight.extensions.msccl.writer import write_msccl
from ringlight.fabric.kinds import KINDS, collective_steps
from ringlight.fabric.steps import WrittenSteps
from ringlight.workloads.graph import Collective, Workload
from ringlight.workloads.packed import MAGIC, pack, unpack
from ringlight.workloads.traffic import sent
from tests.unit.test_cli import ROOT, one_line, ringlight

ALL_PAIRS = ROOT / "scenarios/examples/all_pairs_4.xml"
TEXT = """
name: own
description: One collective.
scale: {time: 1, payload: 400}
fabric: {leaf_spine: {leaves: 2, spines: 1, gpus_per_leaf: 2, gpu: a100, rate: 10 Gbit/s}}
jobs: {train: {ranks: all, workload: {collective: %s, size: 16 MB, iterations: 2}}}
"""


def workload_of(collective: str, directory: Path, more: str = "") -> Workload:
    text = TEXT % collective + more
    (plan,) = parse(text, str(directory / "own.yaml")).plans
    assert plan.jobs[0].workload is not None
    return plan.jobs[0].workload


@pytest.mark.parametrize("kind", KINDS)
def test_an_algorithm_of_a_file_moves_what_the_same_by_its_name_moves(
    kind: str, tmp_path: Path
) -> None:
    root = 2 if kind in ("broadcast", "reduce") else 0
    steps = collective_steps(kind, "", 4, root)
    write_msccl(tmp_path / "a.xml", kind, steps, root)
    if kind == "all-to-all-v":
        with pytest.raises(
            ScenarioError,
            match=r"collective\.file: .*a\.xml: the parts of an all-to-all-v differ",
        ):
            workload_of("{file: a.xml}", tmp_path)
        return
    own = workload_of("{file: a.xml}", tmp_path)
    found = own.collectives[0].own
    assert found is not None
    assert [(op, set(rows)) for op, rows in found.rows] == [
        (op, set(rows)) for op, rows in WrittenSteps.of(steps).rows
    ]
    assert own.collectives[0].kind == kind
    named = own.collectives[0]._replace(own=None, algorithm="", root=root)
    assert (sent(own) == sent(_with(own, named))).all()


def _with(workload: Workload, what: Collective) -> Workload:
    return replace(workload, collectives=(what,))


def test_a_simulated_algorithm_takes_the_time_of_its_own_steps(tmp_path: Path) -> None:
    def times(collective: str) -> list[float]:
        text = (TEXT % collective).replace(
            "rate: 10 Gbit/s", "rate: 10 Gbit/s, uplink_rate: 5 Gbit/s"
        )
        (plan,) = parse(text, str(ROOT / "scenarios/examples/own.yaml")).plans
        records, failures = run_alone(SimulationBackend(), plan)
        assert not failures
        return [record.whole_s for record in records if isinstance(record, Iteration)]

    ring, own = times("all-reduce"), times("{file: all_pairs_4.xml}")
    # Between the leaves the ring sends 6 quarters of the vector, all pairs 8; links of half the rate there.
    assert own[0] / ring[0] == pytest.approx(8 / 6, rel=0.01)


def test_an_algorithm_travels_whole_and_a_damaged_one_is_refused() -> None:
    workload = workload_of("{file: all_pairs_4.xml}", ALL_PAIRS.parent)
    data = pack(workload)
    back = unpack(data)
    assert back.collectives == workload.collectives
    assert back.collectives[0].own == WrittenSteps.of(read_msccl(ALL_PAIRS).steps)
    assert pack(back) == data

    def damaged(before: bytes, after: bytes) -> bytes:
        raw = zlib.decompress(data[len(MAGIC) :])
        assert before in raw
        length = int.from_bytes(raw[:4], "little")
        header = raw[4 : 4 + length].replace(before, after)
        return MAGIC + zlib.compress(
            len(header).to_bytes(4, "little") + header + raw[4 + length :]
        )

    for before, after, said in (
        (
            b'["reduce", 12]',
            b'["reduce", 11]',
            "the transfers of a schedule do not fit its steps",
        ),
        (
            b'["reduce", 12]',
            b'["remove", 12]',
            "the transfers of a schedule do not fit its steps",
        ),
        (b'["replace", 12]', b'["reduce", 12]', "rank 0 ends with the value of rank"),
        (
            b'"all-pairs", 4, 4',
            b'"all-pairs", 4, 3',
            "a transfer of chunks that are none of 3",
        ),
        (b'"all-pairs", 4, 4', b'"all-pairs", 9999, 9999', "more than can be checked"),
        (b'"all-pairs", 4, 4', b'"all-pairs", 4', "a schedule is not described by"),
    ):
        with pytest.raises(ValueError, match=said):
            unpack(damaged(before, after))


@pytest.mark.parametrize(
    ("collective", "more", "said"),
    [
        ("{file: none.xml}", "", "jobs.train.workload.collective.file: "),
        (
            "{file: ../x.xml}",
            "",
            "jobs.train.workload.collective.file: '../x.xml' is not below the directory",
        ),
        (
            "{fil: x.xml}",
            "",
            "jobs.train.workload.collective.fil: unknown key; the nearest is file",
        ),
        (
            "{file: all_pairs_4.xml}, algorithm: ring",
            "",
            "jobs.train.workload: algorithm: it is that of all_",
        ),
        (
            "{file: all_pairs_4.xml}, split: {skew: 1}",
            "",
            "jobs.train.workload.split: only an all-to-all-v",
        ),
        (
            "{file: all_pairs_4.xml}",
            "arms: {two: {jobs.train.ranks: [g0, g1]}}",
            "workload.collective.file: all-pairs: a schedule of 4 ranks for 2 ranks (in arm two)",
        ),
        (
            "all-reduce",
            "training: {model: resnet50, compute: 1 ms, batch: 1, iterations: 1, collective: {file: a.xml}}\n"
            "arms: {two: {jobs: {train: {gpus: 2}}}}",
            "training.collective: an algorithm of a file is a job's workload",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_its_key(
    collective: str, more: str, said: str
) -> None:
    with pytest.raises(ScenarioError) as refused:
        workload_of(collective, ALL_PAIRS.parent, more)
    assert said in str(refused.value)


def test_a_wrong_line_of_a_file_is_named(tmp_path: Path) -> None:
    lines = ALL_PAIRS.read_text().splitlines()
    wrong = next(number for number, line in enumerate(lines, 1) if 'type="rrc"' in line)
    lines[wrong - 1] = lines[wrong - 1].replace("rrc", "rxx")
    (tmp_path / "a.xml").write_text("\n".join(lines))
    with pytest.raises(
        ScenarioError,
        match=rf"collective\.file: .*a\.xml, line {wrong}: step has 'rxx' type",
    ):
        workload_of("{file: a.xml}", tmp_path)


def test_a_bench_takes_a_file_and_a_path_leads_into_a_scenario_to_it(
    tmp_path: Path,
) -> None:
    pytest.importorskip("ringlight.extensions.bench")
    (tmp_path / "own.yaml").write_text(TEXT % "all-reduce")
    bench = (
        "bench",
        str(tmp_path / "own.yaml"),
        "--simulate",
        "--sizes",
        "1MiB",
        "--algorithm",
        str(ALL_PAIRS),
    )
    done = ringlight(*bench)
    assert done.stdout.startswith(
        "all-reduce as all-pairs, 2 steps, arm base on fabric\n"
    )
    assert json.loads(ringlight(*bench, "--json").stdout)["collective"] == "all-reduce"
    said = one_line(ringlight(*bench, "--collective", "all-gather"))
    assert (
        f"--algorithm: {ALL_PAIRS} is an all-reduce, and --collective says all-gather"
        in said
    )
    said = one_line(ringlight(*bench, "--ranks", "g0,g1,g2"))
    assert "--algorithm: all-pairs: a schedule of 4 ranks for 3 ranks" in said
    said = one_line(ringlight(*bench[:-1], str(tmp_path / "none.xml")))
    assert f"--algorithm: {tmp_path}/none.xml: No such file or directory" in said


def test_a_run_folder_has_the_file(tmp_path: Path) -> None:
    (tmp_path / "all_pairs_4.xml").write_bytes(ALL_PAIRS.read_bytes())
    (tmp_path / "own.yaml").write_text(TEXT % "{file: all_pairs_4.xml}")
    runs = tmp_path / "runs"
    done = ringlight(
        "simulate", str(tmp_path / "own.yaml"), "--runs", str(runs), "--json"
    )
    assert done.returncode == 0, done.stderr
    (folder,) = runs.iterdir()
    assert (folder / "all_pairs_4.xml").read_bytes() == ALL_PAIRS.read_bytes()
    assert ringlight("report", str(folder)).returncode == 0


def test_an_example_is_copied_with_its_algorithm(
    tmp_path: Path,
) -> None:
    done = ringlight("examples", "copy", "own_algorithm", str(tmp_path))
    assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["all_pairs_4.xml", "own_algorithm.yaml"]
