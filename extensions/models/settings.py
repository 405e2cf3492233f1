"""Settings of how a model is spread over ranks and trained: all that a generated workload depends on but the
model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ringlight.extensions.models.layers import Layer, Model, Transformer, layers
from ringlight.extensions.models.pipeline import SCHEDULES
from ringlight.fabric.kinds import KINDS
from ringlight.workloads.graph import Split

MIB = 1 << 20


@dataclass(frozen=True)
class Parallel:
    """Sizes of the groups of each kind of parallelism; their product is the number of ranks.

    ``ep`` multiplies: each of ``dp`` replicas of the experts is spread over ``ep`` ranks, each of which
    has samples of its own. So everything but the experts is replicated ``dp * ep`` times, which is what
    Megatron-LM and DeepSpeed call the data-parallel size; there ep divides it.

    Ranks count tp fastest, then ep, then dp, then pp: rank = tp_i + tp (ep_i + ep (dp_i + dp pp_i)).
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1

    @property
    def ranks(self) -> int:
        return self.dp * self.tp * self.pp * self.ep

    @property
    def replicas(self) -> int:
        """Ranks that hold the same parameters of what is no expert."""
        return self.dp * self.ep


@dataclass(frozen=True)
class Training:
    """One iteration: ``micro_batches`` of ``micro_batch`` samples for each replica.

    ``sequence``: tokens of a sample (0: the model's). ``schedule`` of the pipeline, with
    ``virtual_stages`` chunks a stage if interleaved. ``bucket_bytes``: a bucket of gradients is
    reduced once it has so many, the first of a backward pass once it has ``first_bucket_bytes``
    (PyTorch's DistributedDataParallel). ``zero``: ZeRO's stage. ``sequence_parallel``: Korthikanti et al.
    ``recompute``: blocks keep only their input. ``element_bytes`` of parameters and activations,
    ``gradient_bytes`` of an element of gradient. ``split``: how unequally tokens divide over experts.
    ``algorithms`` by kind of collective.
    """

    micro_batch: int = 1
    micro_batches: int = 1
    sequence: int = 0
    schedule: str = "1f1b"
    virtual_stages: int = 1
    bucket_bytes: int = 25 * MIB
    first_bucket_bytes: int = MIB
    zero: int = 0
    sequence_parallel: bool = False
    recompute: bool = False
    element_bytes: int = 2
    gradient_bytes: int = 2
    split: Split = field(default_factory=Split)
    algorithms: Mapping[str, str] = field(default_factory=dict)


#: Bytes that Adam reads and writes for each parameter in mixed precision: in, the gradient (2), the FP32
#: parameter and two moments (12); out, these three (12) and the parameter (2). Rajbhandari et al., ZeRO, 3.1.
OPTIMISER_BYTES = 28


_COUNTS = (
    "micro_batch",
    "micro_batches",
    "virtual_stages",
    "element_bytes",
    "gradient_bytes",
    "bucket_bytes",
    "first_bucket_bytes",
)


def check_settings(model: Model, parallel: Parallel, training: Training) -> None:
    """Raise ValueError naming the setting that the model or another setting does not allow."""
    for name in ("dp", "tp", "pp", "ep"):
        if getattr(parallel, name) < 1:
            raise ValueError(f"{name}: {getattr(parallel, name)} must be 1 or more")
    for name in _COUNTS:
        if getattr(training, name) < 1:
            raise ValueError(f"{name}: {getattr(training, name)} must be 1 or more")
    if not 0 <= training.split.skew < math.inf:
        raise ValueError(f"split: skew {training.split.skew} must be 0 or more")
    for kind in training.algorithms:
        if kind not in KINDS:
            raise ValueError(
                f"algorithms: there is no collective {kind}; there are {', '.join(KINDS)}"
            )
    if training.schedule not in SCHEDULES:
        raise ValueError(
            f"schedule: no {training.schedule}; there are {', '.join(SCHEDULES)}"
        )
    if training.virtual_stages > 1 and parallel.pp == 1:
        raise ValueError(
            "virtual_stages: only a pipeline, pp 2 or more, has chunks to interleave"
        )
    if training.zero not in range(4):
        raise ValueError(f"zero: {training.zero} is no stage of ZeRO; there are 0 to 3")
    if training.sequence < 0:
        raise ValueError(f"sequence: {training.sequence} must be 0 or more")
    if isinstance(model, Transformer):
        _check_transformer(model, parallel, training)
        return
    for name in ("tp", "pp", "ep"):
        if getattr(parallel, name) > 1:
            raise ValueError(f"{name}: {model.name} is generated with dp only")


def _check_transformer(
    model: Transformer, parallel: Parallel, training: Training
) -> None:
    if model.encoder_layers and parallel.pp > 1:
        raise ValueError(
            f"pp: {model.name} has an encoder, whose output all later stages need; only pp 1 is generated"
        )
    blocks = model.encoder_layers + model.layers
    if parallel.pp * training.virtual_stages > blocks:
        raise ValueError(
            f"pp: {parallel.pp} stages of {training.virtual_stages} chunks, but {blocks} blocks"
        )
    for name in ("heads", "kv_heads", "ffn"):
        if getattr(model, name) % parallel.tp:
            raise ValueError(
                f"tp: {parallel.tp} does not divide the {getattr(model, name)} {name} of {model.name}"
            )
    tokens = training.sequence or model.sequence
    if model.positions and tokens > model.positions:
        raise ValueError(
            f"sequence: {tokens} tokens, but {model.name} has {model.positions} positions"
        )
    if training.sequence_parallel and tokens % parallel.tp:
        raise ValueError(
            f"sequence_parallel: tp {parallel.tp} does not divide {tokens} tokens"
        )
    if model.experts % parallel.ep:
        raise ValueError(
            f"ep: {parallel.ep} does not divide the experts of {model.name}, {model.experts}"
        )


def padded(model: Model, tp: int) -> Model:
    """Return the model with a vocabulary that ``tp`` divides (Megatron-LM pads to a multiple of 128 tp)."""
    if not isinstance(model, Transformer):
        return model
    return replace(model, vocabulary=-(-model.vocabulary // tp) * tp)


def chunk_layers(
    model: Model, parallel: Parallel, training: Training
) -> list[tuple[Layer, ...]]:
    """Return the layers of each pipeline chunk, in the order in which a micro-batch passes them.

    Chunks have equally many blocks; if they do not divide, the first chunks have one more. The first has the
    embedding and the last the output, with a copy of the embedding if that is tied.
    """
    all_layers = layers(padded(model, parallel.tp), training.sequence)
    chunks = parallel.pp * training.virtual_stages
    blocks = max(layer.block for layer in all_layers) + 1
    each, more = divmod(blocks, chunks)
    ends = [each * (k + 1) + min(k + 1, more) for k in range(chunks)]
    parts = [
        tuple(layer for layer in all_layers if start <= layer.block < end)
        for start, end in zip([0, *ends], ends, strict=False)
    ]
    if chunks > 1 and isinstance(model, Transformer) and model.tied:
        head = parts[-1][-1]
        parts[-1] = (
            *parts[-1][:-1],
            replace(head, sharded=head.sharded + all_layers[0].sharded),
        )
    return parts
