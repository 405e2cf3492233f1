"""Extensions: how they are found and in which order, and that the core does without them."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import pytest
import typer
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from typer.testing import CliRunner

import ringlight as rl
from ringlight.containers import image
from ringlight.containers.image import ROOT, code_files
from ringlight.controller.rest import app as rest
from ringlight.controller.service import Controller
from ringlight.experiments.analysis import metrics as metrics_of_core
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.cli import app as cli
from ringlight.experiments.cli import experiments as experiments_of_cli
from ringlight.experiments.cli import options
from ringlight.experiments.cli.app import add_commands
from ringlight.experiments.cli.app import app as typer_app
from ringlight.experiments.cli.emulated import emulation
from ringlight.experiments.language.expand import load
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.report import sections as sections_of_core
from ringlight.experiments.runner import command
from ringlight.experiments.runner.executor_kinds import (
    ExecutorKind,
    backend_at,
    executor_kinds,
    lost,
)
from ringlight.experiments.runner.page_kinds import PageKind, page_kinds
from ringlight.experiments.runner.progress import Reporter
from ringlight.fabric.extension import (
    CORE,
    Extension,
    ExtensionError,
    InstalledExtension,
    _of_entry_point,
    _of_folders,
    entries_of,
    extensions,
    in_order,
    loaded,
    loaders,
)
from ringlight.fabric.optical_drivers import parts_of_drivers
from ringlight.fabric.planes.kinds import parts_of_planes
from tests.door import door
from tests.unit.test_cli import MINI
from tests.unit.test_controller_access import call
from tests.unit.test_controller_access import controller as controller

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
    assert folders <= {item.extension.name for item in extensions()}


def test_ours_name_commands_that_there_are_as_those_that_build_labs() -> None:
    add_commands()
    for listed in (ROOT / "extensions").glob("*/lab_commands.txt"):
        for words in listed.read_text().splitlines():
            command: Any = typer.main.get_command(typer_app)
            for word in words.split():
                command = command.commands[word]


def test_everything_that_ours_name_is_there() -> None:
    for item in extensions():
        for value in item.extension.values:
            assert item.load(value) is not None
    for field in fields(Extension):
        if isinstance(getattr(CORE.extension, field.name), Mapping):
            for load in loaders(field.name).values():
                load()
    for part in ("emulated_by", "rig"):
        assert all(load() for load in parts_of_drivers(part).values())
    for part in ("carrier", "planes", "provider"):
        assert all(parts_of_planes(part).values())


def test_what_two_have_by_one_name_is_named() -> None:
    one = InstalledExtension(
        Extension("torus", drivers={"scpi": "kinds:SCPI"}), "torus"
    )
    with pytest.raises(
        ExtensionError, match="extension torus: drivers: there is a scpi already"
    ):
        entries_of("drivers", (CORE, one))
    assert entries_of("drivers", (one,)).keys() == {"scpi"}


def test_an_extension_comes_after_those_that_it_requires() -> None:
    order = in_order([installed("c", "b"), installed("a"), installed("b", "a")])
    assert [item.extension.name for item in order] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("items", "names"),
    [
        (
            [installed("a", package="one"), installed("a", package="two")],
            ("a", "one", "two"),
        ),
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


@pytest.mark.parametrize(
    "value", ["no.such.module:EXTENSION", "json:EXTENSION", "json:dumps", "tests:house"]
)
def test_an_entry_point_that_gives_no_extension_is_named(value: str) -> None:
    with pytest.raises(ExtensionError, match="extension torus: "):
        _of_entry_point(EntryPoint("torus", value, "ringlight.extensions"))


@pytest.mark.parametrize("text", ["import nothing.of_that", "EXTENSIONS = 1"])
def test_a_folder_that_gives_no_extension_is_named(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ripped").mkdir()
    (tmp_path / "ripped/__init__.py").write_text(text)
    monkeypatch.setattr("ringlight.extensions.__path__", [str(tmp_path)])
    with pytest.raises(
        ExtensionError,
        match=r"extension ripped: ringlight\.extensions\.ripped cannot be",
    ):
        _of_folders()


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
    adds = Extension(
        "torus", metrics=("added",), sections=("added:ranks_of_jobs", "added:more")
    )
    found = (*extensions(), InstalledExtension(adds, "acme_torus"))
    # What is imported now stays known after the test.
    metrics_of_core.metrics()
    sections_of_core.sections()
    readers = (metrics_of_core, sections_of_core)
    for reader in readers:
        monkeypatch.setattr(reader, "_FOUND", reader._FOUND.copy())  # type: ignore[attr-defined]
    monkeypatch.setattr(sections_of_core, "extensions", lambda: found)
    cached = (
        metrics_of_core.metrics,
        sections_of_core.sections,
        sections_of_core.names,
    )
    with door(*found, readers=cached):
        yield package / "added.py"
    for name in ("acme_torus", "acme_torus.added"):
        sys.modules.pop(name, None)


def test_metrics_and_sections_of_an_extension_are_among_the_core_s(torus: Path) -> None:
    torus.write_text(ADDED.replace("{after}", "jobs"))
    assert metrics_of_core.metrics()["ranks"].help == "Ranks of the job"
    assert "| `ranks` | count | job | Ranks of the job |" in metrics_of_core.table(
        "acme_torus"
    )
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
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
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
    for words, shown in (
        (["--help"], "simulate"),
        (["check", "scenarios/disaggregation.yaml"], "regrouped"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert shown in done.stdout
        assert "crosscheck " not in done.stdout


@pytest.fixture
def cube(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of an extension, by itself all of its package."""
    module = ModuleType("torus")
    monkeypatch.setitem(sys.modules, "acme_torus", ModuleType("acme_torus"))
    monkeypatch.setitem(sys.modules, "acme_torus.torus", module)
    return module


