"""Workloads generated from a model and how it is spread over ranks.

Ranks of one pipeline stage run one program. Its streams: ``main`` computes and does what computation
waits for (tensor and expert parallelism); gradients, parameters and each direction of a pipeline's
messages have streams of their own. The first word of a communication's name is its purpose: dp, edp (data
parallelism of experts), tp, ep, pp, embedding (its gradient between first and last stage), tables (of a
recommender).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ringlight.extensions.models.layers import Model, Recommender
from ringlight.extensions.models.pipeline import schedule
from ringlight.extensions.models.recommendation import recommender_program
from ringlight.extensions.models.settings import (
    Parallel,
    Training,
    check_settings,
    chunk_layers,
)
from ringlight.extensions.models.stage import Plan, Slot, stage_program
from ringlight.fabric.kinds import collective_steps
from ringlight.fabric.steps import IntArray
from ringlight.workloads.devices import Device, timed
from ringlight.workloads.graph import Kind, Program, Workload
from ringlight.workloads.graph_writer import Book


def generate(
    model: Model, parallel: Parallel, training: Training, device: Device | None = None
) -> Workload:
    """Return one iteration of training ``model``; computations in FLOPs, or in seconds of ``device``.

    Raises ValueError naming the setting that is not possible.
    """
    check_settings(model, parallel, training)
    book = Book()
    if isinstance(model, Recommender):
        programs = [
            recommender_program(
                book, model, parallel.dp, training, Slot.GRADIENTS, Slot.EXPERTS
            )
        ]
    else:
        parts = chunk_layers(model, parallel, training)
        turns = schedule(
            training.schedule,
            parallel.pp,
            training.micro_batches,
            training.virtual_stages,
        )
        plan = Plan(model, parallel, training, parts)
        programs = [
            stage_program(book, plan, stage, turns[stage])
            for stage in range(parallel.pp)
        ]
    grid = rank_grid(parallel)
    program_of = np.repeat(np.arange(parallel.pp), parallel.ranks // parallel.pp)
    communicators = _communicators(
        book, grid, _slots(programs), isinstance(model, Recommender)
    )
    peers = np.stack(
        (np.roll(grid, -1, axis=0).ravel(), np.roll(grid, 1, axis=0).ravel()), axis=1
    )
    if parallel.pp == 1:
        peers[:] = -1
    workload = book.workload(
        _name(model, parallel), programs, program_of, communicators, peers
    )
    if training.algorithms:
        _check_algorithms(workload)
    return (
        workload if device is None else timed(workload, device, training.element_bytes)
    )


def rank_grid(parallel: Parallel) -> IntArray:
    """Return the rank of each place: [pp, dp, ep, tp]."""
    shape = (parallel.pp, parallel.dp, parallel.ep, parallel.tp)
    return np.arange(parallel.ranks).reshape(shape)


def _name(model: Model, parallel: Parallel) -> str:
    return f"{model.name} dp {parallel.dp} tp {parallel.tp} pp {parallel.pp} ep {parallel.ep}"


def _check_algorithms(workload: Workload) -> None:
    """Raise ValueError for an unknown algorithm, or one not for as many ranks as a group has."""
    used = set()
    for rank in np.unique(workload.program_of, return_index=True)[1].tolist():
        program = workload.programs[workload.program_of[rank]]
        for which, slot in zip(
            program.collective.tolist(), program.slot.tolist(), strict=True
        ):
            if which >= 0:
                used.add(
                    (which, len(workload.groups[workload.communicators[rank, slot]]))
                )
    for which, ranks in sorted(used):
        what = workload.collectives[which]
        try:
            collective_steps(what.kind, what.algorithm, ranks)
        except ValueError as error:
            raise ValueError(f"algorithms: {error}") from None


def _slots(programs: Sequence[Program]) -> set[int]:
    """Return communicator slots on which any rank calls a collective."""
    return {
        int(slot)
        for program in programs
        for slot in program.slot[program.kind == Kind.COLLECTIVE]
    }


def _communicators(
    book: Book, grid: IntArray, used: set[int], tables: bool
) -> IntArray:
    """Return the groups of each rank by slot, [ranks, slots], -1 for slots that are not ``used``."""
    _, dp, ep, tp = grid.shape
    tensor = grid.reshape(-1, tp)
    experts = grid.transpose(0, 1, 3, 2).reshape(-1, ep)
    replicas = grid.transpose(0, 3, 1, 2).reshape(-1, dp * ep)
    expert_replicas = grid.transpose(0, 2, 3, 1).reshape(-1, dp)
    rows = {
        Slot.TENSOR: tensor,
        Slot.EXPERTS: replicas if tables else experts,
        Slot.GRADIENTS: replicas,
        Slot.EXPERT_GRADIENTS: expert_replicas,
        Slot.PARAMETERS: replicas,
        Slot.EXPERT_PARAMETERS: expert_replicas,
        Slot.EMBEDDING: grid[[0, -1]].reshape(2, -1).T,
    }
    communicators = np.full((grid.size, len(Slot)), -1)
    for slot, groups in rows.items():
        for group in groups if slot in used else ():
            communicators[group, slot] = book.group(group.tolist())
    return communicators
