"""Generated workloads: bytes are the closed forms', groups are where they belong, and all of it ends."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.extensions.models.catalogue import MODELS
from ringlight.extensions.models.layers import Transformer, layers
from ringlight.extensions.models.parallelism import generate, rank_grid
from ringlight.extensions.models.settings import Parallel, Training
from ringlight.workloads.devices import DEVICES
from ringlight.workloads.graph import Kind, Program, Split, Workload
from ringlight.workloads.graph_writer import data_parallel_loop
from ringlight.workloads.summary import summary, traffic
from tests.extensions.models.closed_forms import communication_bytes
from tests.extensions.models.ideal_network import ideal_run
from tests.extensions.models.iteration_time import IdealNetwork

NETWORK = IdealNetwork(12.5e9, 1e-6)


def small(name: str, blocks: int) -> Transformer:
    """The model with few narrow blocks: its shape counts, and its odd vocabulary."""
    model = MODELS[name]
    assert isinstance(model, Transformer)
    kv = 8 if model.kv_heads < model.heads else 16
    encoder = blocks if model.encoder_layers else 0
    return replace(
        model,
        layers=blocks,
        encoder_layers=encoder,
        hidden=64,
        heads=16,
        kv_heads=kv,
        ffn=96,
        head_dim=4,
    )


def sent(workload: Workload) -> dict[str, int]:
    return {purpose: one.sent for purpose, one in traffic(workload).items() if one.sent}


SIZES = st.sampled_from([1, 2, 4])


@given(
    name=st.sampled_from(["gpt2-medium", "llama3-8b", "mixtral-8x7b", "bert-large", "transformer-big"]),
    blocks=st.integers(4, 9), dp=SIZES, tp=SIZES, pp=SIZES, ep=SIZES, data=st.data(),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_bytes_are_the_closed_forms(
    name: str, blocks: int, dp: int, tp: int, pp: int, ep: int, data: st.DataObject
) -> None:
    model = small(name, blocks)
    ep = ep if model.experts > 1 else 1
    pp = pp if not model.encoder_layers else 1
    virtual = data.draw(
        st.sampled_from([1, 2]) if 1 < pp <= blocks // 2 else st.just(1)
    )
    training = Training(
        micro_batch=data.draw(st.integers(1, 3)),
        micro_batches=pp * data.draw(st.integers(1, 3)),
        sequence=data.draw(st.sampled_from([8, 20])),
        schedule="interleaved"
        if virtual > 1
        else data.draw(st.sampled_from(["gpipe", "1f1b", "interleaved"])),
        virtual_stages=virtual,
        bucket_bytes=data.draw(st.sampled_from([1, 40_000, 1 << 30])),
        zero=data.draw(st.integers(0, 3)),
        sequence_parallel=data.draw(st.booleans()),
        recompute=data.draw(st.booleans()),
        gradient_bytes=data.draw(st.sampled_from([2, 4])),
        split=Split(3, data.draw(st.sampled_from([0.0, 1.0]))),
    )
    parallel = Parallel(dp, tp, pp, ep)
    workload = generate(model, parallel, training, DEVICES["a100"])
    assert sent(workload) == communication_bytes(model, parallel, training)
    ideal_run(workload, NETWORK, rank_grid(parallel)[:, 0, 0, 0].tolist())


def test_mixtral_at_1024_ranks() -> None:
    """dp 2, tp 8, pp 8, ep 8: attention is replicated 16 times, experts twice."""
    model, parallel = MODELS["mixtral-8x22b"], Parallel(dp=2, tp=8, pp=8, ep=8)
    training = Training(micro_batches=16, sequence=4096, split=Split(1, 0.8))
    before = time.perf_counter()
    workload = generate(model, parallel, training)
    assert time.perf_counter() - before < 30
    assert (workload.ranks, len(workload.programs)) == (1024, 8)
    assert sent(workload) == communication_bytes(model, parallel, training)
    assert sent(workload) == {
        "dp": 2 * 15 * 2 * _dense_at_8(),
        "edp": 2 * 1 * 2 * 56 * 8 * 3 * 6144 * 16384,
        "tp": 16 * 16 * (4 * 56 + 2) * 2 * 7 * 4096 * 6144 * 2,
        "pp": 16 * 16 * 2 * 7 * 8 * 4096 * 6144 * 2,
        "ep": 2 * 8 * 56 * 16 * 4 * 7 * 2 * 4096 * 6144 * 2,
    }
    # A rank of the first or the last stage has one reduction more; one between sends both ways.
    most = {purpose: one.most for purpose, one in traffic(workload).items()}
    hidden = 4096 * 6144 * 2
    assert most["tp"] == 16 * (4 * 7 + 1) * 2 * 7 / 8 * hidden
    assert most["pp"] == 16 * 2 * hidden
    assert most["ep"] == 16 * 7 * 4 * 7 / 8 * 2 * hidden
    assert summary(workload).groups == {2: 512, 8: 128 + 128, 16: 64}


def _dense_at_8() -> int:
    """Parameters that are no expert's, with norms and routers at each of 8 tensor-parallel ranks."""
    matrices = 56 * (2 * 6144 * 6144 + 2 * 6144 * 1024) + 2 * 32000 * 6144
    return matrices + 8 * (56 * (2 * 6144 + 6144 * 8) + 6144)


