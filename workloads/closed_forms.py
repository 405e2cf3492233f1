"""What an iteration moves and how long it takes, by formula: nothing here looks at a generated workload.

Bytes: Megatron-LM (Shoeybi et al., arXiv:1909.08053, section 3; Korthikanti et al., arXiv:2205.05198,
section 4.2), GPipe (Huang et al., arXiv:1811.06965), ZeRO (Rajbhandari et al., arXiv:1910.02054, section
7), GShard (Lepikhin et al., arXiv:2006.16668). Each counts what all ranks send together, by algorithms
that send no more than they must.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from workloads.devices import Device
from workloads.layers import Model, Recommender, Transformer, parameters
from workloads.settings import OPTIMISER_BYTES, Parallel, Training, padded


def communication_bytes(model: Model, parallel: Parallel, training: Training) -> dict[str, int]:
    """Bytes that all ranks together send in one iteration, by purpose."""
    if isinstance(model, Recommender):
        found = _recommender_bytes(model, parallel.dp, training)
    else:
        found = _gradient_bytes(model, parallel, training)
        if isinstance(model, Transformer):
            found |= _transformer_bytes(model, parallel, training)
    return {purpose: size for purpose, size in found.items() if size}


def bubble(stages: int, micro_batches: int, virtual_stages: int = 1) -> float:
    """Idle over useful time of a pipeline of equal stages: (p - 1) / (v m), Narayanan et al., section 2.2."""
    return (stages - 1) / (virtual_stages * micro_batches)


def _recommender_bytes(model: Recommender, ranks: int, t: Training) -> dict[str, int]:
    """Vectors forward and their gradients backward; one all-reduce of all that is no table."""
    dense = parameters(model) - sum(model.rows) * model.width
    vectors = t.micro_batch * len(model.rows) * model.width * t.element_bytes
    return {
        "tables": t.micro_batches * 2 * (ranks - 1) * vectors,
        "dp": 2 * (ranks - 1) * dense * t.gradient_bytes,
    }


def _gradient_bytes(model: Model, p: Parallel, t: Training) -> dict[str, int]:
    """An all-reduce of n ranks sends 2 (n - 1) times the vector, half of it to reduce and half to gather.

    ZeRO's stage 1 gathers parameters instead, stage 2 reduces behind each micro-batch, and stage 3
    gathers before each forward and each backward pass. Replicated parameters count once for each
    tensor-parallel rank, and a tied embedding twice where first and last stage both have it.
    """
    model = padded(model, p.tp)
    experts, replicated, tied = 0, 0, 0
    if isinstance(model, Transformer):
        experts, replicated = _expert_parameters(model), _replicated_parameters(model)
        tied = model.vocabulary * model.hidden if model.tied and p.pp > 1 else 0
    dense = parameters(model) - experts + (p.tp - 1) * replicated + tied
    reduced = t.gradient_bytes * (t.micro_batches if t.zero >= 2 else 1)
    gathered = (t.gradient_bytes, t.element_bytes, t.element_bytes, 2 * t.micro_batches * t.element_bytes)[
        t.zero
    ]
    return {
        "dp": (p.replicas - 1) * dense * (reduced + gathered),
        "edp": (p.dp - 1) * experts * (reduced + gathered),
    }


def _transformer_bytes(m: Transformer, p: Parallel, t: Training) -> dict[str, int]:
    hidden = t.micro_batch * (t.sequence or m.sequence) * m.hidden * t.element_bytes
    batches = p.replicas * t.micro_batches
    passes = 3 if t.recompute else 2
    attentions = m.encoder_layers + m.layers * (2 if m.encoder_layers else 1)
    feed_forward = m.encoder_layers + m.layers
    moe = p.ep > 1
    share = p.tp if t.sequence_parallel else 1
    # With sequence parallelism a token's copies are gathered where its experts are.
    copies = m.top_k if moe and t.sequence_parallel else 1
    # Two beside the blocks: behind the embedding, and before the output of its gradient.
    reductions = passes * (attentions + copies * feed_forward) + 2
    found = {
        "tp": batches * reductions * 2 * (p.tp - 1) * hidden,
        "pp": batches * 2 * (p.pp * t.virtual_stages - 1) * p.tp * hidden // share,
    }
    if moe:
        exchanges = 2 * passes * m.layers * t.micro_batches * p.dp * p.tp
        found["ep"] = exchanges * (p.ep - 1) * m.top_k * hidden // share
    if m.tied and p.pp > 1:
        embedding = padded(m, p.tp)
        assert isinstance(embedding, Transformer)
        found["embedding"] = 2 * p.replicas * embedding.vocabulary * m.hidden * t.gradient_bytes
    return found


def _expert_parameters(m: Transformer) -> int:
    return m.layers * m.experts * 3 * m.hidden * m.ffn if m.experts > 1 else 0


def _replicated_parameters(m: Transformer) -> int:
    """What tensor parallelism leaves whole: norms, biases behind a reduction, routers, positions, poolers."""
    h = m.hidden
    enc, dec = m.encoder_layers, m.layers
    sublayers = 2 * enc + (3 if enc else 2) * dec
    blocks = sublayers * (m.norm_parameters + m.biases) * h + (dec * h * m.experts if m.experts > 1 else 0)
    if m.bert:
        pooler, transform, next_sentence = h * h + h, h * h + h + 2 * h, 2 * h + 2
        return blocks + (m.positions + 2) * h + 2 * h + pooler + transform + next_sentence
    return blocks + m.positions * h + (0 if enc else m.norm_parameters * h)


@dataclass(frozen=True)
class IdealNetwork:
    """Each rank sends and receives ``bytes_per_s`` in each of its collectives and messages at once.

    ``latency_s`` of each step of a ring, and of a message. Where several share a link, it is slower.
    """

    bytes_per_s: float
    latency_s: float = 0.0

    def message_s(self, size: float) -> float:
        return size / self.bytes_per_s + self.latency_s

    def half_s(self, size: float, ranks: int) -> float:
        """An all-gather, a reduce-scatter or an all-to-all."""
        return (ranks - 1) * (size / ranks / self.bytes_per_s + self.latency_s)

    def all_reduce_s(self, size: float, ranks: int) -> float:
        return 2 * self.half_s(size, ranks)


@dataclass(frozen=True)
class IterationTime:
    """Seconds: from the first to the last backward pass, and of what follows the slowest stage's."""

    pipeline_s: float
    after_s: float

    @property
    def seconds(self) -> float:
        return self.pipeline_s + self.after_s


