"""A model as a graph of operators, and into how many pieces each of them is divided.

Finer than layers: an attention is three operators, and what goes round a block (a residual) is an edge. So
it can be placed operator by operator, as SiP-ML does (Khani et al., SIGCOMM 2021). Sums over the operators
are those of ``layers``, and what those leave out these leave out too.

Assumed here: an operator does all that follows it and has hardly any FLOPs, so normalisation, activation
function, pooling and residual addition are done where the matrix before them was, and only their result is
handed on.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ringlight.extensions.models.layers import (
    Convolution,
    Layer,
    Model,
    Transformer,
    Vision,
    layers,
)
from ringlight.workloads.devices import Device

#: FLOPs of a backward pass for each of the forward pass, as in ``layers``.
BACKWARD = 2


@dataclass(frozen=True)
class Operator:
    """One of a model's operators, for one batch.

    ``flops``: forward. ``output_bytes``: that it hands on, to each operator that takes it; its gradient is as
    large. ``after``: numbers of the operators whose outputs it takes, all of them earlier ones. ``beside``:
    the operator whose pieces its own lie with, as they use the same matrix.
    """

    name: str
    flops: float
    output_bytes: int
    parameters: int
    after: tuple[int, ...] = ()
    beside: int | None = None

    @property
    def backward_flops(self) -> float:
        """Return the number of FLOPs of the backward pass."""
        return BACKWARD * self.flops


def operators(
    model: Model, samples: int, *, element_bytes: int = 4, sequence: int = 0
) -> tuple[Operator, ...]:
    """Return the operators of ``model``, in an order in which each takes outputs of earlier ones only.

    For ``samples`` samples; of a transformer each of ``sequence`` tokens (0: the model's own). Raises
    ValueError for a model whose operators are not known here.
    """
    if samples < 1 or element_bytes < 1:
        raise ValueError(
            f"{samples} samples of elements of {element_bytes} bytes; both must be 1 or more"
        )
    if isinstance(model, Vision):
        graph = _of_vision(model)
    elif isinstance(model, Transformer) and model.experts == 1:
        graph = _of_transformer(model, sequence or model.sequence)
    else:
        raise ValueError(
            f"{model.name}: there are operators of image models and of dense transformers only"
        )
    size = samples * element_bytes
    return tuple(
        replace(
            operator,
            flops=operator.flops * samples,
            output_bytes=operator.output_bytes * size,
        )
        for operator in graph
    )


def split(
    graph: Sequence[Operator],
    device: Device,
    most: int,
    *,
    quantum_s: float = 1e-6,
    element_bytes: int = 4,
) -> tuple[int, ...]:
    """Return the number of pieces into which each operator is divided: [operators].

    The number is a power of two of pieces whose forward passes take ``quantum_s`` or longer, or ``most``.
    Operators that lie next to each other have as many, those of the longer one. Raises ValueError naming what
    is not above 0.
    """
    if most < 1 or not quantum_s > 0:
        raise ValueError(
            f"split into at most {most} pieces of {quantum_s:g} s; both must be above 0"
        )
    rate = device.flops_per_s(element_bytes)
    counts = [
        min(1 << max(int(operator.flops / rate / quantum_s).bit_length() - 1, 0), most)
        for operator in graph
    ]
    for number, current in enumerate(graph):
        if current.beside is not None:
            counts[number] = counts[current.beside] = max(
                counts[number], counts[current.beside]
            )
    return tuple(counts)


def shares(total: int, pieces: int) -> list[int]:
    """Return ``total`` divided into ``pieces`` whole parts that differ by one at most and sum to it."""
    ends = [total * number // pieces for number in range(pieces + 1)]
    return [end - start for start, end in itertools.pairwise(ends)]


def _of_vision(model: Vision) -> list[Operator]:
    """A block of several convolutions is a bottleneck: what goes into it is added to what its third gives.

    A fourth is on that way round. What is handed on is as large as the next one takes it, behind any pooling.
    """
    graph: list[Operator] = []

    def add(convolution: Convolution, layer: Layer, *after: int) -> int:
        for k in after[:1]:
            pooled = min(
                graph[k].output_bytes,
                convolution.inputs * (convolution.pixels * convolution.stride) ** 2,
            )
            graph[k] = replace(graph[k], output_bytes=pooled)
        graph.append(
            Operator(
                convolution.name, layer.flops, layer.output, layer.parameters, after
            )
        )
        return len(graph) - 1

    stream: tuple[int, ...] = ()
    pairs = zip(model.convolutions, layers(model), strict=True)
    for _, block in itertools.groupby(pairs, key=lambda pair: pair[0].block):
        every = list(block)
        *before, last = every[:3]
        around = stream
        for pair in every[3:]:
            around = (add(*pair, *stream),)
        for pair in before:
            stream = (add(*pair, *stream),)
        stream = (add(*last, *stream, *(around if before else ())),)
    return graph


def _of_transformer(m: Transformer, s: int) -> list[Operator]:
    """Matrices of each layer, in order; a layer's last operator has what the layer has besides.

    A decoder with an encoder takes the embedding's output as that does, and the encoder's last output in each
    of its cross-attentions.
    """
    h, q, kv = m.hidden, m.heads * m.head_width, m.kv_heads * m.head_width
    graph: list[Operator] = []
    encoded: int | None = None

    def matrix(
        name: str, wide: int, columns: int, after: int, output: int, norm: int = 0
    ) -> int:
        parameters = wide * columns + m.biases * columns + norm
        graph.append(
            Operator(name, 2.0 * s * wide * columns, s * output, parameters, (after,))
        )
        return len(graph) - 1

    def last(layer: Layer, since: int, *after: int) -> int:
        """Add an operator with what the layer has beyond its operators from ``since`` on.

        Return its number.
        """
        flops = layer.flops - sum(operator.flops for operator in graph[since:])
        parameters = layer.parameters - sum(
            operator.parameters for operator in graph[since:]
        )
        graph.append(
            Operator(f"{layer.name} output", flops, layer.output, parameters, after)
        )
        return len(graph) - 1

    stream = 0
    for layer in layers(m, s):
        since = len(graph)
        if layer.name in ("embedding", "head"):
            after, beside = ((stream,), 0) if graph else ((), None)
            graph.append(
                Operator(
                    layer.name,
                    layer.flops,
                    layer.output,
                    layer.parameters,
                    after,
                    beside,
                )
            )
        elif layer.name.endswith("mlp"):
            columns = m.ffn * (2 if m.gated else 1)
            up = matrix(f"{layer.name} input", h, columns, stream, m.ffn, m.norm)
            stream = last(layer, since, up, stream)
        else:
            if m.encoder_layers and layer.name == "block 0 attention":
                encoded, stream = stream, 0
            if layer.name.endswith("cross-attention"):
                assert encoded is not None
                first = matrix(f"{layer.name} query", h, q, stream, q, m.norm)
                taken: tuple[int, ...] = (
                    first,
                    matrix(f"{layer.name} key value", h, 2 * kv, encoded, 2 * kv),
                )
            else:
                taken = (
                    matrix(
                        f"{layer.name} query key value",
                        h,
                        q + 2 * kv,
                        stream,
                        q + 2 * kv,
                        m.norm,
                    ),
                )
            graph.append(
                Operator(f"{layer.name} scores", 4.0 * s * s * q, s * q, 0, taken)
            )
            stream = last(layer, since, len(graph) - 1, stream)
    return graph
