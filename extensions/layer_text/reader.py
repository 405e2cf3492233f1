"""A workload text as a workload: the groups of its ranks, and the passes over its layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ringlight.extensions.layer_text.text import (
    CUSTOMIZED,
    DATA,
    INNER_DATA,
    NANOSECOND,
    OUTER_TENSOR,
    TENSOR,
    WORLD,
    Header,
    Layer,
    Mistake,
    Phase,
    parse,
)
from ringlight.fabric.steps import IntArray
from ringlight.workloads.formats.files import read_text
from ringlight.workloads.graph import Collective, Workload
from ringlight.workloads.graph_writer import Book, Handle, Writer

RANKS_LIMIT = 1 << 17
#: Most operations of a rank; checkpoints could ask for the square of the layers.
OPERATIONS_LIMIT = 2_000_000


def read(
    path: Path,
    ranks: int | None = None,
    model_ranks: int | None = None,
    unit_s: float = NANOSECOND,
) -> Workload:
    """Return one iteration of a workload text.

    ``ranks`` and ``model_ranks`` (of one group of model parallelism): if the text has none. ``unit_s``:
    seconds of one unit of its computing times. Raises ValueError with file and line.
    """
    try:
        header, layers = parse(read_text(path), unit_s)
        places = _places(header, ranks, model_ranks)
        if not header.number("model_parallel_NPU_group", default=0) and not model_ranks:
            _check_not_hybrid(layers)
        return _workload(path.stem, header, layers, places)
    except Mistake as mistake:
        raise ValueError(f"{path}, line {mistake.line}: {mistake}") from None


def _check_not_hybrid(layers: Sequence[Layer]) -> None:
    """Refuse layers whose groups follow from the ranks of model parallelism, if nothing states these."""
    for layer in layers:
        if layer.policy.model in (TENSOR, OUTER_TENSOR):
            raise Mistake(
                layer.line,
                "its parallelism is hybrid, and the text does not say how many ranks a group of model "
                "parallelism has; give them (--model-ranks N, in a scenario model_ranks)",
            )


@dataclass(frozen=True)
class _Places:
    """Arrangement of the ranks: ``stages`` of ``data`` times ``tensor`` ranks each, the last
    varying fastest.
    """

    ranks: int
    tensor: int
    expert: int
    stages: int

    @property
    def data(self) -> int:
        return self.ranks // (self.tensor * self.stages)

    def groups(self, role: str) -> IntArray:
        """Return each group's ranks [groups, ranks of one].

        Raises ValueError when the numbers do not divide.
        """
        if role == WORLD:
            return np.arange(self.ranks)[None, :]
        if role in (OUTER_TENSOR, INNER_DATA):
            grid = np.arange(self.ranks).reshape(self.tensor, -1)
            return grid.T if role == OUTER_TENSOR else grid
        cube = np.arange(self.ranks).reshape(self.stages, self.data, self.tensor)
        if role == TENSOR:
            return cube.reshape(-1, self.tensor)
        if role == DATA:
            return cube.transpose(0, 2, 1).reshape(-1, self.data)
        if self.data % self.expert:
            raise ValueError(
                f"its {self.data} ranks of data parallelism do not divide into {self.expert} experts"
            )
        parts = cube.reshape(
            self.stages, self.data // self.expert, self.expert, self.tensor
        )
        if role == "expert":
            return parts.transpose(0, 1, 3, 2).reshape(-1, self.expert)
        return parts.transpose(0, 2, 3, 1).reshape(-1, self.data // self.expert)


def _places(header: Header, ranks: int | None, model_ranks: int | None) -> _Places:
    stated = header.number("all_gpus", default=0)
    if ranks is not None and stated and ranks != stated:
        raise Mistake(1, f"it is for {stated} ranks, not {ranks}")
    ranks = stated or ranks or 0
    if not ranks:
        raise Mistake(
            1, "the text does not say how many ranks there are; give them (--ranks N)"
        )
    if ranks > RANKS_LIMIT:
        raise Mistake(1, f"it has {ranks} ranks, {RANKS_LIMIT} are allowed")
    own = header.number("model_parallel_NPU_group", default=0)
    if own and model_ranks and own != model_ranks:
        raise Mistake(
            1, f"its groups of model parallelism have {own} ranks, not {model_ranks}"
        )
    tensor = own or model_ranks or 1
    stages, expert = (
        header.number("pp"),
        header.number("ep", "expert_parallel_npu_group"),
    )
    if min(tensor, stages, expert) < 1 or ranks % (tensor * stages):
        raise Mistake(
            1, f"{ranks} ranks do not divide into {stages} stages of groups of {tensor}"
        )
    return _Places(ranks, tensor, expert, stages)


class _Iteration:
    """The operations of one iteration; what is begun next comes after all of ``front``."""

    def __init__(self, header: Header, places: _Places) -> None:
        self.book = Book()
        self.writer = Writer(self.book)
        self.header = header
        self.places = places
        self.front: list[Handle] = []
        #: Group -> its slot: that of the communicators of all ranks.
        self.slots: dict[str, int] = {}
        self.groups: dict[str, IntArray] = {}

    def compute(self, layer: Layer, what: str, phase: Phase) -> None:
        """Add a computation unless its time is zero."""
        if phase.seconds:
            self._room(layer)
            name = f"{layer.name} {what}"
            self.front = [
                self.writer.compute(name, seconds=phase.seconds, after=self.front)
            ]

    def send(self, layer: Layer, what: str, phase: Phase, own: str) -> list[Handle]:
        """Begin the collective of a phase.

        Return the operations with which it is over; [] if nothing is sent. ``own``: the group of a type
        without an ending.
        """
        role = phase.group or own
        if not phase.kind or not phase.size or not role:
            return []
        members = self._members(layer, role)
        if members < 2:
            return []
        self._room(layer)
        # ASTRA-sim states of an all-gather what each rank puts in, SimAI what each has in the end.
        size = phase.size * (
            members if phase.kind == "all-gather" and not self.header.is_simai else 1
        )
        slot = self.slots.setdefault(role, len(self.slots))
        name = f"{layer.name} {what} {phase.kind}"
        sent = self.writer.collective(
            name, Collective(phase.kind), size, slot, stream=role, after=self.front
        )
        if not layer.delay_s:
            return [sent]
        return [
            self.writer.compute(
                f"{name} delay",
                seconds=layer.delay_s,
                stream=f"{role} delay",
                after=[sent],
            )
        ]

    def _room(self, layer: Layer) -> None:
        if len(self.writer.rows) >= OPERATIONS_LIMIT:
            raise Mistake(
                layer.line, f"it comes to more than {OPERATIONS_LIMIT} operations"
            )

    def _members(self, layer: Layer, role: str) -> int:
        if role not in self.groups:
            try:
                self.groups[role] = self.places.groups(role)
            except ValueError as error:
                raise Mistake(layer.line, str(error)) from None
        return int(self.groups[role].shape[1])

    def wait(self, sent: list[Handle]) -> None:
        self.front = [*self.front, *sent]


def _workload(
    name: str, header: Header, layers: Sequence[Layer], places: _Places
) -> Workload:
    run = _Iteration(header, places)
    backward = (
        layers[0].policy.backward
        if layers and header.word != CUSTOMIZED
        else "overlapped"
    )
    _PASSES[backward](run, layers)
    if not run.writer.rows:
        raise Mistake(2, "there is nothing to do in it")
    communicators = np.full((places.ranks, len(run.slots)), -1)
    for role, slot in run.slots.items():
        for ranks in run.groups[role]:
            communicators[ranks, slot] = run.book.group(ranks.tolist())
    peers = np.zeros((places.ranks, 0), dtype=np.int64)
    try:
        return run.book.workload(
            name, [run.writer.done()], np.zeros(places.ranks), communicators, peers
        )
    except ValueError as error:
        raise Mistake(1, str(error)) from None


def _forward(run: _Iteration, layer: Layer) -> None:
    run.compute(layer, "forward", layer.forward)
    if layer.policy.forward_waits:
        run.wait(run.send(layer, "forward", layer.forward, layer.policy.model))


def _micro(run: _Iteration, layers: Sequence[Layer]) -> None:
    for layer in layers:
        run.send(layer, "weight gradient", layer.weights, layer.policy.data)


def _inference(run: _Iteration, layers: Sequence[Layer]) -> None:
    for layer in layers:
        _forward(run, layer)


def _weights_first(run: _Iteration, layers: Sequence[Layer]) -> None:
    _inference(run, layers)
    for number in reversed(range(len(layers))):
        layer = layers[number]
        run.compute(layer, "weight gradient", layer.weights)
        run.send(layer, "weight gradient", layer.weights, layer.policy.data)
        if number:
            run.compute(layer, "input gradient", layer.input)


def _overlapped(run: _Iteration, layers: Sequence[Layer]) -> None:
    _inference(run, layers)
    for number in reversed(range(len(layers))):
        layer = layers[number]
        run.compute(layer, "input gradient", layer.input)
        sent = (
            run.send(layer, "input gradient", layer.input, layer.policy.model)
            if number
            else []
        )
        run.compute(layer, "weight gradient", layer.weights)
        run.send(layer, "weight gradient", layer.weights, layer.policy.data)
        run.wait(sent)


def _blocking(run: _Iteration, layers: Sequence[Layer]) -> None:
    """Add passes with checkpoints.

    The forward pass is repeated from a checkpoint to the layer that needs it.
    """
    checkpoints = _listed(run.header, "checkpoints", len(layers))
    asking = _listed(run.header, "checkpoint_initiates", len(layers))
    _inference(run, layers)
    for number in reversed(range(len(layers))):
        layer = layers[number]
        if number in asking:
            begin = max(
                (checkpoint for checkpoint in checkpoints if checkpoint <= number),
                default=None,
            )
            if begin is None:
                raise Mistake(
                    1,
                    f"layer {number} is to begin at a checkpoint, and there is none before it",
                )
            for again in layers[begin:number]:
                _forward(run, again)
        run.compute(layer, "input gradient", layer.input)
        run.wait(run.send(layer, "input gradient", layer.input, layer.policy.model))
        run.compute(layer, "weight gradient", layer.weights)
        run.send(layer, "weight gradient", layer.weights, layer.policy.data)


def _listed(header: Header, key: str, layers: int) -> set[int]:
    """Return the layers that a header lists after their number."""
    count, *listed = header.values.get(key) or [0]
    if count != len(listed) or any(entry >= layers for entry in listed):
        raise Mistake(
            1, f"{key}: it must be a number, and so many of the {layers} layers from 0"
        )
    return set(listed)


def _dlrm(run: _Iteration, layers: Sequence[Layer]) -> None:
    """Add the passes of DLRM.

    Layer 0 is the embedding: its all-to-all goes on while the bottom layers compute.
    """
    last = run.header.number("DLRM_LAST_BOTTOM_LAYER", default=0)
    if last >= len(layers):
        raise Mistake(1, f"its last bottom layer is {last}, of {len(layers)}")
    looked_up: list[Handle] = []
    for number, layer in enumerate(layers):
        run.compute(layer, "forward", layer.forward)
        if layer.forward.kind == "all-to-all":
            sent = run.send(layer, "forward", layer.forward, layer.policy.model)
            looked_up = sent if number == 0 else looked_up
        if number == last:
            run.wait(looked_up)
    for number in reversed(range(len(layers))):
        layer = layers[number]
        run.compute(layer, "weight gradient", layer.weights)
        run.send(layer, "weight gradient", layer.weights, layer.policy.data)
        if number:
            run.compute(layer, "input gradient", layer.input)
        if number == last + 1:
            run.send(
                layers[0], "input gradient", layers[0].input, layers[0].policy.model
            )


_PASSES: dict[str, Callable[[_Iteration, Sequence[Layer]], None]] = {
    "micro": _micro,
    "none": _inference,
    "weights": _weights_first,
    "overlapped": _overlapped,
    "blocking": _blocking,
    "dlrm": _dlrm,
}
