"""Runs the checks on a rig, and sums them up item by item."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ringlight.controller.optical.errors import OpticalError
from ringlight.extensions.acceptance.checking import Check, CheckFailed
from ringlight.extensions.acceptance.checks import CHECKS
from ringlight.extensions.acceptance.items import ITEMS
from ringlight.testbed.rigs.rig import Lacks, Rig, opened

log = logging.getLogger(__name__)

State = Literal["green", "failed", "skipped"]


@dataclass(frozen=True)
class CheckOutcome:
    """Outcome of one check. ``text``: why it failed, or the capability that is missing."""

    name: str
    items: tuple[int, ...]
    state: State
    text: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class ItemOutcome:
    """Outcome of one item: failed if one of its checks failed, green if none failed and at least one is
    green.

    ``text``: reasons of the checks that failed, else of those that were skipped.
    """

    number: int
    state: State
    text: str


def run_check(rig: Rig, check: Check) -> CheckOutcome:
    started = time.monotonic()

    def outcome(state: State, text: str = "") -> CheckOutcome:
        return CheckOutcome(
            check.name, check.items, state, text, round(time.monotonic() - started, 3)
        )

    if check.writes and rig.read_only:
        return outcome("skipped", "leave to write (read-only)")
    try:
        with opened(rig) as driver:
            check.run(rig, driver)
    except Lacks as lack:
        return outcome("skipped", str(lack))
    except CheckFailed as error:
        return outcome("failed", rig.ended() or str(error))
    except OpticalError as error:
        log.debug("%s", check.name, exc_info=True)
        return outcome("failed", rig.ended() or f"{type(error).__name__}: {error}")
    except Exception as error:
        log.debug("%s", check.name, exc_info=True)
        return outcome("failed", _with_place(error))
    return outcome("green")


def _with_place(error: Exception) -> str:
    """Return an error that no driver should raise, and where it was raised, on one line."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({place.filename}, line {place.lineno}, in {place.name})"


def run_checks(
    rig: Rig,
    checks: Sequence[Check] = CHECKS,
    progress: Callable[[str], None] | None = None,
) -> list[CheckOutcome]:
    """Run every check in turn and return the outcomes. ``progress`` is called with the name of each check
    before it runs.
    """
    outcomes = []
    for number, check in enumerate(checks, start=1):
        if progress is not None:
            progress(f"{number}/{len(checks)} {check.name.replace('_', ' ')}")
        outcomes.append(run_check(rig, check))
    return outcomes


def by_item(outcomes: Iterable[CheckOutcome]) -> dict[int, ItemOutcome]:
    """Return the outcome of each item of the list, by its number."""
    listed = list(outcomes)
    by_number = {}
    for number in ITEMS:
        mine = [outcome for outcome in listed if number in outcome.items]
        states: dict[State, list[str]] = {"failed": [], "green": [], "skipped": []}
        for outcome in mine:
            states[outcome.state].append(outcome.text)
        state: State = (
            "failed" if states["failed"] else "green" if states["green"] else "skipped"
        )
        texts = states["failed"] or states["skipped"] if mine else ["a check"]
        by_number[number] = ItemOutcome(number, state, "; ".join(dict.fromkeys(texts)))
    return by_number


def as_document(outcomes: Sequence[CheckOutcome]) -> dict[str, Any]:
    """Return the JSON document of the items and of the checks for them."""
    items = by_item(outcomes)
    return {
        "items": [
            {
                "item": item.number,
                "what": ITEMS[item.number],
                "state": item.state,
                "text": item.text,
            }
            for item in items.values()
        ],
        "checks": [
            {
                "check": o.name,
                "items": list(o.items),
                "state": o.state,
                "text": o.text,
                "seconds": o.seconds,
            }
            for o in outcomes
        ],
    }


def accept(
    name: str,
    make: Callable[[], Rig],
    checks: Sequence[Check] = CHECKS,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Run the checks on one switch, from making its rig to its end. Return a document with its identity, its
    items and its checks.

    Raises CheckFailed if the switch ends before it has said who it is, and the exceptions of its driver.
    """
    started = time.monotonic()
    with closing(make()) as rig:
        try:
            who = identity(rig)
        except OpticalError:
            if ended := rig.ended():
                raise CheckFailed(f"{name}: {ended}") from None
            raise
        outcomes = run_checks(rig, checks, progress)
        ports = {"ingress": len(rig.inputs), "egress": len(rig.outputs)}
    took_s = round(time.monotonic() - started, 1)
    return {
        "name": name,
        "identity": who,
        "ports": ports,
        "seconds": took_s,
        **as_document(outcomes),
    }


def identity(rig: Rig) -> dict[str, str]:
    """Return the identity that the switch reports. Raises the exceptions of its driver."""
    driver = rig.driver(direct=True)
    try:
        return asdict(driver.open(timeout_s=30))
    finally:
        driver.close()
