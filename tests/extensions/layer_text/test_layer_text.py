"""Workload texts of ASTRA-sim 1.0 and SimAI: those of others load unmodified, mistakes are named by line."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringlight.containers.image import ROOT
from ringlight.extensions.layer_text.reader import read
from ringlight.extensions.layer_text.text import looks_like
from ringlight.workloads.graph import Kind, Workload
from ringlight.workloads.packed import pack, unpack
from tests.unit.workloads import canonical, outcome

DATA = ROOT / "tests/extensions/layer_text/data"
SIMAI = DATA / "simai/workload_analytical.txt"


def text(tmp_path: Path, word: str, *layers: str) -> Path:
    path = tmp_path / "w.txt"
    path.write_text("\n".join([word, str(len(layers)), *layers]) + "\n")
    return path


def operations(workload: Workload) -> list[tuple[str, int, str, list[str]]]:
    """Operations of rank 0: name, bytes, stream, and their predecessors on other streams by name."""
    found = []
    for kind, name, size, stream, _, after in _columns(workload):
        assert kind in (Kind.COMPUTE, Kind.COLLECTIVE)
        found.append((name, size, stream, after))
    return found


def _columns(workload: Workload) -> list[tuple[Any, ...]]:
    program = workload.programs[0]
    names = [workload.names[k] for k in program.name.tolist()]
    rows = []
    for k in range(len(program)):
        after = program.after[
            program.after_offsets[k] : program.after_offsets[k + 1]
        ].tolist()
        other = [names[j] for j in after if program.stream[j] != program.stream[k]]
        stream = workload.streams[int(program.stream[k])]
        rows.append(
            (
                int(program.kind[k]),
                names[k],
                int(program.bytes[k]),
                stream,
                float(program.seconds[k]),
                other,
            )
        )
    return rows


def groups_of(workload: Workload, rank: int) -> list[list[int]]:
    return [workload.groups[g].tolist() for g in workload.communicators[rank].tolist()]


def test_simai_s_example_for_9216_gpus_loads_unmodified() -> None:
    workload = read(SIMAI)
    assert workload.ranks == 9216
    assert len(workload.programs) == 1
    sizes = [len(group) for group in groups_of(workload, 0)]
    assert dict(zip(("tensor", "expert", "expert data", "data"), sizes, strict=True)) == {
        "tensor": 2, "expert": 16, "expert data": 24, "data": 384,
    }  # fmt: skip
    assert len(workload.groups) == 4608 + 576 + 384 + 24
    program = workload.programs[0]
    columns = [line.split() for line in SIMAI.read_text().splitlines()[2:]]
    assert len(columns) == 1789
    computed = sum(int(line[at]) for line in columns for at in (2, 5, 8)) * 1e-9
    delays = 100e-9 * (program.kind == Kind.COLLECTIVE).sum()
    assert np.nansum(program.seconds) == pytest.approx(computed + delays, rel=1e-9)
    sent = sum(
        int(line[at]) for line in columns for at in (4, 7, 10) if line[at - 1] != "NONE"
    )
    assert program.bytes.sum() == sent


def test_groups_of_simai_are_disjoint_and_nested() -> None:
    """A rank's expert group and its expert-data group meet in it alone, and together make its data group."""
    workload = read(SIMAI)
    for rank in (0, 1, 767, 768, 5000, 9215):
        tensor, expert, expert_data, data = map(set, groups_of(workload, rank))
        assert tensor == {rank // 2 * 2, rank // 2 * 2 + 1}
        assert expert & expert_data == {rank}
        assert expert | expert_data <= data
        assert len({one // 768 for one in data}) == 1


@pytest.mark.parametrize(
    ("name", "options", "operations"),
    [
        ("Resnet50_DataParallel", {"ranks": 64}, 54 * 5 - 1),
        ("MLP_ModelParallel", {"ranks": 8}, 6 * 7 - 2),
        ("MLP_HybridParallel_Data_Model", {"ranks": 8, "model_ranks": 2}, 6 * 9 - 2),
        ("Transformer_HybridParallel", {"ranks": 16}, None),
        ("Transformer_HybridParallel_Fwd_In_Bckwd", {"ranks": 16}, None),
        ("DLRM_HybridParallel", {"ranks": 8}, None),
        (
            "sample_per_layer_parallel_HybridCustomized",
            {"ranks": 8, "model_ranks": 2},
            None,
        ),
    ],
)
def test_astra_sim_s_texts_load(
    name: str, options: dict[str, int], operations: int | None
) -> None:
    workload = read(DATA / f"astra_sim/{name}.txt", **options)
    assert workload.ranks == options["ranks"]
    assert len(workload.programs) == 1
    assert operations is None or len(workload.programs[0]) == operations
    assert canonical(unpack(pack(workload)))["ranks"] == canonical(workload)["ranks"]


def test_a_blocking_text_waits_for_gradients_of_inputs_and_overlaps_those_of_weights(
    tmp_path: Path,
) -> None:
    layers = (
        "a -1 10 ALLREDUCE 64 20 NONE 0 30 ALLGATHER 32 0",
        "b -1 11 ALLTOALL_EP 16 21 REDUCESCATTER 8 31 ALLREDUCE_DP_EP 4 7",
    )
    header = "HYBRID_TRANSFORMER model_parallel_NPU_group: 2 ep: 2 pp: 1 vpp: 1 ga: 1 all_gpus: 8 pp_comm: 4.0"
    workload = read(text(tmp_path, header, *layers))
    assert operations(workload) == [
        ("a forward", 0, "main", []),
        ("a forward all-reduce", 64, "tensor", ["a forward"]),
        ("b forward", 0, "main", ["a forward all-reduce"]),
        ("b forward all-to-all", 16, "expert", ["b forward"]),
        ("b forward all-to-all delay", 0, "expert delay", ["b forward all-to-all"]),
        ("b input gradient", 0, "main", ["b forward all-to-all delay"]),
        ("b input gradient reduce-scatter", 8, "tensor", ["b input gradient"]),
        (
            "b input gradient reduce-scatter delay",
            0,
            "tensor delay",
            ["b input gradient reduce-scatter"],
        ),
        ("b weight gradient", 0, "main", ["b input gradient reduce-scatter delay"]),
        ("b weight gradient all-reduce", 4, "expert data", ["b weight gradient"]),
        (
            "b weight gradient all-reduce delay",
            0,
            "expert data delay",
            ["b weight gradient all-reduce"],
        ),
        ("a input gradient", 0, "main", []),
        ("a weight gradient", 0, "main", []),
        ("a weight gradient all-gather", 32, "data", ["a weight gradient"]),
    ]
    assert groups_of(workload, 5) == [[4, 5], [5, 7], [1, 5], [1, 3, 5, 7]]
    seconds = [row[4] for row in _columns(workload) if row[0] == Kind.COMPUTE]
    assert seconds[:2] == pytest.approx([10e-9, 11e-9])


def test_an_overlapped_text_sends_the_input_s_gradient_beside_computing_for_weights(
    tmp_path: Path,
) -> None:
    layers = [
        f"{name} -1 1 ALLREDUCE 8 2 ALLREDUCE 16 3 ALLREDUCE 32 0" for name in "ab"
    ]
    workload = read(
        text(tmp_path, "HYBRID_DATA_MODEL", *layers), ranks=4, model_ranks=2
    )
    assert operations(workload)[4:] == [
        ("b input gradient", 0, "main", ["b forward all-reduce"]),
        ("b input gradient all-reduce", 16, "tensor", ["b input gradient"]),
        ("b weight gradient", 0, "main", []),
        ("b weight gradient all-reduce", 32, "data", ["b weight gradient"]),
        ("a input gradient", 0, "main", ["b input gradient all-reduce"]),
        ("a weight gradient", 0, "main", []),
        ("a weight gradient all-reduce", 32, "data", ["a weight gradient"]),
    ]
    assert groups_of(workload, 2) == [[2, 3], [0, 2]]
    workload = read(
        text(tmp_path, "HYBRID_MODEL_DATA", *layers), ranks=4, model_ranks=2
    )
    assert groups_of(workload, 2) == [[0, 2], [2, 3]]


def test_astra_sim_states_what_each_rank_puts_into_an_all_gather(
    tmp_path: Path,
) -> None:
    layer = "a -1 1 ALLGATHER 64 1 NONE 0 1 NONE 0 0"
    assert read(text(tmp_path, "MODEL", layer), ranks=8).programs[0].bytes.max() == 512


def test_data_parallel_layers_compute_gradients_of_weights_first(
    tmp_path: Path,
) -> None:
    layers = [f"{name} -1 1 NONE 0 2 NONE 0 3 ALLREDUCE 64 0" for name in "ab"]
    names = [
        row[0] for row in operations(read(text(tmp_path, "DATA", *layers), ranks=4))
    ]
    backward = ["b weight gradient", "b weight gradient all-reduce", "b input gradient"]
    assert names == [
        "a forward",
        "b forward",
        *backward,
        "a weight gradient",
        "a weight gradient all-reduce",
    ]


def test_checkpoints_have_forward_passes_made_again(tmp_path: Path) -> None:
    layers = [f"{name} -1 1 NONE 0 1 NONE 0 1 NONE 0 0" for name in "abcd"]
    header = (
        "HYBRID_TRANSFORMER_FWD_IN_BCKWD checkpoints: 1 0 checkpoint_initiates: 1 2"
    )
    names = [
        row[0]
        for row in operations(
            read(text(tmp_path, header, *layers), ranks=2, model_ranks=1)
        )
    ]
    assert names[6:9] == ["a forward", "b forward", "c input gradient"]


def test_checkpoints_without_end_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringlight.extensions.layer_text.reader.OPERATIONS_LIMIT", 1000)
    layers = ["a -1 1 NONE 0 1 NONE 0 1 NONE 0 0"] * 100
    asking = " ".join(map(str, range(1, 100)))
    header = f"HYBRID_TRANSFORMER_FWD_IN_BCKWD checkpoints: 1 0 checkpoint_initiates: 99 {asking}"
    with pytest.raises(ValueError, match="it comes to more than 1000 operations"):
        read(text(tmp_path, header, *layers), ranks=2, model_ranks=1)


def test_an_embedding_s_lookup_goes_on_beside_the_bottom_layers(tmp_path: Path) -> None:
    layers = ["e -1 1 ALLTOALL 64 1 ALLTOALL 64 1 NONE 0 0"]
    layers += [
        f"{name} -1 1 NONE 0 1 NONE 0 1 ALLREDUCE 8 0" for name in ("bottom", "top")
    ]
    rows = operations(read(text(tmp_path, "HYBRID_DLRM 1", *layers), ranks=4))
    after = {name: others for name, _, _, others in rows}
    assert after["bottom forward"] == []
    assert after["top forward"] == ["e forward all-to-all"]
    assert after["e input gradient all-to-all"] == ["top input gradient"]


GOOD = "a -1 1 ALLREDUCE 64 1 NONE 0 1 NONE 0 0"


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("", {}, "line 1: a header and the number of layers are missing"),
        ("DATUM\n0\n", {}, "line 1: 'DATUM' is no parallelism; there are DATA, MODEL"),
        ("DATA 7\n0\n", {}, "line 1: '7' belongs to nothing"),
        ("DATA\nmany\n", {}, "line 2: the number of layers: 'many' is no whole number"),
        (f"MODEL\n2\n{GOOD}\n", {}, "line 3: 2 layers were announced, 1 are there"),
        (f"MODEL\n1\n{GOOD}\n{GOOD}", {}, "line 4: 1 layers were announced, 2 are there"),
        ("MODEL\n1\na -1 1 NONE\n", {}, "line 3: a layer has 12 fields, not 4"),
        ("MODEL\n\n1\n\na -1 1 ALLSUM 64 1 NONE 0 1 NONE 0 0", {}, "line 5: 'ALLSUM' is no type; there are"),
        ("MODEL\n1\na -1 1 ALLREDUCE -4 1 NONE 0 1 NONE 0 0", {}, "line 3: a size: '-4' is no whole number"),
        ("MODEL\n1\na -1 nan NONE 0 1 NONE 0 1 NONE 0 0", {}, "line 3: a time: 'nan' is no whole number"),
        ("MODEL\n1\na -1 1.5 NONE 0 1 NONE 0 1 NONE 0 0", {}, "line 3: a time: '1.5' is no whole number"),
        (f"MODEL\n1\n{GOOD}\n", {}, "line 1: the text does not say how many ranks there are"),
        (
            f"HYBRID_DATA_MODEL\n1\n{GOOD}\n", {"ranks": 4},
            "line 3: its parallelism is hybrid, and the text does not say how many ranks a group of model",
        ),
        (f"HYBRID_TRANSFORMER all_gpus: 4\n1\n{GOOD}\n", {}, "line 3: its parallelism is hybrid"),
        (
            f"HYBRID_CUSTOMIZED\n2\n{GOOD} DATA\n{GOOD} HYBRID_MODEL_DATA\n", {"ranks": 4},
            "line 4: its parallelism is hybrid",
        ),
        (f"MODEL all_gpus: 4\n1\n{GOOD}\n", {"ranks": 8}, "line 1: it is for 4 ranks, not 8"),
        (f"MODEL all_gpus: 8 pp: 3\n1\n{GOOD}\n", {}, "line 1: 8 ranks do not divide into 3 stages of"),
        (f"MODEL all_gpus: 99999999\n1\n{GOOD}\n", {}, "line 1: it has 99999999 ranks"),
        (f"HYBRID_CUSTOMIZED\n1\n{GOOD} WILD\n", {"ranks": 2}, "line 3: 'WILD' is no parallelism"),
        ("MODEL\n1\na -1 0 NONE 0 0 NONE 0 0 NONE 0 0", {"ranks": 2}, "line 2: there is nothing to do in it"),
        (
            "HYBRID_TRANSFORMER ep: 3 all_gpus: 8\n1\na -1 1 ALLTOALL_EP 64 1 NONE 0 1 NONE 0 0",
            {"model_ranks": 1},
            "line 3: its 8 ranks of data parallelism do not divide into 3 experts",
        ),
    ],
)  # fmt: skip
def test_mistakes_are_named_by_line(
    tmp_path: Path, content: str, options: dict[str, int], message: str
) -> None:
    path = tmp_path / "w.txt"
    path.write_text(content)
    with pytest.raises(ValueError) as caught:
        read(path, **options)
    assert str(caught.value).startswith(f"{path}, {message}")
    assert "\n" not in str(caught.value)


def test_what_is_no_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"gone\.txt: No such file"):
        read(tmp_path / "gone.txt")
    (tmp_path / "w.txt").write_bytes(b"DATA\n\xff")
    with pytest.raises(ValueError, match="byte 5: this is no text"):
        read(tmp_path / "w.txt")
    assert looks_like(SIMAI.read_text())
    assert not looks_like("a,b\n1,2\n")


