"""Computes an iteration's time on an ideal network by formula, without a generated workload."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ringlight.extensions.models.layers import Transformer
from ringlight.extensions.models.settings import OPTIMISER_BYTES, Parallel, Training
from ringlight.workloads.devices import Device


@dataclass(frozen=True)
class IdealNetwork:
    """Network that gives each rank ``bytes_per_s`` both ways in each collective and message.

    ``latency_s`` of each step of a ring, and of a message. ``shared``: in all of them together, so that
    collectives that computation waits for take longer while gradients are reduced; otherwise nothing is in
    anything else's way.
    """

    bytes_per_s: float
    latency_s: float = 0.0
    shared: bool = False

    def message_s(self, size: float) -> float:
        return size / self.bytes_per_s + self.latency_s

    def half_s(self, size: float, ranks: int) -> float:
        """An all-gather, a reduce-scatter or an all-to-all."""
        return (ranks - 1) * (size / ranks / self.bytes_per_s + self.latency_s)

    def all_reduce_s(self, size: float, ranks: int) -> float:
        return 2 * self.half_s(size, ranks)


@dataclass(frozen=True)
class IterationTime:
    """Seconds: from the first forward to the last backward pass, and of what follows the slowest stage's."""

    pipeline_s: float
    after_s: float

    @property
    def seconds(self) -> float:
        return self.pipeline_s + self.after_s


