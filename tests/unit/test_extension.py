"""Extensions: how they are found and in which order, and that the core does without them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields
from importlib.metadata import EntryPoint

import pytest

from ringlight.containers.image import ROOT
from ringlight.fabric.extension import (
    CORE,
    Extension,
    ExtensionError,
    InstalledExtension,
    _of_entry_point,
    extensions,
    in_order,
    loaders,
    loaders_of,
)


def installed(name: str, *requires: str, package: str = "p") -> InstalledExtension:
    return InstalledExtension(Extension(name, requires), package)


def test_every_folder_is_an_extension_of_its_name() -> None:
    folders = {path.parent.name for path in (ROOT / "extensions").glob("*/__init__.py")}
    assert folders
    assert folders <= {item.extension.name for item in extensions()}


def test_everything_that_ours_name_is_there() -> None:
    for item in extensions():
        if item.extension.commands:
            assert callable(item.load(item.extension.commands))
    for field in fields(Extension):
        if isinstance(getattr(CORE.extension, field.name), Mapping):
            for load in loaders(field.name).values():
                load()


def test_what_two_have_by_one_name_is_named() -> None:
    one = InstalledExtension(Extension("torus", drivers={"scpi": "kinds:SCPI"}), "torus")
    with pytest.raises(ExtensionError, match="extension torus: drivers: there is a scpi already"):
        loaders_of("drivers", (CORE, one))
    assert loaders_of("drivers", (one,)).keys() == {"scpi"}


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
