"""Parse a workload text: a header, the number of layers, a line for each layer.

``docs/layer_text.md`` says how each field is read, and what such a text does not say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ringlight.workloads.formats.files import printable

LAYERS_LIMIT = 1_000_000
#: A computation's time is in these, as ASTRA-sim's and SimAI's clock is.
NANOSECOND = 1e-9

_KINDS = {
    "ALLREDUCE": "all-reduce",
    "ALLGATHER": "all-gather",
    "REDUCESCATTER": "reduce-scatter",
    "ALLTOALL": "all-to-all",
}
#: What a type says of the group, the longest ending first; without an ending it is the phase's own group.
_ENDINGS = {"_DP_EP": "expert data", "_EP": "expert"}
_FIELDS = 12

#: A group by what it is for; ``outer`` and ``inner``: model parallelism along the network's later dimensions.
WORLD, TENSOR, DATA, OUTER_TENSOR, INNER_DATA = (
    "world",
    "tensor",
    "data",
    "outer tensor",
    "inner data",
)


class Policy(NamedTuple):
    """Order in which a header's first word runs its layers, and the groups of gradients and activations.

    ``forward_waits``: the next layer begins after the forward collective. ``backward``: ``weights`` computes
    the gradients of weights first and sends no other; ``overlapped`` sends the input's gradient while it
    computes that of the weights; ``blocking`` waits for it before; ``none``: there is no backward pass.
    """

    model: str
    data: str
    forward_waits: bool
    backward: str


POLICIES = {
    "DATA": Policy("", WORLD, False, "weights"),
    "MODEL": Policy(WORLD, "", True, "overlapped"),
    "HYBRID_DATA_MODEL": Policy(TENSOR, DATA, True, "overlapped"),
    "HYBRID_MODEL_DATA": Policy(OUTER_TENSOR, INNER_DATA, True, "overlapped"),
    "HYBRID_TRANSFORMER": Policy(TENSOR, DATA, True, "blocking"),
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD": Policy(TENSOR, DATA, True, "blocking"),
    "HYBRID_DLRM": Policy(WORLD, WORLD, False, "dlrm"),
    "HYBRID_DLRM_ENHANCED": Policy(WORLD, WORLD, False, "dlrm"),
    "DISTRIBUTED_INFERENCE": Policy(WORLD, "", True, "none"),
    "MICRO": Policy("", WORLD, False, "micro"),
}
#: Each layer names one of the others.
CUSTOMIZED = "HYBRID_CUSTOMIZED"


class Phase(NamedTuple):
    """One pass at one layer; no ``kind``: nothing is sent. ``group``: by the type's ending."""

    seconds: float
    kind: str
    group: str
    size: int


@dataclass(frozen=True)
class Layer:
    """A line. ``delay_s`` passes after each of its collectives before that counts as over."""

    line: int
    name: str
    forward: Phase
    input: Phase
    weights: Phase
    delay_s: float
    policy: Policy


@dataclass(frozen=True)
class Header:
    """The first line: its word, its numbers by key."""

    word: str
    values: Mapping[str, Sequence[int]]

    def number(self, *keys: str, default: int = 1) -> int:
        """Return the first number of the first of these keys that is there; else ``default``."""
        return next(
            (self.values[key][0] for key in keys if self.values.get(key)), default
        )

    @property
    def is_simai(self) -> bool:
        """Return whether the header has words of SimAI that ASTRA-sim does not have."""
        return bool({"ep", "pp", "ga", "all_gpus"} & self.values.keys())


class Mistake(Exception):
    """Mistake in a text, with its line."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


def looks_like(text: str) -> bool:
    """Return whether a text begins as such a workload."""
    word = text.split(maxsplit=1)[:1]
    return bool(word) and (word[0] in POLICIES or word[0] == CUSTOMIZED)


def parse(text: str, unit_s: float) -> tuple[Header, list[Layer]]:
    lines = [
        (number, line.split())
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip()
    ]
    if len(lines) < 2:
        raise Mistake(1, "a header and the number of layers are missing")
    header = _header(*lines[0])
    number, words = lines[1]
    count = _whole(number, "the number of layers", words[0], LAYERS_LIMIT)
    if len(words) > 1:
        raise Mistake(
            number,
            f"the number of layers stands alone, not {printable(' '.join(words))}",
        )
    body = lines[2:]
    if len(body) != count:
        last = body[-1][0] if body else number
        raise Mistake(last, f"{count} layers were announced, {len(body)} are there")
    return header, [_layer(header, number, words, unit_s) for number, words in body]


def _header(number: int, words: list[str]) -> Header:
    word, *rest = words
    if word not in POLICIES and word != CUSTOMIZED:
        raise Mistake(
            number,
            f"{printable(word)} is no parallelism; there are {', '.join(POLICIES)}, {CUSTOMIZED}",
        )
    values: dict[str, list[int]] = {}
    key = "DLRM_LAST_BOTTOM_LAYER" if word.startswith("HYBRID_DLRM") else ""
    for part in rest:
        if part.endswith(":") or part == "pp_comm":
            key = part.removesuffix(":")
            values[key] = []
        elif key:
            values.setdefault(key, []).append(
                _whole(number, printable(key), part, 1 << 50)
            )
        else:
            raise Mistake(number, f"{printable(part)} belongs to nothing")
    return Header(word, values)


def _whole(line: int, what: str, word: str, limit: int) -> int:
    """Return a number of something; ``6.0`` is one, too, as some programs write them."""
    try:
        value = float(word) if "." in word else int(word)
    except ValueError:
        value = -1
    if not 0 <= value <= limit or value != int(value):
        raise Mistake(
            line, f"{what}: {printable(word)} is no whole number from 0 to {limit}"
        )
    return int(value)


def _layer(header: Header, line: int, words: list[str], unit_s: float) -> Layer:
    customized = header.word == CUSTOMIZED
    if len(words) != _FIELDS + customized:
        raise Mistake(
            line, f"a layer has {_FIELDS + customized} fields, not {len(words)}"
        )
    policy = POLICIES.get(words[_FIELDS] if customized else header.word)
    if policy is None:
        raise Mistake(line, f"{printable(words[_FIELDS])} is no parallelism")

    def phase(first: int) -> Phase:
        seconds = _whole(line, "a time", words[first], 1 << 50) * unit_s
        kind, group = _type(line, words[first + 1])
        return Phase(
            seconds, kind, group, _whole(line, "a size", words[first + 2], 1 << 49)
        )

    delay_s = _whole(line, "the delay", words[11], 1 << 50) * unit_s
    return Layer(line, words[0], phase(2), phase(5), phase(8), delay_s, policy)


def _type(line: int, word: str) -> tuple[str, str]:
    """Return kind and group of a type of communication."""
    if word == "NONE":
        return "", ""
    ending = next((suffix for suffix in _ENDINGS if word.endswith(suffix)), "")
    kind = _KINDS.get(word.removesuffix(ending))
    if kind is None:
        raise Mistake(
            line,
            f"{printable(word)} is no type; there are NONE, {', '.join(_KINDS)}, with _EP or _DP_EP",
        )
    return kind, _ENDINGS.get(ending, "")
