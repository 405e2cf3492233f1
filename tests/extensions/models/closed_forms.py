"""What an iteration moves, by formula: nothing here looks at a generated workload.

Megatron-LM (Shoeybi et al., arXiv:1909.08053, section 3; Korthikanti et al., arXiv:2205.05198,
section 4.2), GPipe (Huang et al., arXiv:1811.06965), ZeRO (Rajbhandari et al., arXiv:1910.02054, section
7), GShard (Lepikhin et al., arXiv:2006.16668). Each counts what all ranks send together, by algorithms
that send no more than they must.
"""

from __future__ import annotations

from ringlight.extensions.models.layers import (
    Model,
    Recommender,
    Transformer,
    parameters,
)
from ringlight.extensions.models.settings import Parallel, Training, padded


def communication_bytes(
    model: Model, parallel: Parallel, training: Training
) -> dict[str, int]:
    """Bytes that all ranks together send in one iteration, by purpose."""
    if isinstance(model, Recommender):
        found = _recommender_bytes(model, parallel.dp, training)
    else:
        found = _gradient_bytes(model, parallel, training)
        if isinstance(model, Transformer):
            found |= _transformer_bytes(model, parallel, training)
    return {purpose: size for purpose, size in found.items() if size}


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
    tensor-parallel rank, and a tied embedding twice where first and last stage both have it. Experts that
    each replica has all of are as everything else.
    """
    model = padded(model, p.tp)
    experts, replicated, tied = 0, 0, 0
    if isinstance(model, Transformer):
        experts, replicated = (
            _expert_parameters(model) if p.ep > 1 else 0,
            _replicated_parameters(model),
        )
        tied = model.vocabulary * model.hidden if model.tied and p.pp > 1 else 0
    dense = parameters(model) - experts + (p.tp - 1) * replicated + tied
    reduced = t.gradient_bytes * (t.micro_batches if t.zero >= 2 else 1)
    gathered = (
        t.gradient_bytes,
        t.element_bytes,
        t.element_bytes,
        2 * t.micro_batches * t.element_bytes,
    )[t.zero]
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
        found["embedding"] = (
            2 * p.replicas * embedding.vocabulary * m.hidden * t.gradient_bytes
        )
    return found


def _expert_parameters(m: Transformer) -> int:
    return m.layers * m.experts * 3 * m.hidden * m.ffn if m.experts > 1 else 0


def _replicated_parameters(m: Transformer) -> int:
    """What tensor parallelism leaves whole: norms, biases behind a reduction, routers, positions, poolers."""
    h = m.hidden
    enc, dec = m.encoder_layers, m.layers
    sublayers = 2 * enc + (3 if enc else 2) * dec
    blocks = sublayers * (m.norm_parameters + m.biases) * h + (
        dec * h * m.experts if m.experts > 1 else 0
    )
    if m.bert:
        pooler, transform, next_sentence = h * h + h, h * h + h + 2 * h, 2 * h + 2
        return (
            blocks + (m.positions + 2) * h + 2 * h + pooler + transform + next_sentence
        )
    return blocks + m.positions * h + (0 if enc else m.norm_parameters * h)
