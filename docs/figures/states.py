"""Draws the states of a job into docs/rest.md: ``python -m docs.figures.states``."""

from __future__ import annotations

import re
from pathlib import Path

from ringlight.controller.jobs.job import FROM_ALL, TRANSITIONS

PAGE = Path(__file__).resolve().parents[1] / "rest.md"
_BLOCK = re.compile(r"(<!-- states -->\n).*?(<!-- end of states -->)", re.DOTALL)


def diagram() -> str:
    """The states of a job and what leads from one to another, as Mermaid, which code hosts draw."""
    ways = [(a, b, why) for a, after in TRANSITIONS.items() for b, why in after.items()]
    inside = [f"        {a} --> {b}: {why}" for a, b, why in ways if b in TRANSITIONS]
    ends = [f"    {a} --> {b}: {why}" for a, b, why in ways if b not in TRANSITIONS]
    ends += [f"    going --> {b}: {why}" for b, why in FROM_ALL.items()]
    first = next(iter(TRANSITIONS))
    going = ['    state "not ended" as going {', f"        [*] --> {first}: submitted", *inside, "    }"]
    return "\n".join(["```mermaid", "stateDiagram-v2", *going, *ends, "```", ""])


def written(text: str) -> str:
    """The page's text with its diagram anew."""
    return _BLOCK.sub(lambda found: found[1] + diagram() + found[2], text)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
