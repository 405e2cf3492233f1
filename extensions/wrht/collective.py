"""The collective WRHT, by the name that a scenario uses."""

from __future__ import annotations

from dataclasses import replace

from ringlight.extensions.wrht.schedule import Top, plan, wrht
from ringlight.fabric.algorithms import Algorithm, Collective, parse_collective
from ringlight.fabric.steps import Steps

NAME = "wrht"


def _top(collective: Collective) -> Top:
    return "exchange" if collective.exchange else "collect"


def _steps(collective: Collective, ranks: int) -> Steps:
    """Return the steps of WRHT; without a number of wavelengths it is for one."""
    return wrht(
        ranks,
        collective.wavelengths or 1,
        collective.group,
        top=_top(collective),
        reach=collective.reach,
    )


WRHT = Algorithm(
    _steps,
    frozenset({"striped", "wavelengths", "group", "reach", "exchange"}),
    coloured=True,
)


def fitted(name: str, ranks: int, wavelengths: int, reach: int | None) -> str:
    """Return a collective's name, completed with what the ring of wavelengths decides.

    The ring decides only what the name leaves open. WRHT uses all ``wavelengths``. It uses relays if light
    gets only ``reach`` segments (None: any number) and that is too few. A hierarchical ring has the groups
    that the wavelengths carry, and striped collectives fill them.
    """
    collective = parse_collective(name)
    if collective.wavelengths is None and (
        collective.striped or "group" in collective.kind.options
    ):
        collective = replace(collective, wavelengths=wavelengths)
    if collective.algorithm == NAME and collective.reach is None and reach:
        longest = plan(
            ranks,
            collective.wavelengths or 1,
            collective.group,
            _top(collective),
        ).longest_segments
        collective = replace(collective, reach=reach if reach < longest else None)
    return str(collective)
