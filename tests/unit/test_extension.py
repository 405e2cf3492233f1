"""Extensions: how they are found and in which order, and that the core does without them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from ringlight.containers.image import ROOT
from ringlight.experiments.analysis import metrics as metrics_of_core
from ringlight.experiments.report import sections as sections_of_core
from ringlight.fabric.extension import (
    Extension,
    ExtensionError,
    InstalledExtension,
    _of_entry_point,
    extensions,
    in_order,
)

ADDED = """
from ringlight.experiments.analysis.metrics import metric
from ringlight.experiments.report.sections import section


@metric("count", of="job")
def ranks(context, job):
    "Ranks of the job."
    return len(job.gpus)


@section("{after}", "Ranks", needs=("ranks",))
def ranks_of_jobs(view, draw):
    "Return HTML."
    return "ranks"


@section("ranks_of_jobs", "More")
def more(view, draw):
    "Return HTML."
    return "more"
"""


def installed(name: str, *requires: str, package: str = "p") -> InstalledExtension:
    return InstalledExtension(Extension(name, requires), package)


def test_every_folder_is_an_extension_of_its_name() -> None:
    folders = {path.parent.name for path in (ROOT / "extensions").glob("*/__init__.py")}
    assert folders
    assert folders <= {item.extension.name for item in extensions()}


def test_everything_that_ours_name_is_there() -> None:
    for item in extensions():
        extension = item.extension
        for value in (extension.commands, *extension.sections):
            assert not value or callable(item.load(value))
        for value in extension.metrics:
            assert item.load(value).__name__ == f"{item.package}.{value}"


def test_an_extension_comes_after_those_that_it_requires() -> None:
    order = in_order([installed("c", "b"), installed("a"), installed("b", "a")])
    assert [item.extension.name for item in order] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("items", "names"),
    [
        ([installed("a", package="one"), installed("a", package="two")], ("a", "one", "two")),
        ([installed("a", "b")], ("a", "b")),
        ([installed("a", "b"), installed("b", "a")], ("a", "b")),
    ],
)
def test_extensions_that_do_not_fit_are_named(
    items: list[InstalledExtension], names: tuple[str, ...]
) -> None:
    with pytest.raises(ExtensionError) as caught:
        in_order(items)
    assert all(name in str(caught.value) for name in names)


@pytest.mark.parametrize("value", ["no.such.module:EXTENSION", "json:EXTENSION", "json:dumps", "tests:house"])
def test_an_entry_point_that_gives_no_extension_is_named(value: str) -> None:
    with pytest.raises(ExtensionError, match="extension torus: "):
        _of_entry_point(EntryPoint("torus", value, "ringlight.extensions"))


def test_a_value_that_names_nothing_is_named() -> None:
    item = InstalledExtension(Extension("torus"), "json")
    assert item.load("decoder:JSONDecoder").__name__ == "JSONDecoder"
    for value in ("decoder:none", "none:none"):
        with pytest.raises(ExtensionError, match=f"extension torus: {value}"):
            item.load(value)


@pytest.fixture
def torus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An extension with a metric and two sections, in a package that is found like ours; its module."""
    package = tmp_path / "acme_torus"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    adds = Extension("torus", metrics=("added",), sections=("added:ranks_of_jobs", "added:more"))
    found = (*extensions(), InstalledExtension(adds, "acme_torus"))
    # What is imported now stays known after the test.
    metrics_of_core.metrics()
    sections_of_core.sections()
    readers = (metrics_of_core, sections_of_core)
    for reader in readers:
        monkeypatch.setattr(reader, "extensions", lambda: found)
        monkeypatch.setattr(reader, "_FOUND", reader._FOUND.copy())  # type: ignore[attr-defined]
    cached = (metrics_of_core._all_read, sections_of_core.sections, sections_of_core.names)
    for function in cached:
        function.cache_clear()
    yield package / "added.py"
    for function in cached:
        function.cache_clear()
    for name in ("acme_torus", "acme_torus.added"):
        sys.modules.pop(name, None)


def test_metrics_and_sections_of_an_extension_are_among_the_core_s(torus: Path) -> None:
    torus.write_text(ADDED.replace("{after}", "jobs"))
    assert metrics_of_core.metrics()["ranks"].help == "Ranks of the job"
    assert "| `ranks` | count | job | Ranks of the job |" in metrics_of_core.table("acme_torus")
    assert "`ranks`" not in metrics_of_core.table()
    there = [section.name for section in sections_of_core.sections()]
    place = there.index("jobs")
    assert there[place : place + 3] == ["jobs", "ranks_of_jobs", "more"]
    assert sections_of_core.names() == tuple(sorted(there))


def test_a_section_that_follows_none_is_named(torus: Path) -> None:
    torus.write_text(ADDED.replace("{after}", "none"))
    with pytest.raises(ExtensionError, match="section ranks_of_jobs follows none"):
        sections_of_core.sections()


def test_an_extension_that_cannot_be_used_is_one_line() -> None:
    code = """
from ringlight.experiments.cli import app
from ringlight.fabric.extension import Extension, InstalledExtension
app.extensions = lambda: [InstalledExtension(Extension("torus", commands="none:register"), "json")]
app.main()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("ringlight: extension torus: none:register")
    assert done.stderr.count("\n") == 1


def test_the_command_works_without_extensions() -> None:
    code = """
import sys
sys.modules["ringlight.extensions"] = None
from ringlight.experiments.cli.app import main
sys.argv = ["ringlight", *sys.argv[1:]]
main()
"""
    for words, shown in ((["--help"], "simulate"), (["check", "scenarios/disaggregation.yaml"], "regrouped")):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert shown in done.stdout
        assert "crosscheck " not in done.stdout