def alone(**values: Any) -> InstalledExtension:
    """Return an extension with these values, of the package of :func:`cube`."""
    return InstalledExtension(Extension("torus", **values), "acme_torus")


def test_modules_for_workers_go_into_their_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "acme_ring"
    package.mkdir()
    for name in ("__init__", "steps", "report"):
        (package / f"{name}.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    adds = InstalledExtension(Extension("ring", worker=("steps",)), "acme_ring")
    monkeypatch.setattr(image, "extensions", lambda: (adds,))
    there = {
        name: path
        for name, path in code_files().items()
        if name.startswith("acme_ring")
    }
    expected = {
        f"acme_ring/{name}.py": package / f"{name}.py" for name in ("__init__", "steps")
    }
    assert there == expected


def test_commands_that_build_labs_have_the_flags_of_extensions(
    cube: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    cube.__dict__["GLOW"] = PageKind(
        lambda folder, watched: "", "glow", "Let it glow.", heard.append
    )
    app = typer.Typer()
    with door(alone(pages={"glow.html": "torus:GLOW"}), readers=(page_kinds,)):

        @app.command()
        @options.with_groups
        def up(lab: options.OpenLab) -> None:
            lab.announce_pages()

        shown = CliRunner().invoke(app, ["--help"]).output
        plain = CliRunner().invoke(app, ["--rest", "127.0.0.1:7"])
        assert (plain.exit_code, heard) == (0, [])
        assert (
            CliRunner().invoke(app, ["--rest", "127.0.0.1:7", "--glow"]).exit_code == 0
        )
    assert "--glow" in shown
    assert "Let it glow." in shown
    assert heard == ["http://127.0.0.1:7"]


@dataclass(frozen=True)
class OnMoon:
    moon: Annotated[
        str | None, typer.Option("--moon", help="Build labs on the moon.")
    ] = None
    craters: Annotated[int, typer.Option("--craters")] = 1

    @contextmanager
    def backend(self, runtime: str, devices: Sequence[str]) -> Iterator[Any]:
        yield f"{runtime} at {self.moon} in {self.craters}"


class LostInSpace(Exception):
    pass


@pytest.fixture
def moon(cube: ModuleType) -> Iterator[None]:
    """An extension whose executor counts what it is given, and builds labs."""

    @contextmanager
    def counted(address: str) -> Iterator[Executor]:
        cube.__dict__.setdefault("asked", []).append(address)
        with ThreadPoolExecutor(1) as executor:
            yield executor

    cube.__dict__["MOON"] = ExecutorKind(
        counted, "Compute on the moon.", OnMoon, lambda: (LostInSpace,)
    )
    # What other kinds of options there are is read once, and not in here.
    cli.add_commands()
    with door(
        alone(executors={"moon": "torus:MOON"}),
        readers=(executor_kinds, page_kinds),
    ):
        yield


@pytest.mark.usefixtures("moon")
def test_runs_are_made_by_executors_of_extensions(
    cube: ModuleType, tmp_path: Path
) -> None:
    app = typer.Typer()
    app.command()(options.with_groups(inspect.unwrap(experiments_of_cli.simulate)))
    words = [str(MINI), "--runs", str(tmp_path), "--json"]
    assert CliRunner().invoke(app, [*words, "--moon", "sea"]).exit_code == 0
    assert CliRunner().invoke(app, [*words, "--executor", "moon:hill"]).exit_code == 0
    both = CliRunner().invoke(app, [*words, "--moon", "sea", "--processes", "1"])
    assert "--processes, and other machines: give one of them" in str(both.exception)
    assert cube.__dict__["asked"] == ["sea", "hill"]
    assert LostInSpace in lost()


@pytest.mark.usefixtures("moon")
def test_labs_are_built_where_options_of_extensions_say(tmp_path: Path) -> None:
    app, made = typer.Typer(), list[object]()

    @app.command()
    @options.with_groups
    def build(
        context: typer.Context, lab: options.OpenLab, remote: options.Remote
    ) -> None:
        with emulation(lab, context, remote) as backend:
            made.append(backend)

    assert CliRunner().invoke(app, ["--moon", "sea", "--craters", "3"]).exit_code == 0
    assert made == ["docker at sea in 3"]
    for words, why in (
        (["--craters", "1"], "--craters: only with --moon"),
        (
            ["--moon", "sea", "--rest", "127.0.0.1:1"],
            "--rest: without effect on labs of other machines (--moon)",
        ),
    ):
        assert why in str(CliRunner().invoke(app, words).exception)
    with backend_at("moon:sea", "namespace") as backend:
        assert str(backend) == "namespace at sea in 1"
    study = rl.load(MINI)
    with pytest.raises(
        ScenarioError, match=r"no labs are built by an executor 'mars'; .*moon"
    ):
        study.emulate(executor="mars:sea", runs=tmp_path)


def test_routes_of_extensions_are_asked_for_a_token_and_their_middleware_is_not(
    controller: Controller, cube: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Sign:
        def __init__(self, app: Any) -> None:
            self._app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            answer = (
                PlainTextResponse("the torus")
                if scope.get("path") == "/sign"
                else self._app
            )
            await answer(scope, receive, send)

    def add(controller: Controller) -> None:
        def add_to(application: FastAPI) -> None:
            application.get("/torus")(lambda: len(controller.fabric.gpus))
            application.add_middleware(Sign)

        controller.app_parts.append(add_to)

    cube.__dict__["add"] = add
    with door(alone(controller=("torus:add",))):
        for add_to in loaded("controller"):
            add_to(controller)
        application = rest.create_app(controller, {"secret": "lab"})
    assert call(application, "GET", "/sign", {}) == (200, b"the torus")
    assert call(application, "GET", "/torus", {})[0] == 401
    assert call(application, "GET", "/torus", {"authorization": "Bearer secret"}) == (
        200,
        b"6",
    )


def test_a_report_leads_to_the_pages_of_extensions(
    cube: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def leave(folder: Path, watched: bool) -> str:
        (folder / "torus.html").write_text(f"watched: {watched}")
        return '<a href="torus.html">The torus</a>'

    cube.__dict__["LEFT"] = PageKind(leave, "torus", "", lambda url: None)
    experiment, quiet = load(MINI), Reporter(quiet=True)
    with door(alone(pages={"torus.html": "torus:LEFT"}), readers=(page_kinds,)):
        done, _ = command.carry_out_experiment(
            experiment,
            SimulationBackend(),
            tmp_path,
            arms=["live"],
            reporter=quiet,
            watched=True,
        )
    assert (
        '<a href="torus.html">The torus</a>' in (done.path / "report.html").read_text()
    )
    assert (done.path / "torus.html").read_text() == "watched: True"


def test_a_broken_device_is_one_line() -> None:
    code = """
from ringlight.fabric import extension
extension.extensions = lambda: [
    extension.InstalledExtension(extension.Extension("torus", devices={"torus": "none:TORUS"}), "json")
]
from ringlight.experiments.cli import app
app.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("ringlight: extension torus: none:TORUS")
    assert done.stderr.count("\n") == 1
