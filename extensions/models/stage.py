"""The program of one pipeline stage: what each of its ranks computes and communicates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from ringlight.extensions.models.buckets import Buckets
from ringlight.extensions.models.layers import Layer, Model, Transformer
from ringlight.extensions.models.pipeline import Turn
from ringlight.extensions.models.settings import OPTIMISER_BYTES, Parallel, Training
from ringlight.workloads.graph import Collective, Program
from ringlight.workloads.graph_writer import Book, Handle, Writer


class Slot(IntEnum):
    """Communicator slots. Groups of one rank have none; the streams of one group have slots of their own."""

    TENSOR = 0
    EXPERTS = 1
    GRADIENTS = 2
    EXPERT_GRADIENTS = 3
    PARAMETERS = 4
    EXPERT_PARAMETERS = 5
    EMBEDDING = 6


class Peer(IntEnum):
    """Peer slots: the same place on the next stage and on the one before, round the circle."""

    NEXT = 0
    PREVIOUS = 1


class Tag(IntEnum):
    """Content of a message."""

    ACTIVATIONS = 0
    GRADIENTS = 1


@dataclass(frozen=True)
class Plan:
    """Settings that all stages share. ``parts``: layers of each chunk."""

    model: Model
    parallel: Parallel
    training: Training
    parts: Sequence[tuple[Layer, ...]]

    def at_rank(self, layer: Layer) -> tuple[int, int]:
        """Return the parameters of a layer at one rank.

        These are those that all replicas have, and those of its own experts.
        """
        p = self.parallel
        dense, experts = (
            layer.sharded // p.tp + layer.replicated,
            layer.experts // (p.tp * p.ep),
        )
        return (dense, experts) if p.ep > 1 else (dense + experts, 0)

    def bytes(self, layer: Layer) -> int:
        """Return the bytes that a layer hands on for one micro-batch."""
        return layer.output * self.training.micro_batch * self.training.element_bytes

    @property
    def share(self) -> int:
        """Ranks among which activations are divided between layers."""
        return self.parallel.tp if self.training.sequence_parallel else 1

    @property
    def ties(self) -> bool:
        """Return whether first and last stage both have the embedding's matrix."""
        return (
            isinstance(self.model, Transformer)
            and self.model.tied
            and self.parallel.pp > 1
        )


def stage_program(book: Book, plan: Plan, stage: int, turns: Sequence[Turn]) -> Program:
    """Return the program of the ranks of ``stage``, which computes ``turns``."""
    writing = _Stage(plan, Writer(book), stage)
    last = {turn.chunk: turn for turn in turns if not turn.forward}
    for turn in turns:
        if turn.forward:
            writing.forward(turn)
        else:
            # Gradients of ZeRO's stages 2 and 3 have no place where they could be summed up before.
            writing.backward(
                turn, reduce=turn is last[turn.chunk] or plan.training.zero >= 2
            )
            if turn is last[turn.chunk]:
                writing.divide()
    writing.finish()
    return writing.writer.done()


