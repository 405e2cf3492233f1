"""What extensions bring to the conformance tests: modules ``tests/extensions/NAME/conformance.py``.

``RIGS``: by driver, rigs that are no part of the product. ``MUTANTS``: parameters as of `test_mutants`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from ringlight.testbed.rigs.rig import Rig


def _modules() -> Iterator[ModuleType]:
    for path in sorted(Path(__file__).parents[1].glob("*/conformance.py")):
        yield importlib.import_module(
            f"tests.extensions.{path.parent.name}.conformance"
        )


def rigs_of_tests() -> dict[str, type[Rig]]:
    return {
        name: rig
        for module in _modules()
        for name, rig in getattr(module, "RIGS", {}).items()
    }


def mutants() -> list[Any]:
    return [
        mutant for module in _modules() for mutant in getattr(module, "MUTANTS", ())
    ]
