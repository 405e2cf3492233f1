"""Output shared by all commands: lines, tables, JSON, and errors with an exit code."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import typer

from ringlight.fabric.text import visible


class UserError(RuntimeError):
    """The command cannot do what was asked; one line. ``exit_code``: 1 it did not work, 2 wrong input."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Interrupted(BaseException):
    """A signal (Ctrl-C too) asked us to end; no handler of errors may take it for one. ``number``: its."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print, with what a name or a title has that controls a terminal made visible."""
    typer.echo(visible(str(text)), err=err, nl=nl)


def say(text: str) -> None:
    """Print one line on standard error."""
    echo(f"ringlight: {text}", err=True)


def fail(text: str, code: int = 1) -> NoReturn:
    raise UserError(text, code)


@contextmanager
def patience(text: str, after_s: float = 2.0) -> Iterator[None]:
    """Print ``text`` on standard error if the block takes longer than ``after_s`` seconds."""
    timer = threading.Timer(after_s, say, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def show_json(value: Any) -> None:
    echo(json.dumps(value, indent=2))


def answer(reply: Any, as_json: bool, write: Callable[[Any], None]) -> None:
    """Print a reply as JSON, or for a person by means of ``write``."""
    if as_json:
        show_json(reply)
    else:
        write(reply)


#: A key of entries, which is also the column's head; or a head, and a key or what makes a cell of an entry.
Column = str | tuple[str, str | Callable[[Any], object]]


def listing(
    entries: Iterable[Mapping[str, Any]], *columns: Column, numeric: int | None = None
) -> None:
    """Print a table with a row for each entry; see :func:`table`."""
    known = [
        (column, column) if isinstance(column, str) else column for column in columns
    ]
    rows = [
        [entry.get(of) if isinstance(of, str) else of(entry) for _, of in known]
        for entry in entries
    ]
    table([head for head, _ in known], rows, numeric)


def table(
    head: Sequence[str], rows: Sequence[Sequence[object]], numeric: int | None = None
) -> None:
    """Print a table; columns from ``numeric`` on are right-aligned. Plain where output is not a terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    # Not a terminal: never cut or wrap what a script reads.
    width = None if sys.stdout.isatty() else 400
    shown = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for index, title in enumerate(head):
        right = numeric is not None and index >= numeric
        shown.add_column(
            visible(title), justify="right" if right else "left", overflow="fold"
        )
    for row in rows:
        shown.add_row(*map(_cell, row))
    console = Console(width=width, highlight=False, markup=False)
    if width is None:
        console.print(shown)
        return
    with console.capture() as captured:
        console.print(shown)
    echo("\n".join(line.rstrip() for line in captured.get().rstrip("\n").splitlines()))


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else visible(str(value))
