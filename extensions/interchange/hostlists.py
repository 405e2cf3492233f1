"""Slurm's hostlists: ``g[0-2,5]`` for g0, g1, g2 and g5, as ``scontrol show hostnames`` and ``hostlist``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product

#: Most names of a hostlist, and of all hostlists of a file.
MOST_NAMES = 65536
MOST_OF_FILE = 4 * MOST_NAMES
#: Most digits of a number; Slurm's own numbers have 64 bits.
_DIGITS = 18
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_ENTRY = re.compile(r"(?:[A-Za-z0-9_.-]*\[[^\[\]]*\])+|[A-Za-z0-9_.-]+")
_PART = re.compile(r"([A-Za-z0-9_.-]*)(?:\[([^\[\]]*)\])?")
_RANGE = re.compile(rf"([0-9]{{1,{_DIGITS}}})(?:-([0-9]{{1,{_DIGITS}}}))?")
_NUMBERED = re.compile(rf"(.*?)([0-9]{{1,{_DIGITS}}})")


def expand(text: str) -> list[str]:
    """Return the names of a hostlist in their order, zero padding kept.

    Raises ValueError for what is no hostlist, and for more than :data:`MOST_NAMES` names.
    """
    names: list[str] = []
    for entry in _entries(text.strip()):
        if _ENTRY.fullmatch(entry) is None:
            raise ValueError(f"{entry!r:.60} is no hostlist, such as g[0-2,5]")
        names += _expanded(entry, MOST_NAMES - len(names))
    return names


@dataclass
class Hostlists:
    """The hostlists of one file. ``left``: names that it may still have."""

    left: int = MOST_OF_FILE

    def expand(self, text: str) -> list[str]:
        """Return the names of a hostlist as :func:`expand`. Raises ValueError, also for too many in the file."""
        names = expand(text)
        self.left -= len(names)
        if self.left < 0:
            raise ValueError(f"the file has more than {MOST_OF_FILE} names")
        return names


def _entries(text: str) -> Iterator[str]:
    """Yield the parts of a hostlist between commas, but for commas in brackets."""
    pending: list[str] = []
    depth = 0
    for part in text.split(","):
        pending.append(part)
        depth += part.count("[") - part.count("]")
        if depth <= 0:
            yield ",".join(pending)
            pending, depth = [], 0
    if pending:
        yield ",".join(pending)


def _expanded(entry: str, most: int) -> list[str]:
    """Return the names of one entry of a hostlist. Raises ValueError."""
    choices: list[list[str]] = []
    count = 1
    for prefix, ranges in _PART.findall(entry):
        if prefix:
            choices.append([prefix])
        if ranges:
            choices.append(_numbers(ranges, most))
            count *= len(choices[-1])
        if count > most:
            raise ValueError(f"{entry!r:.60} has more than {MOST_NAMES} names")
    if "[]" in entry:
        raise ValueError(f"{entry!r:.60} has an empty range")
    return ["".join(parts) for parts in product(*choices)]


def _numbers(ranges: str, most: int) -> list[str]:
    """Return the numbers of ``1-3,7`` as text. Raises ValueError."""
    numbers: list[str] = []
    for text in ranges.split(","):
        match = _RANGE.fullmatch(text)
        if match is None:
            raise ValueError(f"[{ranges:.60}]: {text!r:.20} is no range, such as 0-2")
        low, high = int(match[1]), int(match[2] or match[1])
        if low > high:
            raise ValueError(f"[{ranges:.60}]: {text} runs backwards")
        if len(numbers) + high - low >= most:
            raise ValueError(f"[{ranges:.60}] has more than {MOST_NAMES} names")
        numbers += (f"{n:0{len(match[1])}}" for n in range(low, high + 1))
    return numbers


@dataclass
class _Numbered:
    """Names of one prefix: their numbers as ranges ``[low, high, digits]``; no ranges for a plain name."""

    prefix: str
    ranges: list[list[int]] = field(default_factory=list)

    def takes(self, digits: str) -> bool:
        """Add a number to the last range if it follows there; return whether it did."""
        last = self.ranges[-1]
        follows = last[1] + 1
        if f"{follows:0{last[2]}}" != digits:
            return False
        last[1] = follows
        return True

    def __str__(self) -> str:
        texts = [
            f"{low:0{width}}" + (f"-{high:0{width}}" if high > low else "")
            for low, high, width in self.ranges
        ]
        alone = len(texts) <= 1 and "-" not in "".join(texts)
        return self.prefix + ("".join(texts) if alone else f"[{','.join(texts)}]")


def fold(names: Iterable[str]) -> str:
    """Return names as a hostlist in the same order, as ``scontrol show hostlist`` does.

    Raises ValueError for a name that no hostlist can hold.
    """
    groups: list[_Numbered] = []
    for name in names:
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"{name!r:.60} is no name for a hostlist")
        match = _NUMBERED.fullmatch(name)
        if match is None or match[1][-1:].isdigit():
            groups.append(_Numbered(name))
            continue
        prefix, digits = match.groups()
        if not (groups and groups[-1].ranges and groups[-1].prefix == prefix):
            groups.append(_Numbered(prefix))
        elif groups[-1].takes(digits):
            continue
        groups[-1].ranges.append([int(digits), int(digits), len(digits)])
    return ",".join(map(str, groups))
