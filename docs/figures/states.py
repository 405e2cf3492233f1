"""Draws the states of jobs and of an O-NIC's flows into their pages: ``python -m docs.figures.states``."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from ringlight.controller.jobs.job import FROM_ALL, TRANSITIONS
from ringlight.controller.onic.transmitter import LIFE

DOCS = Path(__file__).resolve().parents[1]
PAGES = (DOCS / "rest.md", DOCS / "onic-protocol.md")
_BLOCK = re.compile(r"(<!-- states of (\w+) -->\n).*?(<!-- end of states -->)", re.DOTALL)


def jobs() -> list[str]:
    """The states of a job and what leads from one to another, as lines of a Mermaid diagram."""
    ways = [(a, b, why) for a, after in TRANSITIONS.items() for b, why in after.items()]
    inside = [f"        {a} --> {b}: {why}" for a, b, why in ways if b in TRANSITIONS]
    ends = [f"    {a} --> {b}: {why}" for a, b, why in ways if b not in TRANSITIONS]
    ends += [f"    going --> {b}: {why}" for b, why in FROM_ALL.items()]
    first = next(iter(TRANSITIONS))
    return [
        '    state "not ended" as going {',
        f"        [*] --> {first}: submitted",
        *inside,
        "    }",
        *ends,
    ]


def flows() -> list[str]:
    """The phases of a flow at its source, likewise."""
    ways = [f"    {a} --> {b}: {why}" for a, after in LIFE.items() for b, why in after.items()]
    return [f"    [*] --> {next(iter(LIFE))}: a worker opens it", *ways]


DRAWN: dict[str, Callable[[], list[str]]] = {"jobs": jobs, "flows": flows}


def written(text: str) -> str:
    """A page's text with its diagrams anew."""

    def anew(found: re.Match[str]) -> str:
        return "\n".join([f"{found[1]}```mermaid", "stateDiagram-v2", *DRAWN[found[2]](), "```", found[3]])

    return _BLOCK.sub(anew, text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(written(page.read_text()))
