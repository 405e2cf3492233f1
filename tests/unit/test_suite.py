"""The whole suite's steps: the few tests that fail are run once more, and what fails again fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ringlight.experiments.cli import suite
from tests.conftest import sampled
from tests.without import owned_folder, rounds

# Each test of it fails until it has been run so many times.
FLAKY = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range({tests}))
def test_flaky(number):
    count = Path(__file__).with_name(f"count{{number}}")
    seen = int(count.read_text()) if count.exists() else 0
    count.write_text(str(seen + 1))
    assert seen >= {fails}
"""


@pytest.mark.parametrize(
    ("tests", "fails", "code", "again"),
    [
        (1, 0, 0, []),
        (
            2,
            1,
            0,
            [
                "tests/unit/test_it.py::test_flaky[0]",
                "tests/unit/test_it.py::test_flaky[1]",
            ],
        ),
        (1, 2, 1, ["tests/unit/test_it.py::test_flaky[0]"]),
        (suite.MOST_AGAIN + 1, 1, 1, []),
    ],
    ids=["all pass", "pass at the second time", "fail twice", "too many"],
)
def test_what_fails_is_run_once_more(
    tmp_path: Path, tests: int, fails: int, code: int, again: list[str]
) -> None:
    (tmp_path / "tests/unit").mkdir(parents=True)
    (tmp_path / "tests/extensions").mkdir()
    (tmp_path / "tests/unit/test_it.py").write_text(
        FLAKY.format(tests=tests, fails=fails)
    )
    ran: list[tuple[str, ...]] = []
    told: list[str] = []

    def run(*step: str, aside: bool = False) -> int:
        ran.append(step)
        if {"tests/integration", "--collect-only"} & {
            *step
        } or "tests.without" not in step:
            return 0
        what = step[step.index("pytest") :]
        what = what[: what.index("tests/unit") + 1] if "tests/unit" in what else what
        # Without plug-ins that these tests do not use: they cost each pytest two seconds.
        lean = (
            "-p",
            "no:schemathesis",
            "-p",
            "no:hypothesispytest",
            "-p",
            "no:ringlight",
        )
        done = subprocess.run(
            [sys.executable, "-m", *what, *lean],
            cwd=tmp_path,
            check=False,
            capture_output=True,
            timeout=60,
        )
        return done.returncode

    assert suite.whole(run, tmp_path / ".pytest_cache", told.append) == code
    # Again without extensions, too.
    repeated = [
        [*step] for step in ran if "tests/unit/test_it.py::test_flaky[0]" in step
    ]
    assert repeated == ([[*suite.OF_CORE, "-q", *again]] if again else [])
    # What passed at the second time is named, and the steps after it are run; after a failure none is.
    assert any("only when repeated" in line for line in told) == (
        bool(again) and not code
    )
    assert any("alone" in step for step in ran) == (not code)


@pytest.mark.parametrize(
    ("fails", "code", "steps"),
    [
        (("ruff", "check"), 2, ["ruff"]),
        # What runs beside it goes on, and is the last.
        (("mypy",), 1, ["mypy", "pytest", "ruff", "ruff"]),
        # An error of pytest itself is none of a test, so nothing is run again.
        (("pytest",), 4, ["mypy", "pytest", "ruff", "ruff"]),
        (
            ("tests.without",),
            4,
            ["mypy", "pytest", "pytest", "ruff", "ruff", "tests.without"],
        ),
    ],
)
def test_what_fails_but_a_test_ends_it(
    tmp_path: Path, fails: tuple[str, ...], code: int, steps: list[str]
) -> None:
    ran: list[str] = []

    def run(*step: str, aside: bool = False) -> int:
        ran.append(step[0])
        return code if step[: len(fails)] == fails else 0

    assert suite.whole(run, tmp_path, lambda _: None) > 0
    assert sorted(ran) == steps


def test_those_that_fail_side_by_side_are_run_again_together(tmp_path: Path) -> None:
    """Each says at its end which have failed; none is lost."""
    again: list[tuple[str, ...]] = []

    def run(*step: str, aside: bool = False) -> int:
        if "-o" not in step:
            again.append(step)
            return 0
        if not {"tests/unit", "labs"} & {*step}:
            return 0
        # The longest is shown as it goes.
        assert aside == ("tests/unit" not in step)
        folder = Path(step[step.index("-o") + 1].removeprefix("cache_dir="), "v/cache")
        folder.mkdir(parents=True)
        (folder / "lastfailed").write_text(
            json.dumps(
                {f"tests/{'unit' if 'tests/unit' in step else step[-1]}.py::test": True}
            )
        )
        return 1

    told: list[str] = []
    assert suite.whole(run, tmp_path, told.append) == 0
    # Each where it failed, without extensions or with them.
    assert [step for step in again if "pytest" in step] == [
        (*suite.OF_CORE, "-q", "tests/unit.py::test"),
        ("pytest", "-q", "tests/labs.py::test"),
    ]
    assert told
    assert all("tests/labs.py::test" in line for line in told)


