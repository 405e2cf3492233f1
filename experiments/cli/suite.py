"""The steps of the whole test suite, and what becomes of the few tests that fail on a busy machine."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

#: So many tests that fail next to other tests are run once more, alone. More of them are no accident.
MOST_AGAIN = 3
#: pytest's exit code when tests have failed; any other failure is one of pytest itself.
_TESTS_FAILED = 1

#: Runs ``python -m`` with these words, and gives its exit code. ``aside``: what it says is shown when it has
#: ended, and of what ended well only the last line.
Run = Callable[..., int]

_PYTEST = ("pytest",)
#: In a copy of the tree without any extension; the plug-in of this tree is an extension's.
OF_CORE = ("tests.without", "--", "pytest", "-p", "no:ringlight")
#: Unit tests of whatever is in the tree, which are run with all extensions, too, in files of these names.
OF_ALL = (
    *(
        "architecture",
        "benchmarks",
        "compare",
        "docs_figures",
        "extension",
        "fabric_schema",
        "golden",
        "help_examples",
    ),
    *(
        "language",
        "language_mistakes",
        "matrix",
        "optical_faults",
        "optical_registry",
        "optical_soak",
    ),
    *("pages", "paper_pages", "prediction", "site", "testbed_switches"),
)


class _Step(NamedTuple):
    """The ``command`` of a step, of pytest or another, and the words after it."""

    command: tuple[str, ...]
    words: tuple[str, ...] = ()


def whole(run: Run, cache: Path, say: Callable[[str], None]) -> int:
    """Run all stages. Return the exit code of the first stage that fails, or 0. ``cache``: folder for
    pytest's cache.

    A test that waits for a process or a packet can fail because the machine was held up, and the suite keeps
    the machine busy. Therefore the few tests that fail are run again with nothing else running: a test that
    fails then, fails. Tests that pass only then are named at the end, because the test or the product is
    fragile.
    """
    for check in (("check", "."), ("format", "--check", ".")):
        if code := run("ruff", *check):
            return code
    # Each file's tests in one process, in the file's order: what a test meets is as without xdist.
    in_order = ("--dist", "loadfile", "--no-loadscope-reorder")
    # An extension's tests that build labs or switches are in a folder of their own beside its unit tests.
    of_all = (f"tests/unit/test_{name}.py" for name in OF_ALL)
    with_extensions = (*of_all, "tests/extensions", "--ignore-glob=*/integration")
    # One process more than there are processors, as some tests wait.
    many = ("-n", str((os.cpu_count() or 1) + 1), *in_order)
    of_extensions = sorted(
        str(folder) for folder in Path("tests/extensions").glob("*/integration")
    )
    other_tests = ("tests/integration", "tests/conformance", *of_extensions)
    # What runs at the same time; the first of them is shown as it goes.
    stages: tuple[tuple[_Step, ...], ...] = (
        # Collecting compiles what all later processes import; at once, each of them would compile it anew.
        (_Step(("mypy",)), _Step(_PYTEST, ("--collect-only",))),
        # The core must do without extensions, so there its own tests are run. Only `labs` builds labs.
        (
            _Step(OF_CORE, ("tests/unit", *many)),
            _Step(_PYTEST, (*other_tests, "-m", "labs")),
        ),
        (
            _Step(_PYTEST, (*with_extensions, *many)),
            _Step(_PYTEST, (*other_tests, "-m", "drivers")),
        ),
        # They wait, too: four side by side, each with labs of its own. Six keep two processors so busy that
        # what waits for another process does so for half a minute.
        (
            _Step(
                _PYTEST,
                (
                    *other_tests,
                    "-m",
                    "not alone and not labs and not drivers",
                    "-n",
                    "4",
                    *in_order,
                ),
            ),
        ),
        (_Step(_PYTEST, (*other_tests, "-m", "alone")),),
    )
    second: list[str] = []
    for stage in stages:
        with ThreadPoolExecutor(len(stage)) as pool:
            codes = list(pool.map(partial(_step, run, cache), range(len(stage)), stage))
        failed: dict[tuple[str, ...], list[str]] = {}
        for step, (code, tests) in zip(stage, codes, strict=True):
            if code == _TESTS_FAILED:
                failed.setdefault(step.command, []).extend(tests)
        names = [test for tests in failed.values() for test in tests]
        code = max(code for code, _ in codes)
        if code == _TESTS_FAILED and 0 < len(names) <= MOST_AGAIN:
            say(f"repeated alone: {', '.join(names)}")
            code = max(
                run(*command, "-q", *tests)
                for command, tests in failed.items()
                if tests
            )
            second += names
        if code:
            return code
    if second:
        say(f"passed only when repeated: {', '.join(second)}")
    return 0


@contextmanager
def telling_its_cost(say: Callable[[str], None]) -> Iterator[None]:
    """Report the block's time and the processor-minutes of the whole machine, even if the block fails."""
    from ringlight.testbed.load import machine_ticks

    began, (all_before, idle_before, _) = time.monotonic(), machine_ticks()
    try:
        yield
    finally:
        minutes, seconds = divmod(round(time.monotonic() - began), 60)
        all_after, idle_after, _ = machine_ticks()
        ticks = (all_after - all_before) - (idle_after - idle_before)
        processor_s = ticks / os.sysconf("SC_CLK_TCK")
        say(
            f"took {minutes}:{seconds:02d} min and {processor_s / 60:.1f} processor-minutes"
        )


def _step(run: Run, cache: Path, place: int, step: _Step) -> tuple[int, Sequence[str]]:
    """Its exit code, and the tests that failed; ``place``: in its stage, which no two pytests remember in one
    folder."""
    folder, aside = cache / str(place), place > 0
    if "pytest" not in step.command:
        # Another code than that of failed tests, as no test can be run again for it.
        return 2 if run(*step.command, *step.words, aside=aside) else 0, []
    remembered = folder / "v/cache/lastfailed"
    remembered.unlink(missing_ok=True)
    code = run(
        *step.command, "-q", "-o", f"cache_dir={folder}", *step.words, aside=aside
    )
    return code, _failed(remembered)


def _failed(remembered: Path) -> Sequence[str]:
    """Ids of the tests that failed; nothing where pytest has not said."""
    try:
        failures = json.loads(remembered.read_text())
    except (OSError, ValueError):
        return []
    return sorted(failures)
