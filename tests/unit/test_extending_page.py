"""``docs/extending.md`` and the package that it grows: the page shows its code, and its torus is one."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from docs.extension.ringlight_torus.fabric_key import TORUS
from docs.extension.ringlight_torus.torus import Torus
from ringlight.fabric.keys import Assembly
from ringlight.fabric.parts import Port

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "docs/extension"
PAGE = (ROOT / "docs/extending.md").read_text()
BLOCK = re.compile(r"(?:<!-- file: (\S+) -->\n)?```(\w+)\n(.*?)```", re.DOTALL)


def not_in(package: Path, page: str) -> list[str]:
    """The blocks of a page that do not stand in the file that they name, or name none."""
    found = []
    for name, _, block in BLOCK.findall(page):
        text = (package / name).read_text() if name else ""
        if not any(textwrap.indent(block, " " * by) in text for by in (0, 2, 4, 8, 12)):
            found.append(block)
    return found


def test_the_page_shows_the_package_s_code() -> None:
    assert len(BLOCK.findall(PAGE)) >= 8
    assert not_in(PACKAGE, PAGE) == []


def test_code_that_is_not_the_package_s_is_found() -> None:
    wrong = "<!-- file: torus.yaml -->\n```yaml\nname: cube\n```\n"
    assert not_in(PACKAGE, f"{wrong}\n```python\npass\n```\n") == [
        "name: cube\n",
        "pass\n",
    ]


def test_page_and_package_stay_short() -> None:
    files = [
        path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".toml", ".yaml")
    ]
    assert sum(len(path.read_text().splitlines()) for path in files) <= 350
    assert len(PAGE.splitlines()) <= 250


@pytest.mark.parametrize("cube", [(1,), (2,), (3, 1), (1, 2), (2, 2, 2), (2, 3, 4)])
def test_every_port_of_a_side_is_plugged_in_and_lit_once(cube: tuple[int, ...]) -> None:
    torus = Torus(cube, 3, ((0, 2, 1),))
    fibres = dict(torus.fibres())
    assert [port.number for port in fibres.values()] == list(
        range(1, 6 * torus.face + 1)
    )
    assert sorted(fibres) == sorted(port for pair in torus.circuits() for port in pair)
    plugged = [*fibres, *(port for pair in torus.cables() for port in pair)]
    longer = [side for side, length in enumerate(cube) if length > 1 or side == 0]
    ports = [2 * side + 2 + way for side in longer for way in (0, 1)]
    routers = range(3 * torus.size)
    assert sorted(plugged) == sorted(
        Port(f"r{n}", number) for n in routers for number in ports
    )


def test_neighbours_differ_by_one_along_one_side() -> None:
    torus = Torus((2, 3, 2), 1, ((0,),))
    for a, b in (*torus.cables(), *torus.circuits()):
        places = [
            (n // 6, n // 2 % 3, n % 2) for n in (int(port.node[1:]) for port in (a, b))
        ]
        apart = [
            (after - before) % length
            for before, after, length in zip(*places, (2, 3, 2), strict=True)
        ]
        assert sorted(apart) == [0, 0, 1]


def test_cubes_that_are_not_there_or_twice_are_refused() -> None:
    spec = TORUS.value.__args__[0]
    good = {"cube": [2], "cubes": 2, "gpu": "t", "rate": "40 Gbit/s"}
    assembly = Assembly({})
    assert TORUS.add is not None
    TORUS.add(spec.model_validate(good), assembly)
    assert assembly.parts["torus"]["ocs"].tori == ((0, 1),)
    for tori in ([[0, 2]], [[0], [0, 1]]):
        with pytest.raises(
            ValueError, match="name each of the cubes 0 to 1 at most once"
        ):
            spec.model_validate(good | {"tori": tori})
