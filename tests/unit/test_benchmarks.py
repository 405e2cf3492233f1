"""The harness of the benchmarks, and commands of theirs on pages."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks import harness
from benchmarks.__main__ import programs

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
]


def parts_of(name: str) -> set[str]:
    """Names of a benchmark's parts, without importing it."""
    tree = ast.parse((ROOT / "benchmarks" / f"{name}.py").read_text())
    (listed,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PARTS"
    )
    assert isinstance(listed, ast.Tuple)
    return {ast.unparse(part) for part in listed.elts}


def test_pages_name_benchmarks_that_there_are() -> None:
    known = programs()
    assert len(known) >= 15
    assert all(known.values()), "each says in its first line what it measures"
    for page in PAGES:
        for name, part in re.findall(
            r"python -m benchmarks (\w+)\s+([a-z-]*)", page.read_text()
        ):
            assert name in known, f"{page}: {name}"
            parts = parts_of(name)
            if len(parts) > 1 and part:
                assert part.replace("-", "_") in parts, f"{page}: {name} {part}"


def fast(times: int = 2) -> dict[str, Any]:
    """A part."""
    return {"times": times}


def slow(size: list[int] = [1], missed: bool = False) -> dict[str, Any]:  # noqa: B006
    """Another one."""
    return {"size": size, "missed": ["too slow"] if missed else []}


def asked(needed: int) -> dict[str, Any]:
    """One that cannot run without an argument."""
    return {"needed": needed}


def found(
    parts: tuple[Callable[..., Any], ...],
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> tuple[int, dict[str, Any]]:
    """Exit code and document of a benchmark of these parts."""
    module = ModuleType("benchmarks.made_up")
    module.PARTS = parts  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "benchmarks.made_up", module)
    monkeypatch.setattr(harness, "machine", lambda: {"processors": 2})
    with pytest.raises(SystemExit) as ended:
        harness.start("made_up", arguments)
    return int(ended.value.code or 0), json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], {"fast": {"times": 2}, "slow": {"size": [1], "missed": []}}),
        (["fast", "--times", "7"], {"fast": {"times": 7}}),
        (
            ["slow", "--size", "3", "--size", "4"],
            {"slow": {"size": [3, 4], "missed": []}},
        ),
        (["asked", "5"], {"asked": {"needed": 5}}),
    ],
)
def test_parts_are_commands_and_parameters_options(
    arguments: list[str],
    expected: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, document = found((fast, slow, asked), arguments, monkeypatch, capsys)
    assert code == 0
    assert datetime.fromisoformat(document["machine"].pop("started")).tzinfo is UTC
    assert document == {
        "benchmark": "made_up",
        "machine": {"processors": 2},
        **expected,
    }


@pytest.mark.parametrize("command", [[], ["fast"]])
def test_a_benchmark_of_one_part_needs_no_command(
    command: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, document = found((fast,), [*command, "--times", "3"], monkeypatch, capsys)
    assert (code, document["times"]) == (0, 3)


def test_what_was_missed_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document = found((fast, slow), ["slow", "--missed"], monkeypatch, capsys)
    assert (code, document["slow"]["missed"]) == (1, ["too slow"])


def test_figures_of_repeated_runs() -> None:
    assert harness.milliseconds([0.003, 0.001, 0.002]) == {
        "count": 3, "min_ms": 1.0, "median_ms": 2.0, "p99_ms": 3.0, "max_ms": 3.0
    }  # fmt: skip
    clock = iter([0.0, 1.0, 5.0, 7.0])
    assert harness.timed(lambda: None, 2, warm=3, clock=lambda: next(clock)) == [
        1.0,
        2.0,
    ]
    assert harness.beside([2.0, 4.0], [1.0, 1.0], (1.0, 2.0))["ratio"] == 3.0


def test_turns_alternate() -> None:
    calls: list[str] = []
    turns = {name: lambda name=name: calls.append(name) for name in "ab"}  # type: ignore[misc]
    assert harness.in_turns(turns, 2) == {"a": [None, None], "b": [None, None]}
    assert calls == ["b", "a", "a", "b"]


def test_a_part_apart_says_what_its_process_used() -> None:
    whole = harness.apart(fast, 9)
    assert whole["times"] == 9
    assert whole["memory_mib"] > 1
    assert whole["whole_process_s"] >= 0


def test_waiting_in_vain_names_what_was_awaited() -> None:
    with pytest.raises(TimeoutError, match=r"the light: not within 0.01 s"):
        harness.until(lambda: False, "the light", 0.01)
