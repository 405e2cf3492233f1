"""Shared by all tests: what needs root says so, and a killed run's labs are removed by the next one."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings

# On processors that tests keep busy, threads of numpy's would mostly wait for each other. Read when numpy is
# imported, and inherited by all that tests start.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# What this machine carries must not decide what tests find.
os.environ["RINGLIGHT_CALIBRATION"] = (
    f"{tempfile.gettempdir()}/ringlight-tests-{os.getpid()}/calibration.json"
)

#: A project of its own among the data has tests of its own.
collect_ignore = ["data"]
#: Files that take longest are begun first, so that no process has one left when the others have ended.
LONGEST = (
    *(
        "test_own_containers",
        "test_hosts",
        "test_examples",
        "test_openapi",
        "test_random_light",
    ),
    *(
        "test_emulation_backend",
        "test_averaged_jobs",
        "test_other_controllers",
        "test_run",
    ),
    *(
        "test_matrix",
        "test_collectives",
        "test_worker_flows",
        "test_cluster_scenario",
        "test_cli",
    ),
    *("test_cluster_replay", "test_transport", "test_optical_soak", "test_sweeps"),
)
#: Every process that the tests start inherits this: the process id of the test run that it belongs to.
RUN = "RINGLIGHT_TESTS"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fuzz",
        type=float,
        metavar="MINUTES",
        help="run the tests marked fuzz alone, again and again, until so long has passed, shared out evenly",
    )
    parser.addoption(
        "--long",
        action="store_true",
        help="whole sweeps and more random cases, for which the suite has a shorter form",
    )
    parser.addoption(
        "--light-seed",
        type=int,
        metavar="N",
        help="seed of the random test of light; else one is drawn",
    )
    parser.addoption(
        "--light-operations",
        type=int,
        metavar="N",
        help="operations of the random test of light; 300, with --fuzz 2000, unless it is given",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Have the product's modules loaded as they are, from the files that all processes share.

    As Ringlight brings a plugin, pytest would rewrite the assertions of all its modules.
    """
    config.pluginmanager.rewrite_hook._must_rewrite.discard("ringlight")
    # How long an example takes says how busy the machine is.
    settings.register_profile(
        "ours", deadline=None, max_examples=200 if config.getoption("--long") else 25
    )
    settings.load_profile("ours")


@pytest.fixture(scope="session")
def long(request: pytest.FixtureRequest) -> bool:
    """Whether the long form was asked for."""
    return bool(request.config.getoption("--long"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays: looking for garbage in it, now and later, would take long.

    In what tests make there is little, too: with Python's own thresholds looking takes a fifteenth of the
    processors' time of a simulation.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        gc.enable()


def pytest_sessionstart(session: pytest.Session) -> None:
    if os.environ.get("PYTEST_XDIST_WORKER"):
        return  # the process that started this one has done it
    # A shell's background ignores it, and so would all that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.geteuid() == 0:
        remove_what_killed_runs_left()
    os.environ[RUN] = str(os.getpid())
    if session.config.getoption("numprocesses", None):
        from tests.forks import share

        share()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """With --fuzz the test again and again, with other examples each time, for its share of the time."""
    minutes = pyfuncitem.config.getoption("--fuzz")
    if minutes is not None:
        ends = time.monotonic() + 60 * minutes / len(pyfuncitem.session.items)
        arguments = {
            name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames
        }
        while time.monotonic() < ends:
            pyfuncitem.obj(**arguments)
    return (yield)


def remove_what_killed_runs_left() -> None:
    """Their processes, and their labs; and files of labs whose processes have ended since by themselves."""
    left = list(processes_of_killed_runs())
    for pid, _ in left:
        # A test that goes on would make further labs.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if left or any(Path("/run/ringlight").glob("*")):
        # Here, as few runs find anything, and it takes as long as many a test.
        from ringlight.testbed.emulation.clean import clean, clean_stale

        for lab in {lab for _, lab in left if lab}:
            clean(lab)
        clean_stale()


def processes_of_killed_runs() -> Iterator[tuple[int, str | None]]:
    """Processes that belong to a test run which is no more, each with its lab."""
    for pid, environment in environments():
        run = environment.get(RUN)
        if run and not lives(run):
            yield pid, environment.get("RINGLIGHT_LAB")


def environments() -> Iterator[tuple[int, dict[str, str]]]:
    """Every process that may be looked at, and the environment that it was started with."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (
                (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            )
        except OSError:
            continue
        yield int(entry.name), dict(word.partition("=")[::2] for word in words)


def lives(pid: str) -> bool:
    """Whether a process runs. One that nobody takes note of, as in a container without init, has ended."""
    try:
        return (
            Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0]
            not in "ZX"
        )
    except OSError:
        return False


def sampled(
    items: Iterable[pytest.Item],
) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Those that run, and those that only --long runs. One that is asked for by itself runs."""
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    seen: Counter[object] = Counter()
    for item in items:
        mark = item.get_closest_marker("sampled")
        function = getattr(item, "obj", None)
        (left_out if mark and seen[function] % mark.args[0] else kept).append(item)
        seen[function] += 1
    return kept, left_out


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    if config.getoption("--fuzz") is not None:
        others = [item for item in items if not item.get_closest_marker("fuzz")]
        items[:] = [item for item in items if item.get_closest_marker("fuzz")]
        config.hook.pytest_deselected(items=others)
        for item in items:
            item.add_marker(pytest.mark.timeout(0))
    elif not config.getoption("--long"):
        kept, left_out = sampled(items)
        items[:] = kept
        config.hook.pytest_deselected(items=left_out)
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))
    if os.geteuid() == 0:
        return
    for item in items:
        if item.get_closest_marker("root"):
            item.add_marker(
                pytest.mark.skip(reason="needs root: run ./ringlight test as root")
            )