def iteration_time(
    model: Transformer, parallel: Parallel, training: Training, device: Device, network: IdealNetwork
) -> IterationTime:
    """One iteration of a decoder on a network where nothing is in anything else's way.

    It covers the pipeline's bubble with stages that are not equal (embedding and output), tensor- and
    expert-parallel collectives, which computation waits for, messages between stages, buckets of
    gradients that are reduced while the last backward pass goes on, the tied embedding's gradient, the
    optimiser, and with ZeRO's stage 1 what is gathered behind it. The period of 1F1B is the longest mean
    of a circle of waiting: from a stage to the last one and back, by as many micro-batches as are under
    way there. Raises ValueError for an encoder, for the interleaved schedule and for ZeRO's stages 2 and
    3, which it does not cover.
    """
    if model.encoder_layers or model.bert or training.schedule == "interleaved" or training.zero > 1:
        raise ValueError("the closed form covers decoders, gpipe and 1f1b, and ZeRO's stages 0 and 1")
    stages = [_stage(model, parallel, training, device, network, k) for k in range(parallel.pp)]
    hidden = (
        training.micro_batch * (training.sequence or model.sequence) * model.hidden * training.element_bytes
    )
    hop = network.message_s(hidden / (parallel.tp if training.sequence_parallel else 1))
    p, m = parallel.pp, training.micro_batches
    forward, backward = [s.forward_s for s in stages], [s.backward_s for s in stages]
    once = sum(forward) + sum(backward) + 2 * (p - 1) * hop
    if training.schedule == "gpipe":
        pipeline = once + (m - 1) * (max(forward) + max(backward))
    else:
        circles = [(sum(forward[k:]) + sum(backward[k:]) + 2 * (p - 1 - k) * hop) / (p - k) for k in range(p)]
        pipeline = once + (m - 1) * max(*circles, *map(sum, zip(forward, backward, strict=True)))
    ends = [pipeline - sum(backward[:k]) - k * hop for k in range(p)]
    ready = [end + stage.exposed_s for end, stage in zip(ends, stages, strict=True)]
    if model.tied and p > 1:
        vocabulary = -(-model.vocabulary // parallel.tp)
        both = max(ready[0], ready[-1])
        ready[0] = ready[-1] = both + network.all_reduce_s(
            vocabulary * model.hidden * training.gradient_bytes, 2
        )
    last = max(at + stage.after_s for at, stage in zip(ready, stages, strict=True))
    return IterationTime(pipeline, last - pipeline)


@dataclass(frozen=True)
class _StageTime:
    """Of one micro-batch; ``exposed_s``: gradients reduced behind the last one's backward pass."""

    forward_s: float
    backward_s: float
    exposed_s: float
    after_s: float


def _stage(
    m: Transformer, p: Parallel, t: Training, device: Device, network: IdealNetwork, k: int
) -> _StageTime:
    """Layers are taken as (forward, backward, parameters, expert parameters) at one rank, in order."""
    rows = list(_layer_times(m, p, t, device, network, k))
    again = t.recompute
    forward = sum(row[0] for row in rows)
    backward = sum(row[1] for row in rows) + (sum(row[0] for row in rows if row[4]) if again else 0.0)
    exposed, after = 0.0, 0.0
    for column, ranks in ((2, p.replicas), (3, p.dp)):
        held = sum(row[column] for row in rows)
        if ranks > 1:
            exposed = max(exposed, _exposed_s(rows, column, ranks, t, network))
        after += OPTIMISER_BYTES * held / (ranks if t.zero else 1) / device.memory_bytes_per_s
    if t.zero:
        after += max(
            network.half_s(sum(row[column] for row in rows) * t.element_bytes, ranks)
            for column, ranks in ((2, p.replicas), (3, p.dp))
        )
    return _StageTime(forward, backward, exposed, after)


def _exposed_s(
    rows: list[tuple[float, float, int, int, bool]],
    column: int,
    ranks: int,
    t: Training,
    network: IdealNetwork,
) -> float:
    """A queue: buckets get ready from the last layer to the first, and are reduced one at a time."""
    left = sum(row[1] + (row[0] if t.recompute and row[4] else 0.0) for row in rows)
    done, pending, limit = -left, 0.0, t.first_bucket_bytes
    for number, row in enumerate(reversed(rows)):
        left -= row[1] + (row[0] if t.recompute and row[4] else 0.0)
        pending += row[column] * t.gradient_bytes
        if pending and (pending >= limit or number == len(rows) - 1):
            taken = network.half_s(pending, ranks) * (1 if t.zero else 2)
            done, pending, limit = max(done, -left) + taken, 0.0, t.bucket_bytes
    return max(done, 0.0)


def _layer_times(
    m: Transformer, p: Parallel, t: Training, device: Device, network: IdealNetwork, k: int
) -> Iterator[tuple[float, float, int, int, bool]]:
    """Of stage ``k``. A GPT's block takes 24 b s h^2 (1 + s / 6h) FLOPs forward, its output 2 b s h V."""
    h, s, v = m.hidden, t.sequence or m.sequence, -(-m.vocabulary // p.tp) * p.tp
    q, kv = m.heads * m.head_width, m.kv_heads * m.head_width
    rate = device.flops_per_s(t.element_bytes) * p.tp / t.micro_batch
    hidden = t.micro_batch * s * h * t.element_bytes
    reduction = network.all_reduce_s(hidden, p.tp)
    moe, norm = m.experts > 1, m.norm_parameters * h
    attention = 2 * h * (q + kv)
    matrices = (3 if m.gated else 2) * h * m.ffn
    attention_s = (2 * s * attention + 4 * s * s * q) / rate
    mlp_s = 2 * s * (m.top_k * matrices + (h * m.experts if moe else 0)) / rate
    behind = reduction
    if p.ep > 1:
        share = p.tp if t.sequence_parallel else 1
        behind = (m.top_k if t.sequence_parallel else 1) * reduction
        behind += 2 * network.half_s(m.top_k * hidden / share, p.ep)
    biased = m.biases * h
    held = (attention + m.biases * (q + 2 * kv)) // p.tp + norm + biased
    mlp = (matrices + m.biases * m.ffn) // p.tp
    dense = 0 if moe else mlp
    experts = mlp * m.experts // p.ep if moe else 0
    router = h * m.experts if moe else 0
    each, more = divmod(m.layers, p.pp)
    if k == 0:
        yield reduction, 0.0, v // p.tp * h + m.positions * h, 0, False
    for _ in range(each + (k < more)):
        yield attention_s + reduction, 2 * attention_s + reduction, held, 0, True
        yield mlp_s + behind, 2 * mlp_s + behind, dense + norm + biased + router, experts, True
    if k == p.pp - 1:
        head_s = 2 * s * h * v / rate
        own = 0 if m.tied and p.pp == 1 else v // p.tp * h
        yield head_s, 2 * head_s + reduction, own + norm, 0, False
