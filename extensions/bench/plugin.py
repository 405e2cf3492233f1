"""The pytest plug-in: the fixture ``ringlight_lab``, markers, and why a machine cannot run such tests.

Every pytest on a machine that has Ringlight installed loads this module, whatever it tests. So nothing of
ours and nothing heavy is imported here; the fixture imports what it needs when a test asks for it.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ringlight.experiments.scripting.scripted_lab import Lab
    from ringlight.extensions.bench.fixture_lab import Labs, Wanted

#: Keywords of the marker ``ringlight``.
_KEYWORDS = ("arm", "lab", "runtime", "slowed")
_RUNTIMES, _LABS = ("docker", "namespace"), ("test", "session")
_MARKERS = (
    "ringlight(scenario, *, arm, lab, runtime, slowed): what ringlight_lab is built from, a scenario file or "
    "a mapping; lab='session' keeps it for the next test of the same",
    "ringlight_root: needs root; skipped without. Every test that uses ringlight_lab has it",
)
_NO_ROOT = "needs root to build networks: run pytest as root"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ringlight", "labs of Ringlight")
    group.addoption(
        "--ringlight-required",
        action="store_true",
        help="Fail instead of skipping if this machine cannot build a lab.",
    )
    parser.addini(
        "ringlight_scenario", "Scenario file of tests that name none.", default=""
    )
    parser.addini(
        "ringlight_runtime",
        "docker or namespace, where a test names none.",
        default="docker",
    )


def pytest_configure(config: pytest.Config) -> None:
    for line in _MARKERS:
        config.addinivalue_line("markers", line)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _uses_lab(item):
            # So that `-m "not ringlight_root"` finds them all.
            item.add_marker("ringlight_root")


def pytest_runtest_setup(item: pytest.Item) -> None:
    # The fixture first says what is wrong with a scenario, as that is wrong everywhere.
    if (
        item.get_closest_marker("ringlight_root")
        and not _uses_lab(item)
        and os.geteuid() != 0
    ):
        _cannot(item.config, _NO_ROOT)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the lab's measurements and slow links to the report of a failure. Return the report."""
    report = yield
    lab: Any = getattr(item, "funcargs", {}).get("ringlight_lab")
    if report.when == "call" and report.failed and lab is not None:
        from ringlight.extensions.bench.fixture_lab import summary

        report.sections.append((f"ringlight lab {lab.id}", summary(lab)))
    return report


def _uses_lab(item: pytest.Item) -> bool:
    return "ringlight_lab" in getattr(item, "fixturenames", ())


def _cannot(config: pytest.Config, reason: str) -> None:
    if config.getoption("ringlight_required"):
        pytest.fail(f"ringlight: {reason}", pytrace=False)
    pytest.skip(f"ringlight: {reason}")


@contextmanager
def _in_one_line() -> Iterator[None]:
    """Fail the test with one line if one of the foreseen errors is raised in the block."""
    from ringlight.extensions.bench.fixture_lab import FORESEEN

    try:
        yield
    except FORESEEN as error:
        line = str(error)
    else:
        return
    # Not while the error is handled: pytest would show both.
    pytest.fail(f"ringlight: {line}", pytrace=False)


@pytest.fixture
def ringlight_scenario(
    request: pytest.FixtureRequest,
) -> str | Path | Mapping[str, Any]:
    """Return the scenario for ``ringlight_lab``: from the marker ``ringlight``, else from the configuration.

    A test's parameter or a project's fixture of this name replaces it.
    """
    marker = request.node.get_closest_marker("ringlight")
    if marker is not None and marker.args:
        scenario: str | Path | Mapping[str, Any] = marker.args[0]
        return scenario
    if named := request.config.getini("ringlight_scenario"):
        return request.config.rootpath / str(named)
    return pytest.fail(
        "ringlight: name a scenario: @pytest.mark.ringlight('scenario.yaml')",
        pytrace=False,
    )


@pytest.fixture(scope="session")
def _ringlight_labs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Labs]:
    """Labs of this session, at most one at a time."""
    from ringlight.extensions.bench.fixture_lab import Labs

    labs = Labs(lambda: tmp_path_factory.mktemp("ringlight"))
    try:
        yield labs
    finally:
        labs.close()


@pytest.fixture
def ringlight_lab(
    request: pytest.FixtureRequest, ringlight_scenario: Any, _ringlight_labs: Labs
) -> Iterator[Lab]:
    """Yield a lab of the scenario, up and its links measured; removed whatever happens."""
    from ringlight.experiments.scripting.scripted_lab import why_not
    from ringlight.extensions.bench.fixture_lab import request_of

    kept, words = _marked(request)
    with _in_one_line():
        lab_request: Wanted = request_of(
            ringlight_scenario, request.path, request.config.rootpath, **words
        )
    if (reason := why_not(lab_request.runtime)) is not None:
        _cannot(request.config, reason)
    with _in_one_line():
        lab = _ringlight_labs.take(lab_request)
    try:
        yield lab
    finally:
        _ringlight_labs.give_back(keep=kept)


def _marked(request: pytest.FixtureRequest) -> tuple[bool, dict[str, Any]]:
    """Return whether the next test may have the same lab, and keywords for ``request_of``."""
    marker = request.node.get_closest_marker("ringlight")
    keywords = dict(marker.kwargs) if marker is not None else {}
    for key in keywords:
        if key not in _KEYWORDS:
            pytest.fail(
                f"ringlight: the marker has no {key}; it has {', '.join(_KEYWORDS)}",
                pytrace=False,
            )
    lab = keywords.pop("lab", "test")
    runtime = keywords.setdefault("runtime", request.config.getini("ringlight_runtime"))
    for key, value, known in (("lab", lab, _LABS), ("runtime", runtime, _RUNTIMES)):
        if value not in known:
            pytest.fail(
                f"ringlight: {key}: {value!r} is not one of {', '.join(known)}",
                pytrace=False,
            )
    return lab == "session", keywords
