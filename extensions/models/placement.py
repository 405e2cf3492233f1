"""Places operators on GPUs and makes the workload: SiP-ML's hybrid data and model parallelism.

A replica of the model is ``mp`` GPUs in a row, so rank = replica * mp + position; the next replica is ``mp``
ranks away, which is how far a ring of gradients goes. Operators are divided (``operators.split``),
and their pieces placed one after another, each on the GPU that is free first among those less than
``window`` away from all whose output it takes. Within a replica no pair that is farther apart exchanges
anything: a fabric whose GPUs reach few others, by degree or along a ring, can carry it.

What the paper's text does not state, assumed here:

- Pieces have a part of the output each, and of the weights; a piece takes all of its operator's inputs
  (``takes="whole"``), as a matrix that is divided by its columns does. With "part" each takes its part only,
  together one copy: the least that a clever division could do.
- An output goes once to each GPU that has pieces which take it. Partial gradients go the same way back, and
  those of one GPU are added up before.
- The backward pass of a piece is where its forward pass was, since weights and kept activations are there.
- So both directions are used, and the window reaches both ways. The authors' reaches ahead only, round a
  ring; if a window has all GPUs, as with 8 GPUs and 16 or 20, there is no difference.
- If no GPU is near enough to all, the piece goes to the last of those whose output it takes, as theirs
  does; what comes from farther away is then handed on by GPUs in between, at most ``window - 1`` at a time.
- Whether weights and activations fit into a GPU's memory is not asked.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np

from ringlight.extensions.models.buckets import Buckets
from ringlight.extensions.models.layers import Model
from ringlight.extensions.models.operators import Operator, operators, shares, split
from ringlight.extensions.models.settings import (
    OPTIMISER_BYTES,
    Parallel,
    Training,
    check_settings,
)
from ringlight.extensions.models.stage import Tag
from ringlight.fabric.kinds import collective_steps
from ringlight.workloads.devices import Device, timed
from ringlight.workloads.graph import Workload
from ringlight.workloads.graph_writer import Book, Handle, Writer

Takes = Literal["whole", "part"]
#: Most messages of one replica; a workload of more takes minutes to make.
MOST_MESSAGES = 1_000_000
#: How far the authors' placement on their ring reaches.
RING_WINDOW = 16


class Published(NamedTuple):
    """Settings with which the authors' simulator is run, which its text does not explain.

    They are ``configs`` in paper/run.py of github.com/MLNetwork/rostam, commit 116a09b. ``gradient_bytes``:
    of the ring of gradients, per GPU; neither 4 bytes a parameter nor that divided by ``mp``. ``batch`` of
    all replicas; ``iterations`` to accuracy.
    """

    gradient_bytes: int
    dp: int
    mp: int
    batch: int
    iterations: int


#: By model.
AUTHORS = {
    "resnet50": Published(250_000_000, 128, 8, 8192, 8192),
    "transformer-big": Published(700_000_000, 128, 8, 1024, 16384),
    "gpt2-medium": Published(6_800_000_000, 128, 8, 1024, 2_403_000),
}


def authors_all_reduce_s(gradient_bytes: float, bits_per_s: float) -> float:
    """Return the seconds that the authors add to an iteration for gradients.

    The authors do so instead of sending gradients through the network.
    """
    return 2 * gradient_bytes * 8 / bits_per_s


def widest_window(partners: int, dp: int, mp: int) -> int:
    """Return the widest window with which no GPU has more than ``partners`` others to send to.

    One of them is the next replica's, of the ring of gradients; the others lie on both sides. Raises
    ValueError if even neighbours are too many.
    """
    ring = int(dp > 1)
    if mp - 1 + ring <= partners:
        return mp
    if partners - ring < 2:
        raise ValueError(
            f"{partners} partners a GPU are too few for dp {dp} and mp {mp}"
        )
    return (partners - ring) // 2 + 1


def place(
    graph: Sequence[Operator],
    pieces: Sequence[int],
    seconds: Sequence[float],
    gpus: int,
    window: int,
) -> tuple[tuple[int, ...], ...]:
    """Place the pieces of each operator on GPUs 0 to ``gpus - 1``. Return the GPUs of each operator's pieces.

    ``pieces`` and ``seconds`` of each piece's forward pass, by operator; a GPU is free once it has computed
    its pieces, communication not counted. Raises ValueError for a window or a number of GPUs below 1.
    """
    if window < 1 or gpus < 1:
        raise ValueError(
            f"{gpus} GPUs with a window of {window}: both must be 1 or more"
        )
    free = [0.0] * gpus
    ends: list[float] = []
    placed: list[tuple[int, ...]] = []
    for operator, count, taken_s in zip(graph, pieces, seconds, strict=True):
        ready = max((ends[k] for k in operator.after), default=0.0)
        beside = placed[operator.beside] if operator.beside is not None else None
        within = _within(
            [gpu for k in operator.after for gpu in placed[k]], gpus, window
        )
        # Pieces of this operator count, so that those that take no time are not all on one GPU.
        queue = [(free[gpu], 0, gpu) for gpu in within]
        heapq.heapify(queue)
        mine: list[int] = []
        for number in range(count):
            _, held, gpu = queue[0]
            if beside:
                gpu = beside[number]
            free[gpu] = max(free[gpu], ready) + taken_s
            heapq.heapreplace(queue, (free[gpu], held + 1, gpu))
            mine.append(gpu)
        ends.append(max((free[gpu] for gpu in mine), default=0.0))
        placed.append(tuple(mine))
    return tuple(placed)


def _within(taken_from: Sequence[int], gpus: int, window: int) -> range:
    """Return the GPUs closer than ``window`` to all of ``taken_from``.

    If there are none, return the last of ``taken_from``; if ``taken_from`` is empty, return all GPUs.
    """
    if not taken_from:
        return range(gpus)
    start, end = min(taken_from), max(taken_from)
    near = range(max(end - window + 1, 0), min(start + window, gpus))
    return near or range(end, end + 1)


def ways(source: int, destinations: Iterable[int], reach: int) -> list[tuple[int, int]]:
    """Return links (from, to) by which each of some GPUs gets what ``source`` has, once.

    No link is longer than ``reach``. They are in an order in which every GPU has the data before it hands
    them on.
    """
    have, links = {source}, []
    for destination in sorted(destinations, key=lambda gpu: (abs(gpu - source), gpu)):
        away = reach if destination > source else -reach
        for link in itertools.pairwise(
            [*range(source, destination, away), destination]
        ):
            if link[1] not in have:
                have.add(link[1])
                links.append(link)
    return links


def placed_workload(
    model: Model,
    dp: int,
    mp: int,
    batch: int,
    window: int,
    device: Device,
    *,
    gradient_bytes: int | None = None,
    all_reduce: bool = True,
    takes: Takes = "whole",
    element_bytes: int = 4,
    sequence: int = 0,
    quantum_s: float = 1e-6,
    algorithm: str = "ring",
) -> Workload:
    """Return one iteration of ``dp`` replicas of ``mp`` GPUs each, with ``batch`` samples among the replicas.

    ``gradient_bytes``: of one replica's gradients, divided among its GPUs as the parameters are (default: an
    element for each; the authors' constants are of one GPU, so ``mp`` times those). They are reduced over the
    replicas in PyTorch's buckets while the backward pass goes on, or, without ``all_reduce``, not at all
    (:func:`authors_all_reduce_s`). ``window``: as :func:`place`; ``sequence``, ``element_bytes``: as
    ``operators.operators``, ``quantum_s``: as its ``split``. Replicas share programs. Streams:
    ``main`` computes, ``gradients``, and ``to k`` and ``from k`` for messages of position k. Raises
    ValueError naming the setting that is not possible.
    """
    for name, value in (("dp", dp), ("mp", mp), ("window", window), ("batch", batch)):
        if value < 1:
            raise ValueError(f"{name}: {value} must be 1 or more")
    if batch % dp:
        raise ValueError(f"batch: dp {dp} does not divide {batch} samples")
    if takes not in get_args(Takes):
        raise ValueError(f"takes: no {takes}; there are {', '.join(get_args(Takes))}")
    if gradient_bytes is not None and gradient_bytes < 0:
        raise ValueError(f"gradient: {gradient_bytes} bytes; it must be 0 or more")
    # Gradients are counted in bytes here, as of one byte an element.
    training = Training(
        sequence=sequence,
        element_bytes=element_bytes,
        gradient_bytes=1,
        algorithms={"all-reduce": algorithm},
    )
    check_settings(model, Parallel(dp), training)
    try:
        collective_steps("all-reduce", algorithm, dp)
    except ValueError as error:
        raise ValueError(f"algorithm: {error}") from None
    graph = operators(
        model, batch // dp, element_bytes=element_bytes, sequence=sequence
    )
    # As many pieces as fill a window keep everything that follows within it: half of one leaves a way on.
    most = mp if window >= mp else (window + 1) // 2
    pieces = split(
        graph, device, most, quantum_s=quantum_s, element_bytes=element_bytes
    )
    rate = device.flops_per_s(element_bytes)
    seconds = [
        operator.flops / rate / count
        for operator, count in zip(graph, pieces, strict=True)
    ]
    gpus = place(graph, pieces, seconds, mp, window)
    if gradient_bytes is None:
        gradient_bytes = sum(operator.parameters for operator in graph) * element_bytes
    reduced = all_reduce and dp > 1
    book = Book()
    positions = [
        _Position(Writer(book), training, dp if reduced else 1) for _ in range(mp)
    ]
    _write(
        positions,
        graph,
        gpus,
        _messages(graph, gpus, window - 1, takes),
        gradient_bytes,
    )
    ranks = np.arange(dp * mp).reshape(dp, mp)
    groups = [book.group(column) if reduced else -1 for column in ranks.T.tolist()]
    name = f"{model.name} dp {dp} mp {mp} window {window}"
    workload = book.workload(
        name,
        [position.writer.done() for position in positions],
        np.tile(np.arange(mp), dp),
        np.tile(groups, dp)[:, None],
        np.repeat(ranks, mp, axis=0),
    )
    return timed(workload, device, element_bytes)


#: Transfers of each piece of an operator: source, destination and bytes.
_Links = list[list[tuple[int, int, int]]]


def _messages(
    graph: Sequence[Operator], gpus: Sequence[tuple[int, ...]], reach: int, takes: Takes
) -> list[_Links]:
    """Return messages by operator. Raises ValueError for more messages than ``MOST_MESSAGES``."""
    users: defaultdict[int, list[int]] = defaultdict(list)
    for number, operator in enumerate(graph):
        for k in operator.after:
            users[k].append(number)
    link_groups = []
    messages = 0
    for number, operator in enumerate(graph):
        taken = {user: Counter(gpus[user]) for user in users[number]}
        links: _Links = []
        sizes = shares(operator.output_bytes, len(gpus[number]))
        for source, size in zip(gpus[number], sizes, strict=True):
            need: defaultdict[int, int] = defaultdict(int)
            for user, counts in taken.items():
                for gpu, count in counts.items():
                    part = -(-size * count // len(gpus[user]))
                    need[gpu] = max(need[gpu], size if takes == "whole" else part)
            need.pop(source, None)
            route = ways(source, need, reach)
            for tail, head in reversed(route):
                need[tail] = min(need[tail] + need[head], size)
            links.append([(tail, head, need[head]) for tail, head in route])
            messages += 2 * len(route)
        if messages > MOST_MESSAGES:
            raise ValueError(
                f"mp: GPUs of a replica exchange more than {MOST_MESSAGES} messages; take fewer, a narrower "
                "window or a longer quantum"
            )
        link_groups.append(links)
    return link_groups


class _Position:
    """One GPU of a replica: its program under construction."""

    def __init__(self, writer: Writer, training: Training, replicas: int) -> None:
        self.writer = writer
        self.buckets = Buckets(writer, training, "dp", "gradients", 0, replicas)
        self.parameters = 0
        self.last: Handle | None = None

    def compute(self, name: str, flops: float, after: Iterable[Handle]) -> Handle:
        self.last = self.writer.compute(name, flops=flops, after=after)
        return self.last

    def finish(self) -> None:
        """Close the buckets and add the optimiser after the backward pass."""
        if self.last is not None and self.parameters:
            self.buckets.close(self.last)
            size = OPTIMISER_BYTES * self.parameters
            self.writer.memory("optimiser", size, after=[self.last, self.buckets.last])


def _write(
    positions: Sequence[_Position],
    graph: Sequence[Operator],
    gpus: Sequence[tuple[int, ...]],
    messages: Sequence[_Links],
    gradient_bytes: int,
) -> None:
    """Write one iteration. All programs follow one order of all pieces, so no rank waits in a circle."""
    arrived: defaultdict[tuple[int, int], list[Handle]] = defaultdict(
        list
    )  # by operator and GPU

    activations, of_gradients = int(Tag.ACTIVATIONS), int(Tag.GRADIENTS)

    def message(
        name: str, tag: int, link: tuple[int, int, int], after: Iterable[Handle]
    ) -> Handle:
        tail, head, size = link
        positions[tail].writer.send(
            name, size, head, tag, stream=f"to {head}", after=after
        )
        return positions[head].writer.receive(
            name, size, tail, tag, stream=f"from {tail}"
        )

    for number, operator in enumerate(graph):
        for gpu, links in zip(gpus[number], messages[number], strict=True):
            inputs = [handle for k in operator.after for handle in arrived[k, gpu]]
            flops = operator.flops / len(gpus[number])
            has = {
                gpu: positions[gpu].compute(f"{operator.name} forward", flops, inputs)
            }
            for link in links:
                has[link[1]] = message(
                    "mp activations", activations, link, [has[link[0]]]
                )
                arrived[number, link[1]].append(has[link[1]])

    gradients = _gradients(graph, gpus, gradient_bytes)
    ready: dict[
        tuple[int, int], Handle
    ] = {}  # the gradient that a GPU has of an operator's output
    for number, operator in reversed(list(enumerate(graph))):
        parameters = shares(operator.parameters, len(gpus[number]))
        for piece, gpu in enumerate(gpus[number]):
            parts: defaultdict[int, list[Handle]] = defaultdict(list)
            for tail, head, size in reversed(messages[number][piece]):
                own = [ready[number, head]] if (number, head) in ready else []
                parts[tail].append(
                    message(
                        "mp gradients",
                        of_gradients,
                        (head, tail, size),
                        [*own, *parts[head]],
                    )
                )
            position = positions[gpu]
            done = position.compute(
                f"{operator.name} backward",
                operator.backward_flops / len(gpus[number]),
                parts[gpu],
            )
            for k in operator.after:
                ready[k, gpu] = done
            position.buckets.add(gradients[number][piece], done)
            position.parameters += parameters[piece]
    for position in positions:
        position.finish()


def _gradients(
    graph: Sequence[Operator], gpus: Sequence[tuple[int, ...]], gradient_bytes: int
) -> list[list[int]]:
    """Return bytes of each piece's gradients, by its share of all parameters; together ``gradient_bytes``."""
    total, before, gradients = (
        max(sum(operator.parameters for operator in graph), 1),
        0,
        [],
    )
    for operator, placed in zip(graph, gpus, strict=True):
        mine = []
        for count in shares(operator.parameters, len(placed)):
            after = before + count
            mine.append(
                gradient_bytes * after // total - gradient_bytes * before // total
            )
            before = after
        gradients.append(mine)
    return gradients
