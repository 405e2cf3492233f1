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

#: So many tests that fail next to other tests are run once more, alone. More of them are no accident.
MOST_AGAIN = 3
#: pytest's exit code when tests have failed; any other failure is one of pytest itself.
_TESTS_FAILED = 1

#: Runs ``python -m`` with these words, and gives its exit code. ``aside``: what it says is shown when it has
#: ended, and of what ended well only the last line.
Run = Callable[..., int]


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
    unit_tests = ("tests/unit", "tests/extensions", "--ignore-glob=*/integration")
    of_extensions = sorted(str(folder) for folder in Path("tests/extensions").glob("*/integration"))
    other_tests = ("tests/integration", "tests/conformance", *of_extensions)
    # What runs at the same time; the first of them is shown as it goes.
    stages: tuple[tuple[tuple[str, ...], ...], ...] = (
        # Collecting compiles what all later processes import; at once, each of them would compile it anew.
        (("mypy",), ("pytest", "--collect-only")),
        (
            # One process more than there are processors, as some tests wait. Only `labs` builds labs.
            ("pytest", *unit_tests, "-n", str((os.cpu_count() or 1) + 1), *in_order),
            ("pytest", *other_tests, "-m", "labs"),
            ("pytest", *other_tests, "-m", "drivers"),
        ),
        # They wait, too: four side by side, each with labs of its own. Six keep two processors so busy that
        # what waits for another process does so for half a minute.
        (("pytest", *other_tests, "-m", "not alone and not labs and not drivers", "-n", "4", *in_order),),
        (("pytest", *other_tests, "-m", "alone"),),
    )
    second: list[str] = []
    for stage in stages:
        with ThreadPoolExecutor(len(stage)) as pool:
            codes = list(pool.map(partial(_step, run, cache), range(len(stage)), stage))
        failed = [test for code, tests in codes if code == _TESTS_FAILED for test in tests]
        code = max(code for code, _ in codes)
        if code == _TESTS_FAILED and 0 < len(failed) <= MOST_AGAIN:
            say(f"once more, with nothing beside: {', '.join(failed)}")
            code = run("pytest", "-q", *failed)
            second += failed
        if code:
            return code
    if second:
        say(f"passed at the second time only: {', '.join(second)}")
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
        say(f"took {minutes}:{seconds:02d} min and {processor_s / 60:.1f} processor-minutes")


def _step(run: Run, cache: Path, place: int, step: tuple[str, ...]) -> tuple[int, Sequence[str]]:
    """Its exit code, and the tests that failed; ``place``: in its stage, which no two pytests remember in one
    folder."""
    folder, aside = cache / str(place), place > 0
    if step[0] != "pytest":
        # Another code than that of failed tests, as no test can be run again for it.
        return 2 if run(*step, aside=aside) else 0, []
    remembered = folder / "v/cache/lastfailed"
    remembered.unlink(missing_ok=True)
    code = run("pytest", "-q", "-o", f"cache_dir={folder}", *step[1:], aside=aside)
    return code, _failed(remembered)


def _failed(remembered: Path) -> Sequence[str]:
    """Ids of the tests that failed; nothing where pytest has not said."""
    try:
        failures = json.loads(remembered.read_text())
    except (OSError, ValueError):
        return []
    return sorted(failures)