FILES = (
    "simai/microAllReduce.txt", "astra_sim/DLRM_HybridParallel.txt", "astra_sim/MLP_ModelParallel.txt",
    "astra_sim/Transformer_HybridParallel_Fwd_In_Bckwd.txt",
    "astra_sim/sample_per_layer_parallel_HybridCustomized.txt",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(200))
def test_a_changed_text_is_read_or_refused_in_one_line(
    tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    name = draw.choice(FILES)
    data = bytearray((DATA / name).read_bytes())
    for _ in range(draw.choice((1, 1, 4))):
        way, at = draw.randrange(4), draw.randrange(len(data))
        if way == 0:
            data[at] = draw.randrange(256)
        elif way == 1:
            del data[at : at + draw.choice((1, 9, len(data)))]
            data = data or bytearray(b"x")
        else:
            words = data.split(b"\t") if b"\t" in data else data.split(b" ")
            odd = (
                b"-1",
                b"9" * 30,
                b"NONE",
                b"ALLTOALL_EP",
                b"1e9",
                b"",
                b"\n",
                b"pp:",
                b"ALLREDUCE_DP_EP",
                b"0",
            )
            words[draw.randrange(len(words))] = draw.choice(odd)
            data = bytearray(b"\t".join(words)) or bytearray(b"x")
    path = tmp_path / "w.txt"
    path.write_bytes(data)
    ranks = None if name.startswith("simai") else 16
    found = outcome(lambda: read(path, ranks))
    if found is not None:
        assert (
            canonical(unpack(pack(found)))["ranks"][0] == canonical(found)["ranks"][0]
        )