def iteration_time(
    model: Transformer,
    parallel: Parallel,
    training: Training,
    device: Device,
    network: IdealNetwork,
) -> IterationTime:
    """One iteration of a decoder.

    It covers the pipeline's bubble with stages that are not equal (embedding and output), tensor- and
    expert-parallel collectives, which computation waits for, messages between stages, buckets of
    gradients that are reduced while the last backward pass goes on, the tied embedding's gradient, the
    optimiser, and with ZeRO's stage 1 what is gathered behind it. The period of 1F1B is the longest mean
    of a circle of waiting: from a stage to the last one and back, by as many micro-batches as are under
    way there. Of messages it leaves out that they share a network with collectives. Raises ValueError for
    an encoder, for the interleaved schedule and for ZeRO's stages 2 and 3, which it does not cover.
    """
    if (
        model.encoder_layers
        or model.bert
        or training.schedule == "interleaved"
        or training.zero > 1
    ):
        raise ValueError(
            "the closed form covers decoders, gpipe and 1f1b, and ZeRO's stages 0 and 1"
        )
    stages = [
        _stage(model, parallel, training, device, network, k)
        for k in range(parallel.pp)
    ]
    hop = network.message_s(
        _hidden(model, training) / (parallel.tp if training.sequence_parallel else 1)
    )
    p, m = parallel.pp, training.micro_batches
    forward, backward = [s.forward_s for s in stages], [s.backward_s for s in stages]
    last = [s.backward_s + s.held_up_s for s in stages]
    once = sum(forward) + sum(last) + 2 * (p - 1) * hop
    if training.schedule == "gpipe":
        pipeline = once + (m - 1) * (max(forward) + max(backward))
    else:
        circles = [
            (sum(forward[k:]) + sum(backward[k:]) + 2 * (p - 1 - k) * hop) / (p - k)
            for k in range(p)
        ]
        pipeline = once + (m - 1) * max(
            *circles, *map(sum, zip(forward, backward, strict=True))
        )
    ends = [pipeline - sum(last[:k]) - k * hop for k in range(p)]
    ready = [end + stage.exposed_s for end, stage in zip(ends, stages, strict=True)]
    if model.tied and p > 1:
        embedding = (
            -(-model.vocabulary // parallel.tp) * model.hidden * training.gradient_bytes
        )
        ready[0] = ready[-1] = max(ready[0], ready[-1]) + network.all_reduce_s(
            embedding, 2
        )
    end = max(at + stage.after_s for at, stage in zip(ready, stages, strict=True))
    return IterationTime(pipeline, end - pipeline)


def _hidden(model: Transformer, training: Training) -> int:
    """Bytes of a micro-batch between two layers."""
    tokens = training.micro_batch * (training.sequence or model.sequence)
    return tokens * model.hidden * training.element_bytes


class _Row(NamedTuple):
    """A layer at one rank: seconds that its forward pass computes, and that each pass waits for collectives.

    ``again``: the forward pass is part of the backward pass, too.
    """

    compute_s: float
    forward_wait_s: float
    backward_wait_s: float
    parameters: int
    experts: int
    again: bool

    @property
    def forward_s(self) -> float:
        return self.compute_s + self.forward_wait_s

    @property
    def backward_s(self) -> float:
        return 2 * self.compute_s + self.backward_wait_s + self.again * self.forward_s

    @property
    def waiting_s(self) -> float:
        """Within the backward pass."""
        return self.backward_wait_s + self.again * self.forward_wait_s


class _Stage(NamedTuple):
    """Times of a pipeline stage for one micro-batch, seconds.

    ``exposed_s``: gradients' reduction after the last micro-batch's backward pass. ``held_up_s``: how much
    longer that pass takes where it shares the network. ``after_s``: the optimiser and what follows it.
    """

    forward_s: float
    backward_s: float
    exposed_s: float
    held_up_s: float
    after_s: float


def _stage(
    m: Transformer,
    p: Parallel,
    t: Training,
    device: Device,
    network: IdealNetwork,
    k: int,
) -> _Stage:
    rows = list(_rows(m, p, t, device, network, k))
    exposed, held_up, updated, gathered = 0.0, 0.0, 0.0, 0.0
    # No gradients are under way before those of the layer that is last forward and first backward.
    waiting = sum(row.waiting_s for row in rows[:-1])
    for column, ranks in (
        ([row.parameters for row in rows], p.replicas),
        ([row.experts for row in rows], p.dp),
    ):
        if ranks > 1:
            exposed = max(exposed, _exposed_s(rows, column, ranks, t, network))
            reduced = network.half_s(sum(column) * t.gradient_bytes, ranks) * (
                1 if t.zero else 2
            )
            held_up += min(waiting, reduced) if network.shared else 0.0
        updated += sum(column) / (ranks if t.zero else 1)
        if t.zero:
            gathered = max(
                gathered, network.half_s(sum(column) * t.element_bytes, ranks)
            )
    after = OPTIMISER_BYTES * updated / device.memory_bytes_per_s + gathered
    return _Stage(
        sum(r.forward_s for r in rows),
        sum(r.backward_s for r in rows),
        exposed,
        held_up,
        after,
    )


def _exposed_s(
    rows: Sequence[_Row],
    column: Sequence[int],
    ranks: int,
    t: Training,
    network: IdealNetwork,
) -> float:
    """Time that reductions take after the backward pass, seconds.

    Buckets get ready from the last layer to the first, and are reduced one at a time.
    """
    left = sum(row.backward_s for row in rows)
    done, pending, limit = -left, 0.0, t.first_bucket_bytes
    for number in reversed(range(len(rows))):
        left -= rows[number].backward_s
        pending += column[number] * t.gradient_bytes
        if pending and (pending >= limit or not number):
            taken = network.half_s(pending, ranks) * (1 if t.zero else 2)
            done, pending, limit = max(done, -left) + taken, 0.0, t.bucket_bytes
    return max(done, 0.0)


def _rows(
    m: Transformer,
    p: Parallel,
    t: Training,
    device: Device,
    network: IdealNetwork,
    k: int,
) -> Iterator[_Row]:
    """Rows of stage ``k``. A GPT's block takes 24bsh^2 (1 + s / 6h) FLOPs forward, its output 2bshV."""
    h, s, v = m.hidden, t.sequence or m.sequence, -(-m.vocabulary // p.tp) * p.tp
    q, kv = m.heads * m.head_width, m.kv_heads * m.head_width
    rate = device.flops_per_s(t.element_bytes) * p.tp / t.micro_batch
    hidden = _hidden(m, t)
    wait = mlp_wait = network.all_reduce_s(hidden, p.tp)
    moe, norm = m.experts > 1, m.norm_parameters * h
    attention, mlp = 2 * h * (q + kv), (3 if m.gated else 2) * h * m.ffn
    attention_s = (2 * s * attention + 4 * s * s * q) / rate
    mlp_s = 2 * s * (m.top_k * mlp + (h * m.experts if moe else 0)) / rate
    if p.ep > 1:
        share = p.tp if t.sequence_parallel else 1
        mlp_wait = (m.top_k if t.sequence_parallel else 1) * wait
        mlp_wait += 2 * network.half_s(m.top_k * hidden / share, p.ep)
    whole = norm + m.biases * h
    attention_held = (attention + m.biases * (q + 2 * kv)) // p.tp + whole
    mlp_held = (mlp + m.biases * m.ffn) // p.tp
    dense = whole + (h * m.experts if moe else mlp_held)
    experts = mlp_held * m.experts // p.ep if moe else 0
    if p.ep == 1:
        dense, experts = dense + experts, 0
    each, more = divmod(m.layers, p.pp)
    if k == 0:
        yield _Row(0.0, wait, 0.0, v // p.tp * h + m.positions * h, 0, False)
    for _ in range(each + (k < more)):
        yield _Row(attention_s, wait, wait, attention_held, 0, t.recompute)
        yield _Row(mlp_s, mlp_wait, mlp_wait, dense, experts, t.recompute)
    if k == p.pp - 1:
        own = 0 if m.tied and p.pp == 1 else v // p.tp * h
        yield _Row(2 * s * h * v / rate, 0.0, wait, own + norm, 0, False)
