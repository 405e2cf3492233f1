"""README and docs/: links lead somewhere, commands are those of the program, every page can be found."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from ringlight.experiments.cli.app import add_commands, app
from ringlight.experiments.language.expand import parse
from tests.matrix import on_reference

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "scenarios").glob("*.md"),
    ],
    key=str,
)
add_commands()
PROGRAM = typer.main.get_command(app)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
COMMAND = re.compile(r"^ {4}(?:sudo )?(?:\./)?ringlight (.+)$", re.MULTILINE)


def slugs(page: Path) -> set[str]:
    """What a heading is called in an address, as GitHub and GitLab name it."""
    heads = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def broken_links(page: Path, text: str) -> list[str]:
    found = []
    for link in LINK.findall(FENCE.sub("", text)):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in slugs(target)):
            found.append(link)
    return found


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command, up to a comment, a pipe or a second command."""
    for line in COMMAND.findall(text.replace("\\\n", " ")):
        yield shlex.split(re.split(r"\s#|\s\|\s|;\s|\s&\s|\s&&\s|\s>\s", line)[0])


def wrong(words: list[str]) -> str | None:
    """Why the program does not know this command; None where it does."""
    command: Any = PROGRAM
    known = {name for parameter in command.params for name in parameter.opts}
    rest = iter(words)
    for word in rest:
        if word == "--":
            return None
        if word.startswith("--"):
            if word.partition("=")[0] not in known:
                return f"{' '.join(words)}: no option {word}"
        elif hasattr(command, "commands"):
            inner = command.commands.get(word)
            if inner is None:
                return f"{' '.join(words)}: no command {word}"
            command = inner
            known |= {
                name for parameter in command.params for name in parameter.opts
            } | {"--help"}
            if command.context_settings.get("ignore_unknown_options"):
                return None
        elif word.startswith(("scenarios/", "docs/")) and not (ROOT / word).exists():
            return f"{' '.join(words)}: no file {word}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_commands_of_a_page_exist(page: Path) -> None:
    text = page.read_text()
    assert broken_links(page, text) == []
    assert [why for words in commands(text) if (why := wrong(words)) is not None] == []


def test_a_wrong_link_and_a_wrong_command_are_found() -> None:
    said = "[a](docs/none.md) [b](docs/rest.md#none) [c](#what-you-see) [d](docs/rest.md#examples)"
    assert broken_links(ROOT / "README.md", said) == [
        "docs/none.md",
        "docs/rest.md#none",
    ]
    text = (
        "    ./ringlight simulate scenarios/none.yaml   # x\n"
        "    sudo ringlight ocs nothing | cat\n"
        "    ringlight run scenarios/disaggregation.yaml --arms a\n"
        "    ringlight test --fuzz 1\n"
    )
    assert [wrong(words) for words in commands(text)] == [
        "simulate scenarios/none.yaml: no file scenarios/none.yaml",
        "ocs nothing: no command nothing",
        "run scenarios/disaggregation.yaml --arms a: no option --arms",
        None,
    ]


def missing_imports(text: str) -> list[str]:
    """What the Python on a page imports from Ringlight and is not there. Raises SyntaxError."""
    found = []
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith(
                "ringlight"
            ):
                there = importlib.import_module(str(node.module))
                found += [
                    f"{node.module}.{n.name}"
                    for n in node.names
                    if not hasattr(there, n.name)
                ]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_on_a_page_imports_what_there_is(page: Path) -> None:
    assert missing_imports(page.read_text()) == []


def test_a_wrong_import_is_found() -> None:
    text = (
        "```python\nfrom ringlight.fabric.units import parse_time, no_such_name\n```\n"
    )
    assert missing_imports(text) == ["ringlight.fabric.units.no_such_name"]


def linked(page: Path) -> set[Path]:
    """Return the pages to which a page links."""
    links = (link.partition("#")[0] for link in LINK.findall(page.read_text()))
    return {(page.parent / link).resolve() for link in links if link.endswith(".md")}


def test_every_page_is_reachable_from_the_readme() -> None:
    reached, new = set[Path](), {ROOT / "README.md"}
    while new:
        reached |= new
        new = {page for each in new for page in linked(each)} & set(PAGES) - reached
    assert [str(page) for page in PAGES if page not in reached] == []


def test_the_index_lists_every_page_of_its_folder() -> None:
    index = ROOT / "docs/README.md"
    folder = set((ROOT / "docs").glob("*.md")) - {index}
    assert folder - linked(index) == set()


def test_the_first_experiment_of_the_page_is_sound() -> None:
    page = (ROOT / "docs/experiments.md").read_text()
    example = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0]
    experiment = parse(example, "first.yaml", scale_for=on_reference)
    assert list(experiment.arms) == ["scattered", "regrouped"]
    assert len(experiment.plans) == 2
    for part in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[1:]:
        yaml.safe_load(part.replace("{…}", "{}").replace("…", "x"))


def test_no_page_is_longer_than_one_reads() -> None:
    """A page of docs has at most 400 lines; a longer one is divided."""
    lengths = {
        path.name: len(path.read_text().splitlines())
        for path in (ROOT / "docs").glob("*.md")
    }
    assert not {name: lines for name, lines in lengths.items() if lines > 400}
    assert lengths["architecture.md"] <= 250
