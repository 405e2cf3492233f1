"""Operators: together they are the layers, edges are the architecture's, and dividing loses nothing."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.extensions.models.catalogue import MODELS
from ringlight.extensions.models.layers import (
    Transformer,
    Vision,
    forward_flops,
    layers,
    parameters,
)
from ringlight.extensions.models.operators import Operator, operators, shares, split
from ringlight.workloads.devices import DEVICES

WITH_OPERATORS = [
    name
    for name, model in MODELS.items()
    if isinstance(model, Vision)
    or (isinstance(model, Transformer) and model.experts == 1)
]


@pytest.mark.parametrize("name", WITH_OPERATORS)
def test_operators_are_together_what_the_layers_are(name: str) -> None:
    model = MODELS[name]
    graph = operators(model, 3)
    assert sum(one.parameters for one in graph) == parameters(model)
    assert sum(one.flops for one in graph) == pytest.approx(
        3 * forward_flops(model), rel=1e-12
    )
    assert sum(one.backward_flops for one in graph) == pytest.approx(
        6 * forward_flops(model), rel=1e-12
    )
    assert min(one.flops for one in graph) >= 0
    assert min(one.parameters for one in graph) >= 0


@pytest.mark.parametrize("name", WITH_OPERATORS)
def test_every_output_is_taken_but_the_last(name: str) -> None:
    graph = operators(MODELS[name], 1)
    assert all(k < number for number, one in enumerate(graph) for k in one.after)
    assert all(len(set(one.after)) == len(one.after) for one in graph)
    assert [number for number, one in enumerate(graph) if not one.after] == [0]
    assert {k for one in graph for k in one.after} == set(range(len(graph) - 1))


def named(
    name: str, samples: int = 1, element_bytes: int = 1
) -> dict[str, tuple[Operator, set[str]]]:
    """By name: the operator, and the names of those whose outputs it takes."""
    graph = operators(MODELS[name], samples, element_bytes=element_bytes)
    return {one.name: (one, {graph[k].name for k in one.after}) for one in graph}


def test_the_residual_edges_of_resnet50() -> None:
    found = named("resnet50")
    after = {name: taken for name, (_, taken) in found.items()}
    assert after["conv2_1s"] == after["conv2_1a"] == {"conv1"}
    assert after["conv2_1c"] == {"conv2_1b", "conv2_1s"}
    assert after["conv2_2c"] == {"conv2_2b", "conv2_1c"}
    assert after["conv3_1a"] == after["conv3_1s"] == {"conv2_3c"}
    assert after["fc"] == {"conv5_3c"}
    assert [len(taken) for taken in after.values()].count(2) == 16
    size = {name: one.output_bytes for name, (one, _) in found.items()}
    assert size["conv1"] == 64 * 56 * 56  # behind its pooling
    assert size["conv2_1b"] == 64 * 56 * 56
    assert size["conv3_1a"] == 128 * 56 * 56  # the stride is in the one that follows
    assert size["conv5_3c"] == 2048  # behind the mean over 7 x 7


def test_pools_of_vgg16_are_before_what_is_handed_on() -> None:
    size = {name: one.output_bytes for name, (one, _) in named("vgg16").items()}
    assert size["conv1_1"] == 64 * 224 * 224
    assert size["conv1_2"] == 64 * 112 * 112
    assert size["conv5_3"] == 512 * 7 * 7
    assert size["fc6"] == 4096


def test_a_decoder_takes_what_the_encoder_gives() -> None:
    found = named("transformer-big", samples=8, element_bytes=4)
    for block in range(6):
        key_value, taken = found[f"block {block} cross-attention key value"]
        assert taken == {"encoder 5 mlp output"}
        assert key_value.output_bytes == 8 * 64 * 2 * 1024 * 4
        scores = found[f"block {block} cross-attention scores"][1]
        assert scores == {
            f"block {block} cross-attention {name}" for name in ("query", "key value")
        }
    assert found["block 0 attention output"][1] == {
        "block 0 attention scores",
        "embedding",
    }
    assert found["head"][0].beside == 0


def test_the_operators_of_a_gpts_block() -> None:
    h, s = 1024, 1024
    found = {
        name: one
        for name, (one, _) in named("gpt2-medium").items()
        if name.startswith("block 7 ")
    }
    assert {
        name.removeprefix("block 7 "): (one.parameters, one.flops)
        for name, one in found.items()
    } == {
        "attention query key value": (3 * h * h + 3 * h + 2 * h, 6 * s * h * h),
        "attention scores": (0, 4 * s * s * h),
        "attention output": (h * h + h, 2 * s * h * h),
        "mlp input": (4 * h * h + 4 * h + 2 * h, 8 * s * h * h),
        "mlp output": (4 * h * h + h, 8 * s * h * h),
    }


@given(
    samples=st.integers(1, 64),
    element_bytes=st.sampled_from([2, 4]),
    sequence=st.sampled_from([0, 128]),
)
@settings(max_examples=20, deadline=None)
def test_outputs_and_flops_grow_with_the_batch(
    samples: int, element_bytes: int, sequence: int
) -> None:
    model = MODELS["bert-large"]
    one_sample = operators(model, 1, element_bytes=1, sequence=sequence)
    graph = operators(model, samples, element_bytes=element_bytes, sequence=sequence)
    for one, alone in zip(graph, one_sample, strict=True):
        assert one.flops == pytest.approx(samples * alone.flops, rel=1e-12)
        assert one.output_bytes == samples * element_bytes * alone.output_bytes
        assert (one.name, one.parameters, one.after) == (
            alone.name,
            alone.parameters,
            alone.after,
        )
    assert {layer.output for layer in layers(model, sequence)} <= {
        one.output_bytes for one in one_sample
    }


@given(total=st.integers(0, 10**12), pieces=st.integers(1, 2000))
def test_shares_are_all_of_it_and_equal_to_within_one(total: int, pieces: int) -> None:
    found = shares(total, pieces)
    assert len(found) == pieces
    assert sum(found) == total
    assert max(found) - min(found) <= 1


@given(
    name=st.sampled_from(["resnet50", "gpt2-medium", "transformer-big"]), most=st.integers(1, 40),
    quantum_s=st.floats(1e-9, 1e-2),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_pieces_are_powers_of_two_no_shorter_than_the_quantum(
    name: str, most: int, quantum_s: float
) -> None:
    device = DEVICES["a100"]
    graph = operators(MODELS[name], 4)
    found = split(graph, device, most, quantum_s=quantum_s)
    if name != "resnet50":
        assert found[0] == found[-1]  # they lie beside each other
    for one, pieces in list(zip(graph, found, strict=True))[1:]:
        taken_s = one.flops / device.flops_per_s(4)
        assert pieces == most or math.log2(pieces).is_integer()
        assert pieces == 1 or taken_s / pieces >= quantum_s * (1 - 1e-9)
        assert pieces == most or taken_s / (2 * pieces) < quantum_s * (1 + 1e-9)


def test_the_reference_formula_by_hand() -> None:
    rate = DEVICES["a100"].flops_per_s(4)
    graph = [
        Operator(str(us), us * 1e-6 * rate * (1 + 1e-9), 8, 8)
        for us in (0.4, 1, 3.9, 4, 7.5, 8, 1000)
    ]
    assert split(graph, DEVICES["a100"], 8) == (1, 1, 2, 4, 4, 8, 8)
    assert split(graph, DEVICES["a100"], 6) == (1, 1, 2, 4, 4, 6, 6)


def test_models_without_operators_are_named() -> None:
    for name in ("dlrm", "mixtral-8x7b"):
        with pytest.raises(
            ValueError,
            match=f"{name}: there are operators of image models and of dense",
        ):
            operators(MODELS[name], 1)
    with pytest.raises(
        ValueError, match="0 samples of elements of 4 bytes; both must be 1 or more"
    ):
        operators(MODELS["vgg16"], 0)
    with pytest.raises(
        ValueError, match="split into at most 0 pieces of 1e-06 s; both must be above 0"
    ):
        split([], DEVICES["a100"], 0)
