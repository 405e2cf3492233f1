"""Compute a layer of a model as a fabric sees it: parameters, FLOPs, its output and what it keeps.

Everything follows from the architecture by formula. FLOPs are those of the matrix multiplications and
convolutions of one forward pass of one sample, a multiply and an add each counted; a backward pass takes
twice as many (Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM", SC 2021, appendix). Left out: normalisation, activation functions, softmax, dropout, residual
additions, look-ups of embeddings, the loss, and that a causal mask could halve the attention's work.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Layer:
    """A part of a model that is computed in one go, for one sample.

    ``block``: layers of one block stay on one pipeline stage. Parameters: ``sharded`` are divided among
    the ranks of a tensor-parallel group, ``replicated`` are whole at each, ``experts`` are those of all
    experts together. ``flops``: forward. ``output``: elements handed on. ``kept``: elements kept for the
    backward pass, without the attention's scores. Under tensor parallelism the whole input is needed at
    each rank if a layer ``gathers``, and its output is a sum over the ranks if it ``reduces``.
    ``copies``: experts that each token goes to, 0 of a layer without. ``recomputed``: its forward pass is
    done again where activations are.
    """

    name: str
    block: int
    sharded: int
    replicated: int
    flops: float
    output: int
    kept: int
    experts: int = 0
    copies: int = 0
    gathers: bool = True
    reduces: bool = True
    recomputed: bool = True

    @property
    def parameters(self) -> int:
        return self.sharded + self.replicated + self.experts


@dataclass(frozen=True)
class Transformer:
    """A transformer; ``source`` is where its figures stand.

    ``layers`` of ``hidden`` width with ``heads`` of ``head_dim`` (0: hidden / heads) and ``kv_heads`` for
    keys and values; ``encoder_layers`` before them are attended to by each of ``layers``. ``ffn``: width
    of the feed-forward network, of three matrices if ``gated`` (SwiGLU), else two; of ``experts``,
    ``top_k`` a token. ``positions``: learned ones. ``biases``: of all linear layers. ``norm_parameters``:
    2 with a bias (LayerNorm), 1 without (RMSNorm). ``tied``: the output's matrix is the embedding's.
    ``bert``: token types, a norm after the embedding and not before the output, a pooler, and the heads
    for masked words and the next sentence. ``dropout``: its masks are kept, a byte each. ``sequence``:
    tokens of a sample by default.
    """

    name: str
    source: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    sequence: int
    head_dim: int = 0
    encoder_layers: int = 0
    positions: int = 0
    experts: int = 1
    top_k: int = 1
    gated: bool = False
    biases: bool = True
    norm_parameters: int = 2
    tied: bool = False
    bert: bool = False
    dropout: bool = False

    @property
    def head_width(self) -> int:
        return self.head_dim or self.hidden // self.heads

    @property
    def norm(self) -> int:
        """Parameters of one normalisation."""
        return self.norm_parameters * self.hidden


@dataclass(frozen=True)
class Convolution:
    """A convolution, or a fully connected layer as one over a single pixel.

    ``pixels``: the side of its square output. ``extra``: parameters besides the kernel for each output
    channel: 1 for a bias, 2 for a batch normalisation.
    """

    name: str
    inputs: int
    outputs: int
    kernel: int
    stride: int
    pixels: int
    extra: int
    block: int


@dataclass(frozen=True)
class Vision:
    """An image classifier of convolutions, one after another."""

    name: str
    source: str
    convolutions: tuple[Convolution, ...]


@dataclass(frozen=True)
class Recommender:
    """A DLRM: tables of ``rows`` of ``width``, and the widths of its networks, ``bottom`` with its input's.

    ``lookups``: rows that a sample takes of each table.
    """

    name: str
    source: str
    rows: tuple[int, ...]
    width: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    lookups: int = 1


Model = Transformer | Vision | Recommender


def layers(model: Model, sequence: int = 0) -> tuple[Layer, ...]:
    """Return the layers of ``model``.

    For a transformer they are for samples of ``sequence`` tokens (0: the model's own). A recommender's are
    those of its networks, without the tables. The parameters of a tied output are those of the embedding and
    counted there.
    """
    if isinstance(model, Transformer):
        return tuple(_of_transformer(model, sequence or model.sequence))
    if isinstance(model, Vision):
        return tuple(map(_convolution, model.convolutions))
    return (*bottom_layers(model), *top_layers(model))


def parameters(model: Model) -> int:
    """Return the number of parameters of the whole model."""
    tables = sum(model.rows) * model.width if isinstance(model, Recommender) else 0
    return tables + sum(layer.parameters for layer in layers(model))


def forward_flops(model: Model, sequence: int = 0) -> float:
    """Return the FLOPs of one forward pass of one sample."""
    return sum(layer.flops for layer in layers(model, sequence))


def _of_transformer(model: Transformer, s: int) -> Iterator[Layer]:
    yield _embedding(model, s)
    for number in range(model.encoder_layers):
        yield _attention(model, s, number, f"encoder {number} attention")
        yield _feed_forward(model, s, number, f"encoder {number} mlp")
    for number in range(model.layers):
        block = model.encoder_layers + number
        yield _attention(model, s, block, f"block {number} attention")
        if model.encoder_layers:
            yield _attention(model, s, block, f"block {number} cross-attention")
        yield _feed_forward(model, s, block, f"block {number} mlp")
    yield _head(model, s)


def _embedding(model: Transformer, s: int) -> Layer:
    h = model.hidden
    replicated = model.positions * h + (2 * h + model.norm if model.bert else 0)
    kept = s * h // 2 if model.dropout else 0
    return Layer(
        "embedding",
        0,
        model.vocabulary * h,
        replicated,
        0.0,
        s * h,
        kept,
        gathers=False,
        recomputed=False,
    )


def _attention(model: Transformer, s: int, block: int, name: str) -> Layer:
    """Kept: the norm's input and output, queries, keys, values, the values' mean, a dropout mask.

    Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", section 4.1, at 2
    bytes an element; without the scores and their softmax, which a fused attention computes again.
    """
    h, q, kv = (
        model.hidden,
        model.heads * model.head_width,
        model.kv_heads * model.head_width,
    )
    matrices = 2 * h * q + 2 * h * kv
    sharded = matrices + (q + 2 * kv if model.biases else 0)
    replicated = model.norm + (h if model.biases else 0)
    flops = 2.0 * s * matrices + 2 * 2.0 * s * s * q
    kept = s * (2 * h + 2 * q + 2 * kv) + (s * h // 2 if model.dropout else 0)
    return Layer(name, block, sharded, replicated, flops, s * h, kept)


def _feed_forward(model: Transformer, s: int, block: int, name: str) -> Layer:
    """Kept: the norm's input and output (a copy for each expert), the activation's input and output."""
    h, f, moe = model.hidden, model.ffn, model.experts > 1
    matrices = (3 if model.gated else 2) * h * f
    biases = model.biases * f
    copies = model.top_k if moe else 1
    router = h * model.experts if moe else 0
    kept = s * (h + copies * (h + (3 if model.gated else 2) * f)) + (
        s * h // 2 if model.dropout else 0
    )
    return Layer(
        name,
        block,
        sharded=0 if moe else matrices + biases,
        replicated=model.norm + router + model.biases * h,
        flops=2.0 * s * (copies * matrices + router),
        output=s * h,
        kept=kept,
        experts=model.experts * (matrices + biases) if moe else 0,
        copies=model.top_k if moe else 0,
    )


def _head(model: Transformer, s: int) -> Layer:
    h, v = model.hidden, model.vocabulary
    sharded, flops = (0 if model.tied else v * h), 2.0 * s * h * v
    # A transformer that normalises after each layer has no norm of its own before the output.
    after = model.encoder_layers or model.bert
    replicated, kept = (0 if after else model.norm), s * h
    if model.bert:
        dense = h * h + h
        replicated += dense + (dense + model.norm) + (2 * h + 2)
        sharded += v
        flops += 2.0 * (s * h * h + h * h + 2 * h)
        kept += 2 * s * h
    last = max(model.encoder_layers + model.layers - 1, 0)
    return Layer(
        "head",
        last,
        sharded,
        replicated,
        flops,
        s * v,
        kept,
        reduces=False,
        recomputed=False,
    )


def _convolution(convolution: Convolution) -> Layer:
    """Kept: its input, and what a batch normalisation behind it takes in."""
    kernel = convolution.kernel**2 * convolution.inputs * convolution.outputs
    output = convolution.outputs * convolution.pixels**2
    kept = convolution.inputs * (convolution.pixels * convolution.stride) ** 2 + (
        output if convolution.extra == 2 else 0
    )
    return Layer(
        convolution.name,
        convolution.block,
        kernel + convolution.extra * convolution.outputs,
        0,
        2.0 * kernel * convolution.pixels**2,
        output,
        kept,
    )


def bottom_layers(model: Recommender) -> tuple[Layer, ...]:
    """Return the layers of the network of the dense features."""
    return _dense("bottom", model.bottom)


def top_layers(model: Recommender) -> tuple[Layer, ...]:
    """Return the interaction of all pairs of vectors, and the network that follows it."""
    vectors = len(model.rows) + 1
    width = vectors * (vectors - 1) // 2 + model.width
    flops = 2.0 * vectors * vectors * model.width
    interaction = Layer("interaction", 0, 0, 0, flops, width, vectors * model.width)
    return (interaction, *_dense("top", (width, *model.top)))


def _dense(name: str, widths: Sequence[int]) -> tuple[Layer, ...]:
    return tuple(
        Layer(f"{name} {k}", 0, a * b + b, 0, 2.0 * a * b, b, a)
        for k, (a, b) in enumerate(itertools.pairwise(widths))
    )