def test_tests_of_whatever_is_in_the_tree_are_there() -> None:
    assert [
        name
        for name in suite.OF_ALL
        if not Path(__file__).with_name(f"test_{name}.py").exists()
    ] == []


def test_a_copy_is_removed_at_its_end_or_once_its_process_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = "import time\nfrom tests.without import owned_folder\nwith owned_folder() as folder:\n"
    code += "    (folder / 'page').touch()\n    print(folder, flush=True)\n    time.sleep(60)"
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment
    ) as other:
        assert other.stdout is not None
        left = Path(other.stdout.readline().strip())
        with owned_folder() as own:
            # One whose process lives stays.
            assert {*tmp_path.iterdir()} == {left, own}
        assert [*tmp_path.iterdir()] == [left]
        other.kill()
    with owned_folder() as own:
        assert [*tmp_path.iterdir()] == [own]


def test_each_extension_is_missing_while_each_that_does_without_it_is_tested() -> None:
    names = [f"n{number}" for number in range(12)]
    requires = {"n1": "n0", "n2": "n1", "n5": "n3"}

    def dependents(gone: Iterable[str]) -> set[str]:
        every = set(gone)
        while (
            more := {name for name, needed in requires.items() if needed in every}
            - every
        ):
            every |= more
        return every

    chosen = rounds(names, dependents)
    assert len(chosen) < len(names)
    for missing in names:
        for tested in set(names) - dependents([missing]):
            assert any(missing in gone and tested not in gone for gone in chosen)
    assert all(dependents(gone) == gone for gone in chosen)


def test_what_it_took_is_told_even_of_one_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    minute = 60 * os.sysconf("SC_CLK_TCK")
    ticks = iter([(10 * minute, 4 * minute, 0), (14 * minute, 5 * minute, 0)])
    monkeypatch.setattr("ringlight.testbed.load.machine_ticks", lambda: next(ticks))
    told: list[str] = []
    with pytest.raises(KeyboardInterrupt), suite.telling_its_cost(told.append):
        raise KeyboardInterrupt
    (line,) = told
    assert line == "took 0:00 min and 3.0 processor-minutes"


def test_of_sampled_cases_every_nth_runs() -> None:
    def item(function: str, n: int | None) -> Any:
        mark = SimpleNamespace(args=(n,)) if n else None
        return SimpleNamespace(obj=function, get_closest_marker=lambda _: mark)

    one, other, whole = (
        [item(name, n) for _ in range(5)]
        for name, n in (("a", 2), ("b", 3), ("c", None))
    )
    kept, left_out = sampled([*one, *other, *whole])
    assert kept == [*one[::2], *other[::3], *whole]
    assert left_out == [one[1], one[3], other[1], other[2], other[4]]


FUZZ = """
import time
from pathlib import Path
import pytest
from hypothesis import given, strategies as st

@pytest.mark.fuzz
@given(number=st.integers())
def test_of_a_parser(number):
    with Path(__file__).with_name("calls").open("a") as file:
        file.write("x")
    time.sleep(0.001)
    assert number != {wrong}

def test_other():
    assert False
"""


@pytest.mark.parametrize(("wrong", "code"), [("None", 0), ("number", 1)])
def test_the_long_form_runs_fuzz_tests_alone_and_over_again(
    tmp_path: Path, wrong: str, code: int
) -> None:
    (tmp_path / "conftest.py").write_text(
        (Path(__file__).parents[1] / "conftest.py").read_text()
    )
    (tmp_path / "test_it.py").write_text(FUZZ.format(wrong=wrong))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:schemathesis",
        "-p",
        "no:cacheprovider",
    ]
    command += ["-p", "no:ringlight", "--fuzz", "0.03"]
    done = subprocess.run(
        command, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code, done.stdout
    assert "test_other" not in done.stdout
    # Once is 25 examples.
    assert code or len((tmp_path / "calls").read_text()) > 50
