"""Parts of a check: the items of the list that it covers, and words for its result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.testbed.rigs.rig import Rig

#: Within which a change is seen by polling, seconds.
SEEN_WITHIN_S = 5.0
#: What a check does.
Run = Callable[[Rig, OpticalSwitchDriver], None]


class CheckFailed(AssertionError):
    """The driver or its switch does not do what an item asks for; one line."""


@dataclass(frozen=True)
class Check:
    """``items``: numbers of the conformance list that it answers, in whole or in part. ``writes``: it changes
    the switch."""

    name: str
    items: tuple[int, ...]
    run: Run
    writes: bool = True


def collecting(into: list[Check]) -> Callable[..., Callable[[Run], Run]]:
    """Return a decorator ``check(*items, writes=True)`` that enters a function as a check."""

    def check(*items: int, writes: bool = True) -> Callable[[Run], Run]:
        def enter(run: Run) -> Run:
            into.append(Check(run.__name__, items, run, writes))
            return run

        return enter

    return check


def expect(fact: object, what: str) -> None:
    """Check that ``fact`` is true. Raises CheckFailed with ``what``, which describes the fault, if it is
    not.
    """
    if not fact:
        raise CheckFailed(what)


def same(actual: object, expected: object, what: str) -> None:
    """Check that both are equal. Raises CheckFailed if they are not."""
    if actual != expected:
        raise CheckFailed(f"{what}: {shown(actual)}, not {shown(expected)}")


def shown(value: object) -> str:
    if isinstance(value, set | frozenset | list | tuple):
        most = 8
        ordered = (
            sorted(value, key=str) if isinstance(value, set | frozenset) else value
        )
        parts = [str(item) for item in ordered]
        more = f", and {len(parts) - most} more" if len(parts) > most else ""
        return f"{', '.join(parts[:most])}{more}" if parts else "nothing"
    return str(value)


@dataclass
class Raised:
    """The error that was expected."""

    error: BaseException | None = field(default=None)

    def of(self, key: str) -> object:
        return getattr(self.error, key, None)


@contextmanager
def raises(kind: type[Exception], what: str) -> Iterator[Raised]:
    """Check that the block raises ``kind``; ``what`` was tried. Yield an object that gets the error.

    Raises CheckFailed if the block does not raise it.
    """
    caught = Raised()
    try:
        yield caught
    except kind as error:
        caught.error = error
    else:
        raise CheckFailed(f"{what}: no {kind.__name__}")


def soon(fact: Callable[[], bool], what: str) -> None:
    """Wait for a fact; raises CheckFailed if it is not true within `SEEN_WITHIN_S`."""
    deadline = time.monotonic() + SEEN_WITHIN_S
    while not fact():
        if time.monotonic() > deadline:
            raise CheckFailed(f"{what} within {SEEN_WITHIN_S:g} s")
        time.sleep(0.05)