@pytest.mark.parametrize("name", ["vgg16", "resnet50", "dlrm"])
def test_models_that_are_only_replicated(name: str) -> None:
    model, parallel = MODELS[name], Parallel(dp=8)
    training = Training(
        micro_batch=32, micro_batches=2, element_bytes=4, gradient_bytes=4
    )
    workload = generate(model, parallel, training, DEVICES["v100"])
    assert sent(workload) == communication_bytes(model, parallel, training)
    ideal_run(workload, NETWORK)


def test_ranks_count_tensor_expert_data_pipeline() -> None:
    model = small("mixtral-8x7b", 4)
    workload = generate(
        model,
        Parallel(dp=2, tp=2, pp=2, ep=2),
        Training(micro_batches=2, sequence=8, zero=3),
    )
    groups = [set(group.tolist()) for group in workload.groups]
    for expected in ({0, 1}, {0, 2}, {0, 2, 4, 6}, {0, 4}):
        assert expected in groups
    assert {0, 8} not in groups
    assert workload.peers[3].tolist() == [11, 11]
    assert workload.program_of.tolist() == [0] * 8 + [1] * 8


def test_ranks_run_to_the_end_one_by_one() -> None:
    """Not only one rank of each stage for all that are alike: groups meet as they are."""
    model = small("gpt2-medium", 6)
    parallel = Parallel(dp=2, tp=2, pp=3)
    training = Training(
        micro_batches=6, sequence=8, schedule="interleaved", virtual_stages=2, zero=1
    )
    workload = generate(model, parallel, training, DEVICES["a100"])
    every = ideal_run(workload, NETWORK)
    one_each = ideal_run(workload, NETWORK, [0, 4, 8])
    assert [every[0], every[4], every[8]] == one_each
    assert every[:4] == [every[0]] * 4


def test_gradients_are_reduced_while_the_backward_pass_goes_on() -> None:
    model, device = MODELS["resnet50"], DEVICES["v100"]
    training = Training(micro_batch=32, element_bytes=4, gradient_bytes=4)
    workload = generate(model, Parallel(dp=4), training, device)
    program = workload.programs[0]
    reduced = np.flatnonzero(program.kind == Kind.COLLECTIVE)
    sizes = program.bytes[reduced]
    # As DDP has it: the first after 1 MiB, the others after 25.
    assert sizes[0] == 4 * (2048 * 1000 + 1000)
    assert sizes.tolist() == _buckets([4 * layer.parameters for layer in layers(model)])
    assert len(sizes) == 5
    assert sizes.sum() == 4 * 25_557_032
    ends = np.array(ideal_run(workload, IdealNetwork(1e9), [0])[0])
    last_backward = ends[_named(workload, program, "conv1 backward")[0]]
    taken = [IdealNetwork(1e9).all_reduce_s(size, 4) for size in sizes.tolist()]
    alone = program.seconds[program.kind == Kind.COMPUTE].sum()
    assert last_backward == pytest.approx(alone)
    assert ends[reduced[0]] < last_backward
    assert max(alone, sum(taken)) < ends[reduced[-1]] < alone + sum(taken)


def _buckets(gradients: list[int]) -> list[int]:
    """Gradients of layers, from the last one on, until there are enough."""
    found = [0]
    for number, size in enumerate(reversed(gradients)):
        found[-1] += size
        if (
            found[-1] >= (25 << 20 if len(found) > 1 else 1 << 20)
            and number < len(gradients) - 1
        ):
            found.append(0)
    return found


def _named(workload: Workload, program: Program, name: str) -> list[int]:
    return [k for k, n in enumerate(program.name.tolist()) if workload.names[n] == name]


def test_a_recommender_exchanges_vectors_while_it_computes() -> None:
    workload = generate(
        MODELS["dlrm"], Parallel(dp=8), Training(micro_batch=4096), DEVICES["a100"]
    )
    program = workload.programs[0]
    ends = ideal_run(workload, NETWORK, [0])[0]
    (arrived,) = _named(workload, program, "tables vectors")
    (bottom,) = _named(workload, program, "bottom 2 forward")
    (interaction,) = _named(workload, program, "interaction forward")
    assert program.bytes[arrived] == 4096 * 26 * 128 * 2
    assert ends[bottom] < ends[arrived] < ends[interaction]


