"""What tests have to know of bundled scenarios, by the scenario's name.

What an extension's scenarios need is in ``NOTES`` of ``scenarios.py`` among the tests of the extension.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ringlight.containers.image import ROOT
from ringlight.experiments.record.runs import Run


@dataclass(frozen=True)
class Notes:
    """How tests shorten a scenario, and what they look for.

    ``study``: it has a thousand GPUs, so only the long form computes it. ``untried``: no mistakes are made in
    it, nor in a study; ``slow``: reading it takes long.
    Overrides that make it short: ``fewer`` of its sweep; ``less`` in the matrix, ``*`` for each fabric;
    ``small`` on the testbed. ``alike``: arms that the matrix leaves out, as they are simulated like others.
    ``arms``: those that show on the testbed what no other test does; ``only_long``: others do show all of it.
    ``shown``: asserts what its runs are there to show; ``reported``: words of its report on the testbed.
    """

    study: bool = False
    untried: bool = False
    slow: bool = False
    fewer: Sequence[str] = ()
    less: Sequence[str] = ()
    alike: Sequence[str] = ()
    small: Mapping[str, Any] = field(default_factory=dict)
    arms: Sequence[str] = ()
    only_long: bool = False
    shown: Callable[[Sequence[Run]], None] = lambda _: None
    reported: str = ""


@cache
def _all() -> Mapping[str, Notes]:
    paths = sorted(ROOT.glob("tests/extensions/*/scenarios.py"))
    modules = [
        importlib.import_module(f"tests.extensions.{path.parent.name}.scenarios")
        for path in paths
    ]
    return {name: notes for module in modules for name, notes in module.NOTES.items()}


def notes_of(name: str) -> Notes:
    """What an extension says of a scenario."""
    return _all().get(name, Notes())
