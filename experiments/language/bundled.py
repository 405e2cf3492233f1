"""Scenario files that come with Ringlight."""

from __future__ import annotations

import re
from pathlib import Path

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"


def listed() -> dict[str, str]:
    """Return the question that each bundled scenario file asks, by its path below ``scenarios``."""
    rows = re.findall(
        r"^\| `([^`]+\.yaml)` \| (.+) \|$",
        (SCENARIOS / "README.md").read_text(),
        re.MULTILINE,
    )
    return {name: question for name, question in rows if (SCENARIOS / name).exists()}


def bundled(name: str) -> Path:
    """Return the path of a bundled file, by its name with or without folder and ``.yaml``.

    Raises ScenarioError listing the names if there is none, or several.
    """
    known = listed()
    full = name if name.endswith(".yaml") else f"{name}.yaml"
    matches = [
        each for each in known if each == full or each.rpartition("/")[2] == full
    ]
    if len(matches) != 1:
        # Commands import this module to print their help, which must be quick.
        from ringlight.experiments.language.text import ScenarioError

        there = ", ".join(each.removesuffix(".yaml") for each in known)
        raise ScenarioError(f"there is no example {name}; there are {there}")
    return SCENARIOS / matches[0]
