"""Each command's help ends with examples, which the program takes, of files that are there or that one made."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer.main

from ringlight.experiments.cli.app import add_commands, app
from ringlight.experiments.cli.epilogs import end_with_examples, split
from ringlight.experiments.language.bundled import SCENARIOS
from ringlight.experiments.language.expand import load
from tests import forks

add_commands()
PROGRAM: Any = typer.main.get_command(app)
BUNDLED = {path.name for path in SCENARIOS.rglob("*.yaml")}
#: Files of the reader's own that docs/workloads.md shows, as no command makes one.
OWN = {"shuffle.csv"}
#: Commands all of whose examples need no lab, no root and no network, and take seconds.
CHEAP = {
    "check",
    "examples",
    "examples copy",
    "hosts cut",
    "results",
    "workload algorithm",
    "workload make",
    "workload widen",
}


def commands_of(command: Any, words: tuple[str, ...] = ()) -> dict[str, Any]:
    """Every command that does something by itself, by its words."""
    found = {}
    for name, inner in getattr(command, "commands", {}).items():
        if not hasattr(inner, "commands") or inner.invoke_without_command:
            found[" ".join([*words, name])] = inner
        found |= commands_of(inner, (*words, name))
    return found


COMMANDS = commands_of(PROGRAM)


def examples_of(command: Any) -> list[list[str]]:
    return [
        shlex.split(line)
        for line in (command.epilog or "").splitlines()
        if line.startswith("  ")
    ]


def refused(example: list[str]) -> str | None:
    """Why the program does not take the words of an example; None if it does."""
    command, words, parent = PROGRAM, example[1:], None
    while hasattr(command, "commands") and words and words[0] in command.commands:
        parent = command.make_context(command.name, [], parent, resilient_parsing=True)
        command, words = command.commands[words[0]], words[1:]
    if words and getattr(command, "commands", None):
        return f"{shlex.join(example)}: no command {words[0]}"
    try:
        command.make_context(command.name, words, parent)
    except Exception as error:  # noqa: BLE001  # Typer keeps its own in a private module
        return f"{shlex.join(example)}: {error}"
    return None


def named_files(name: str) -> tuple[str, ...]:
    """The files that a bundled scenario names, which are copied with it."""
    return next((load(path).files for path in SCENARIOS.rglob(name)), ())


def missing_files(examples: list[list[str]]) -> list[str]:
    """Scenario files and workloads that are read before an example made them."""
    made, missing = set[str](), []
    for words in examples:
        files = [
            word for word in words if re.fullmatch(r"\w+\.(yaml|rlw|csv|et)", word)
        ]
        if words[1:3] == ["examples", "copy"]:
            made |= {f"{words[3]}.yaml", *named_files(f"{words[3]}.yaml")}
            missing += [] if f"{words[3]}.yaml" in BUNDLED else [words[3]]
        # What a command writes comes last of its files, or is an option's.
        written = {word for flag, word in pairwise(words) if flag.startswith("--")}
        if words[1:2] == ["workload"] and words[2] in ("make", "widen", "convert"):
            written.add(files[-1] if files else "")
        missing += [file for file in files if file not in made | OWN | written]
        made |= set(files)
    return missing


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_ends_with_examples_that_it_takes(name: str) -> None:
    examples = examples_of(COMMANDS[name])
    assert 1 <= len(examples) <= 3
    assert all(words[0] == "ringlight" for words in examples)
    assert any(words[1 : 1 + len(name.split())] == name.split() for words in examples)
    assert [why for words in examples if (why := refused(words))] == []
    assert missing_files(examples) == []


def test_a_wrong_option_a_wrong_value_and_a_missing_file_are_found() -> None:
    assert refused(["ringlight", "simulate", "a.yaml", "--arms", "b"])
    assert refused(["ringlight", "simulate", "a.yaml", "--repeat", "b"])
    assert refused(["ringlight", "ocs", "nothing"])
    assert refused(["ringlight", "simulate", "a.yaml"]) is None
    copy = ["ringlight", "examples", "copy", "queue"]
    check = ["ringlight", "check", "queue.yaml"]
    assert missing_files([copy, check]) == []
    assert missing_files([check]) == ["queue.yaml"]
    assert missing_files([[*copy[:-1], "none"]]) == ["none"]


def test_help_shows_the_examples_below_the_options_and_nowhere_else() -> None:
    done = forks.ringlight("check", "--help")
    assert done.stdout.count("Examples:") == 1
    assert done.stdout.rstrip().endswith("ringlight check queue.yaml")


def test_examples_of_a_command_of_others_come_from_its_docstring() -> None:
    other = typer.Typer()

    @other.command()
    def weave() -> None:
        """Weave light.

        Twice.

        Examples:
            ringlight weave
        """

    end_with_examples(other)
    (command,) = other.registered_commands
    assert command.help == "Weave light.\n\nTwice."
    assert command.epilog == "Examples:\n  ringlight weave"
    assert split("Weave light.") == ("Weave light.", [])


@pytest.mark.parametrize("name", sorted(CHEAP & set(COMMANDS)))
def test_cheap_examples_work(name: str, tmp_path: Path) -> None:
    for words in examples_of(COMMANDS[name]):
        parts: list[str] = []
        for word in words[1:]:
            matching = (
                [str(path) for path in tmp_path.glob(word)] if "*" in word else []
            )
            parts += matching or [word]
        done = forks.ringlight(*parts, directory=tmp_path)
        assert done.returncode == 0, (words, done.stderr)