@dataclass
class _Stage:
    plan: Plan
    writer: Writer
    stage: int
    waits: list[Handle] = field(
        default_factory=list
    )  # of the next operation of the main stream
    computed: list[Handle] = field(default_factory=list)
    last: Handle | None = None  # of the main stream
    buckets: list[Buckets] = field(default_factory=list)
    sharded: list[tuple[Buckets, int]] = field(
        default_factory=list
    )  # and parameters of a bucket

    def __post_init__(self) -> None:
        p, t = self.plan.parallel, self.plan.training
        self.buckets = [
            Buckets(self.writer, t, "dp", "gradients", Slot.GRADIENTS, p.replicas),
            Buckets(
                self.writer, t, "edp", "expert gradients", Slot.EXPERT_GRADIENTS, p.dp
            ),
        ]

    def forward(self, turn: Turn) -> None:
        layers = self.plan.parts[turn.chunk]
        if turn.chunk > 0:
            self._receive(
                "pp activations",
                Peer.PREVIOUS,
                Tag.ACTIVATIONS,
                self.plan.parts[turn.chunk - 1],
            )
        for layer in layers:
            self._gather_parameters(layer)
            self._pass(layer, "forward", layer.flops, turn.micro_batch)
        if turn.chunk < len(self.plan.parts) - 1:
            self._send("pp activations", Peer.NEXT, Tag.ACTIVATIONS, layers)

    def backward(self, turn: Turn, reduce: bool) -> None:
        layers = self.plan.parts[turn.chunk]
        if turn.chunk < len(self.plan.parts) - 1:
            self._receive("pp gradients", Peer.NEXT, Tag.GRADIENTS, layers)
        for buckets in self.buckets:
            buckets.begin()
        for unit in reversed(_units(layers)):
            again = self.plan.training.recompute and unit[0].recomputed
            if again:
                for layer in unit:
                    self._gather_parameters(layer)
                    self._pass(layer, "recompute", layer.flops, turn.micro_batch)
            for layer in reversed(unit):
                if not again:
                    self._gather_parameters(layer)
                done = self._pass(layer, "backward", 2 * layer.flops, turn.micro_batch)
                if reduce:
                    for buckets, parameters in zip(
                        self.buckets, self.plan.at_rank(layer), strict=True
                    ):
                        buckets.add(parameters, done)
        if reduce:
            for buckets in self.buckets:
                buckets.close(done)
        if turn.chunk > 0:
            self._send(
                "pp gradients",
                Peer.PREVIOUS,
                Tag.GRADIENTS,
                self.plan.parts[turn.chunk - 1],
            )

    def divide(self) -> None:
        """Note, behind a chunk's last backward pass, how its parameters are divided: as its buckets are."""
        for buckets in self.buckets:
            if buckets.ranks > 1:
                # The first layers' parameters are needed first, and theirs is the last bucket.
                self.sharded += [
                    (buckets, size) for size in reversed(buckets.parameters)
                ]

    def finish(self) -> None:
        """Add the operations after the last backward pass.

        These are the embedding's gradients, the optimiser and ZeRO's parameters.
        """
        t = self.plan.training
        ready = [self.last, *(buckets.last for buckets in self.buckets)]
        if self.plan.ties and self.stage in (0, self.plan.parallel.pp - 1):
            size = (
                self.plan.parts[0][0].sharded
                // self.plan.parallel.tp
                * t.gradient_bytes
            )
            ready.append(
                self.writer.collective(
                    "embedding gradients",
                    self._collective("all-reduce"),
                    size,
                    Slot.EMBEDDING,
                    stream="embedding",
                    after=ready,
                )
            )
        updated = self.writer.memory("optimiser", self._updated_bytes(), after=ready)
        if t.zero in (1, 2):
            for buckets, size in self.sharded:
                self.writer.collective(
                    f"{buckets.purpose} parameters",
                    self._collective("all-gather"),
                    size * t.element_bytes,
                    buckets.slot,
                    stream=buckets.stream,
                    after=[updated],
                )

    def _updated_bytes(self) -> int:
        """Return the bytes that the optimiser reads and writes for the parameters that a rank updates."""
        mine = [self.plan.at_rank(layer) for part in self._chunks() for layer in part]
        owners = [
            buckets.ranks if self.plan.training.zero else 1 for buckets in self.buckets
        ]
        held = (sum(dense for dense, _ in mine), sum(experts for _, experts in mine))
        return OPTIMISER_BYTES * sum(
            -(-count // ranks) for count, ranks in zip(held, owners, strict=True)
        )

    def _chunks(self) -> Sequence[tuple[Layer, ...]]:
        return self.plan.parts[self.stage :: self.plan.parallel.pp]

    def _pass(self, layer: Layer, way: str, flops: float, micro_batch: int) -> Handle:
        """One pass of a micro-batch through a layer; the computation, without what follows it.

        Megatron-LM's: an all-reduce behind the last matrix forward and, of the input's gradient,
        backward. With sequence parallelism each is a reduce-scatter behind and an all-gather before the
        other. Tokens go to their experts before, and come back after; what each tensor-parallel rank has
        of them.
        """
        p, t = self.plan.parallel, self.plan.training
        backward = way == "backward"
        before, behind = (
            (layer.reduces, layer.gathers)
            if backward
            else (layer.gathers, layer.reduces)
        )
        name = "backward" if backward else "forward"
        hidden = self.plan.bytes(self.plan.parts[0][0])
        experts = layer.copies > 0 and p.ep > 1
        tokens = hidden * (layer.copies if experts else 1)
        divided = t.sequence_parallel and p.tp > 1
        if experts:
            self._all_to_all(
                "ep combine gradients" if backward else "ep dispatch",
                tokens,
                layer,
                micro_batch,
                False,
            )
        if divided and before:
            self._main(
                f"tp {name}", self._collective("all-gather"), tokens, Slot.TENSOR
            )
        after = self._taken()
        done = self.writer.compute(
            f"{layer.name} {way}", flops=flops * t.micro_batch / p.tp, after=after
        )
        self.last = done
        self.computed = [*self.computed[-1:], done]
        if divided and behind:
            self._main(
                f"tp {name}", self._collective("reduce-scatter"), tokens, Slot.TENSOR
            )
        if experts:
            self._all_to_all(
                "ep dispatch gradients" if backward else "ep combine",
                tokens,
                layer,
                micro_batch,
                True,
            )
        if p.tp > 1 and not divided and behind:
            self._main(
                f"tp {name}", self._collective("all-reduce"), hidden, Slot.TENSOR
            )
        return done

    def _all_to_all(
        self, name: str, tokens: int, layer: Layer, micro_batch: int, back: bool
    ) -> None:
        t = self.plan.training
        what = self._collective("all-to-all")
        if t.split.skew:
            draw = layer.block * t.micro_batches + micro_batch
            what = self._collective("all-to-all-v")._replace(
                split=replace(t.split, draw=draw, back=back)
            )
        self._main(name, what, tokens // self.plan.share, Slot.EXPERTS)

    def _collective(self, kind: str) -> Collective:
        return Collective(kind, self.plan.training.algorithms.get(kind, ""))

    def _main(self, name: str, what: Collective, size: int, slot: Slot) -> None:
        self.last = self.writer.collective(name, what, size, slot, after=self._taken())

    def _taken(self) -> list[Handle]:
        waits, self.waits = self.waits, []
        return waits

    def _gather_parameters(self, layer: Layer) -> None:
        """Fetch the layer's parameters (ZeRO's stage 3) while the layer before it computes."""
        if self.plan.training.zero < 3:
            return
        behind = self.computed[:1] if len(self.computed) > 1 else []
        rows = zip(
            self.buckets,
            self.plan.at_rank(layer),
            ("parameters", "expert parameters"),
            (Slot.PARAMETERS, Slot.EXPERT_PARAMETERS),
            strict=True,
        )
        for buckets, parameters, stream, slot in rows:
            if buckets.ranks > 1 and parameters:
                size = parameters * self.plan.training.element_bytes
                what = self._collective("all-gather")
                self.waits.append(
                    self.writer.collective(
                        f"{buckets.purpose} parameters",
                        what,
                        size,
                        slot,
                        stream=stream,
                        after=behind,
                    )
                )

    def _message_bytes(self, layers: Sequence[Layer]) -> int:
        """Return the bytes that a rank hands on behind ``layers``.

        These are its share of the activations, or all of them.
        """
        return self.plan.bytes(layers[-1]) // self.plan.share

    def _send(self, name: str, peer: Peer, tag: Tag, layers: Sequence[Layer]) -> None:
        stream = f"send {name.removeprefix('pp ')}"
        size = self._message_bytes(layers)
        self.writer.send(name, size, peer, tag, stream=stream, after=[self.last])

    def _receive(
        self, name: str, peer: Peer, tag: Tag, layers: Sequence[Layer]
    ) -> None:
        stream = f"receive {name.removeprefix('pp ')}"
        self.waits.append(
            self.writer.receive(
                name, self._message_bytes(layers), peer, tag, stream=stream
            )
        )


def _units(layers: Sequence[Layer]) -> list[list[Layer]]:
    """Return layers grouped by what is recomputed together: those of one block; all others alone."""
    units: list[list[Layer]] = []
    for layer in layers:
        same = (
            units
            and layer.recomputed
            and units[-1][-1].recomputed
            and units[-1][-1].block == layer.block
        )
        if same:
            units[-1].append(layer)
        else:
            units.append([layer])
    return units
