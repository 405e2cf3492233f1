"""Every arm of every bundled scenario is told the same, takes as long and gets the same light as ever."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.examples import LARGE
from tests.matrix import FOLDER, matrix_of, scenarios

#: Figures agree to rounding.
CLOSE = 1e-9
ANEW = "python -m tests.matrix writes it anew"


def differences(found: Any, wanted: Any, where: str) -> Iterator[str]:
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in wanted | found:
            if key not in wanted or key not in found:
                yield f"{where}.{key}: {'new' if key not in wanted else 'gone'}"
            else:
                yield from differences(found[key], wanted[key], f"{where}.{key}")
    elif isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        for number, pair in enumerate(zip(found, wanted, strict=True)):
            yield from differences(*pair, f"{where}[{number}]")
    elif isinstance(found, float) and isinstance(wanted, float):
        if found != pytest.approx(wanted, rel=CLOSE, abs=1e-12, nan_ok=True):
            yield f"{where}: {found}, not {wanted}"
    elif found != wanted:
        yield f"{where}: {found!r}, not {wanted!r}"


def test_every_bundled_scenario_is_in_the_matrix() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == scenarios().keys(), ANEW


@pytest.mark.parametrize("name", scenarios())
def test_the_matrix_is_as_it_was(name: str, long: bool) -> None:
    if (name.startswith("cluster") or name in LARGE) and not long:
        pytest.skip("replays months of a data centre, or has 256 GPUs; --long does")
    wanted = json.loads((FOLDER / f"{name}.json").read_text())
    found = json.loads(json.dumps(matrix_of(scenarios()[name])))
    wrong = list(differences(found, wanted, name))
    assert not wrong, "\n".join([*wrong[:20], f"{len(wrong)} differences; {ANEW}"])