def test_parameters_of_zero_3_are_fetched_one_layer_ahead() -> None:
    workload = generate(
        small("llama2-7b", 4),
        Parallel(dp=4),
        Training(sequence=8, zero=3),
        DEVICES["a100"],
    )
    program = workload.programs[0]
    gathers = _named(workload, program, "dp parameters")
    computed = np.flatnonzero(program.kind == Kind.COMPUTE)
    assert len(gathers) == len(computed)
    for number, gather in enumerate(gathers):
        after = program.after[
            program.after_offsets[gather] : program.after_offsets[gather + 1]
        ].tolist()
        assert after == ([computed[number - 2]] if number > 1 else [])


def test_tokens_come_back_from_where_they_went() -> None:
    """Each block and micro-batch draws once: there and back, forward and, the gradients, backward."""
    model = small("mixtral-8x7b", 4)
    training = Training(
        micro_batches=3, sequence=8, split=Split(5, 1.0, same_order=True)
    )
    workload = generate(model, Parallel(ep=4), training)
    program = workload.programs[0]
    called: dict[int, list[tuple[str, bool]]] = {}
    for k in np.flatnonzero(program.kind == Kind.COLLECTIVE).tolist():
        split = workload.collectives[program.collective[k]].split
        if split is not None:
            assert (split.seed, split.skew, split.same_order) == (5, 1.0, True)
            assert split.draw is not None
            called.setdefault(split.draw, []).append(
                (workload.names[program.name[k]], split.back)
            )
    forward = [("ep dispatch", False), ("ep combine", True)]
    backward = [("ep combine gradients", False), ("ep dispatch gradients", True)]
    assert len(called) == 4 * 3
    assert all(calls == forward + backward for calls in called.values())


def test_the_training_loop_is_a_workload() -> None:
    workload = data_parallel_loop(4, 0.25, 1 << 20, "ring")
    assert workload.operations == 8
    assert sent(workload) == {"dp": 2 * 3 << 20}
    assert ideal_run(workload, IdealNetwork(1 << 20))[2] == [0.25, 0.25 + 1.5]
    assert workload.collectives[0].algorithm == "ring"


@pytest.mark.parametrize(
    ("name", "parallel", "training", "message"),
    [
        ("vgg16", Parallel(tp=2), Training(), "tp: vgg16 is generated with dp only"),
        (
            "llama2-7b",
            Parallel(ep=2),
            Training(),
            "ep: 2 does not divide the experts of llama2-7b, 1",
        ),
        (
            "llama3-8b",
            Parallel(tp=16),
            Training(),
            "tp: 16 does not divide the 8 kv_heads of llama3-8b",
        ),
        (
            "llama3-8b",
            Parallel(pp=64),
            Training(),
            "pp: 64 stages of 1 chunks, but 32 blocks",
        ),
        (
            "transformer-big",
            Parallel(pp=2),
            Training(),
            "pp: transformer-big has an encoder",
        ),
        ("gpt2-medium", Parallel(dp=0), Training(), "dp: 0 must be 1 or more"),
        ("gpt2-medium", Parallel(), Training(zero=4), "zero: 4 is no stage of ZeRO"),
        (
            "gpt2-medium",
            Parallel(),
            Training(virtual_stages=2),
            "virtual_stages: only a pipeline",
        ),
        (
            "gpt2-medium",
            Parallel(),
            Training(sequence=2048),
            "sequence: 2048 tokens, but gpt2-medium has 1024",
        ),
        (
            "gpt2-medium",
            Parallel(),
            Training(split=Split(skew=-1)),
            "split: skew -1 must be 0 or more",
        ),
        (
            "gpt2-medium",
            Parallel(),
            Training(algorithms={"sum": ""}),
            "algorithms: there is no collective sum",
        ),
        (
            "gpt2-medium",
            Parallel(3),
            Training(algorithms={"all-reduce": "x"}),
            "algorithms: .*ring",
        ),
        (
            "gpt2-medium",
            Parallel(),
            Training(schedule="x"),
            "schedule: no x; there are gpipe",
        ),
        (
            "gpt2-medium",
            Parallel(tp=2),
            Training(sequence=5, sequence_parallel=True),
            "sequence_parallel: tp 2",
        ),
    ],
)
def test_impossible_settings_are_named(
    name: str, parallel: Parallel, training: Training, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        generate(MODELS[name], parallel, training)
