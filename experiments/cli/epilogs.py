"""Examples at the end of each command's help: what its docstring has below the line ``Examples:``."""

from __future__ import annotations

import inspect

import typer

HEADING = "\n\nExamples:\n"


def split(docstring: str) -> tuple[str, list[str]]:
    """Return a docstring without its examples, and the examples, a command each."""
    text, _, examples = docstring.partition(HEADING)
    return text, [line.strip() for line in examples.splitlines() if line.strip()]


def end_with_examples(app: typer.Typer) -> None:
    """Have the help of each command of an application, and of its groups, end with the command's examples."""
    for command in app.registered_commands:
        text, examples = split(inspect.getdoc(command.callback) or "")
        if examples:
            command.help = text
            command.epilog = _epilog(examples)
    for group in app.registered_groups:
        commands = group.typer_instance
        if commands is None:
            continue
        end_with_examples(commands)
        callback = commands.registered_callback
        if callback is not None and callback.callback is not None:
            _, examples = split(inspect.getdoc(callback.callback) or "")
            if examples:
                commands.info.epilog = _epilog(examples)


def _epilog(examples: list[str]) -> str:
    return "\n".join(["Examples:", *(f"  {example}" for example in examples)])
