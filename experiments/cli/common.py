"""What all commands share: lines, tables, JSON, and ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import typer

if TYPE_CHECKING:
    from fabric.schema import FabricSpec
    from fabric.topology import Fabric


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


def say(text: str) -> None:
    """One line on standard error."""
    typer.echo(f"ringlight: {text}", err=True)


def fail(text: str, code: int = 1) -> NoReturn:
    raise UserError(text, code)


def show_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2))


def table(head: Sequence[str], rows: Sequence[Sequence[object]], numeric: int | None = None) -> None:
    """Print a table; columns from ``numeric`` on are right-aligned. Plain where output is not a terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    # Not a terminal: never cut or wrap what a script reads.
    width = None if sys.stdout.isatty() else 400
    shown = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for index, title in enumerate(head):
        right = numeric is not None and index >= numeric
        shown.add_column(title, justify="right" if right else "left", overflow="fold")
    for row in rows:
        shown.add_row(*("" if cell is None else str(cell) for cell in row))
    console = Console(width=width, highlight=False, markup=False)
    if width is None:
        console.print(shown)
        return
    with console.capture() as captured:
        console.print(shown)
    typer.echo("\n".join(line.rstrip() for line in captured.get().rstrip("\n").splitlines()))


def fabric_document(fabric: Fabric) -> dict[str, Any]:
    """What a checked fabric is made of, short forms written out, as JSON."""
    from fabric.paths import most_paths
    from fabric.topology import circuit_cross_connects, electrical_graph

    graph = electrical_graph(fabric, circuit_cross_connects(fabric, fabric.circuits))
    return {
        "gpus": list(fabric.gpus),
        "packet_switches": list(fabric.packet_switches),
        "optical_switches": list(fabric.optical_switches),
        "links": [
            {"ends": [str(link.a), str(link.b)], "rate_bps": link.rate_bps, "queue_s": link.queue_s}
            for link in fabric.links
        ],
        "paths": fabric.paths,
        "equal_paths": most_paths(fabric, graph),
    }


def fabric_lines(where: str, spec: FabricSpec, fabric: Fabric) -> list[str]:
    """What short forms of a fabric stand for, and how packets choose where they can."""
    from fabric.units import format_rate

    said = []
    for key, tree in spec.trees.items():
        nics, uplinks = (
            ", ".join(format_rate(rate) for rate in sorted({link.rate_bps for link in links}))
            for links in (tree.links[: len(tree.gpus)], tree.links[len(tree.gpus) :])
        )
        switches = list(tree.switches)
        said.append(
            f"{where}.{key}: GPUs {tree.gpus[0]} … {tree.gpus[-1]} at {nics}; {len(switches)} packet "
            f"switches {switches[0]} … {switches[-1]}, {len(tree.links) - len(tree.gpus)} links between them"
            + (f" at {uplinks}" if uplinks else "")
        )
    ways = fabric_document(fabric)["equal_paths"]
    if ways > 1:
        how = {"hash": "by a hash of their addresses", "even": "dealt out evenly"}[fabric.paths]
        said.append(f"{where}: up to {ways} equal paths between two GPUs; each pair takes one, {how}")
    return said
