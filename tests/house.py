"""Count what makes the house hard to hold in the head: words, names, sizes, circles.

    .venv/bin/python -m tests.house                 # all counts
    .venv/bin/python -m tests.house words fabric    # what is counted, by place, in one room
    .venv/bin/python -m tests.house prose           # how the pages read (tests/prose.py)

``test_architecture`` holds the counts to ``tests/data/house.json``, where they only ever fall.
"""

from __future__ import annotations

import ast
import re
import sys
import token
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

from ringlight.containers.image import ROOT
from tests import prose

ROOMS = (
    "fabric",
    "workloads",
    "controller",
    "testbed",
    "containers",
    "experiments",
    "extensions",
)
#: First words of a docstring that is a clause in place of an action.
CLAUSES = ("What", "Whether", "How", "Where", "Who", "Which", "Why", "Whose", "When")
#: Names that say nothing of a thing.
NO_NAMES = frozenset(
    {"found", "one", "at", "wanted", "said", "told", "lit", "asked", "others"}
)
#: How a unit stands in the name of a function or in its docstring.
UNIT = re.compile(
    r"(_s|_ns|_ms|_us|_bps|_bytes|_bits|_dbm?|_hz|_ghz|_nm|_share|_ratio|_factor|_rate|_mw|_w|_k|_m|_km)\b"
    r"|second|byte|bit|dB|hertz|Hz|nm\b|share|ratio|factor|per cent|%|watt|metre|times|number|probabilit"
    r"|degrees|inch|FLOP|part of|mean|loss|accuracy|weight|count|exponent|samples|units?\b"
)
LONGEST = 500


@cache
def files() -> tuple[Path, ...]:
    """Return the Python files of the product, sorted."""
    return tuple(sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py")))


def core_files() -> tuple[Path, ...]:
    """Return the Python files of the core, sorted."""
    return tuple(
        path for path in files() if not path.is_relative_to(ROOT / "extensions")
    )


@cache
def tree_of(path: Path) -> ast.Module:
    """Return a file as parsed."""
    return ast.parse(path.read_text())


def place(path: Path, node: ast.AST) -> str:
    """Return where a node is, as file:line."""
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Function = ast.FunctionDef | ast.AsyncFunctionDef


def documented() -> Iterator[tuple[Path, Documented, str]]:
    """Yield everything that has a docstring, and the docstring."""
    for path in files():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, Documented) and (text := ast.get_docstring(node)):
                yield path, node, text


def clauses() -> Iterator[str]:
    """Yield the docstrings that open with a clause."""
    for path, node, text in documented():
        if text.split(None, 1)[0].rstrip(",:;") in CLAUSES:
            yield f"{place(path, node)}: {text.splitlines()[0]}"


def _decorators(node: Function) -> set[str]:
    return {
        ast.unparse(one).partition("(")[0].rpartition(".")[2]
        for one in node.decorator_list
    }


def _returns(node: Function) -> bool:
    if node.returns is None:
        return False
    annotation = ast.unparse(node.returns).strip("'\"")
    if annotation == "Iterator[None]" and "contextmanager" in _decorators(node):
        return False
    return annotation not in ("None", "NoReturn", "Never")


def unsaid_returns() -> Iterator[str]:
    """Yield public functions that return a value, have a docstring, and say neither Return nor Yield.

    Properties, commands, routes and context managers that give nothing are left out.
    """
    for path, node, text in documented():
        if (
            not isinstance(node, Function)
            or node.name.startswith("_")
            or not _returns(node)
        ):
            continue
        if _decorators(node) & {
            "property",
            "cached_property",
            "fixture",
            "command",
            "get",
            "put",
            "post",
            "delete",
        }:
            continue
        if not re.search(r"\b([Rr]eturn|[Yy]ield)", text):
            yield f"{place(path, node)}: {node.name}: {text.splitlines()[0]}"


def nameless() -> Iterator[str]:
    """Yield bindings of names that say nothing."""
    for path in files():
        for node in ast.walk(tree_of(path)):
            name = None
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                name = node.id
            elif isinstance(node, ast.arg):
                name = node.arg
            elif isinstance(node, ast.ClassDef | Function):
                name = node.name
            if name in NO_NAMES:
                yield f"{place(path, node)}: {name}"


def namesakes() -> Iterator[str]:
    """Yield class names that are defined more than twice."""
    defined: dict[str, list[str]] = {}
    for path in files():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                defined.setdefault(node.name, []).append(place(path, node))
    for name, places in sorted(defined.items()):
        if len(places) > 2:
            yield f"{name}: {', '.join(places)}"


def unitless() -> Iterator[str]:
    """Yield public functions and properties that return a float and name no unit."""
    for path in files():
        for node in ast.walk(tree_of(path)):
            if (
                not isinstance(node, Function)
                or node.name.startswith("_")
                or node.returns is None
            ):
                continue
            if ast.unparse(node.returns).strip("'\"") not in (
                "float",
                "float | None",
                "FloatArray",
            ):
                continue
            if not UNIT.search(f"{node.name} {ast.get_docstring(node) or ''}"):
                yield f"{place(path, node)}: {node.name}"


def long_files() -> Iterator[str]:
    """Yield files of more than :data:`LONGEST` lines."""
    for path in files():
        if (lines := path.read_text().count("\n")) > LONGEST:
            yield f"{path.relative_to(ROOT)}: {lines}"


def unformatted() -> Iterator[str]:
    """Yield lines that the formatter must not touch."""
    for path in files():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if "# fmt: skip" in line or "# fmt: off" in line:
                yield f"{path.relative_to(ROOT)}:{number}"


def type_circles() -> Iterator[str]:
    """Yield modules that import each other round a circle, blocks for type checkers included."""
    import networkx as nx

    names = {_module(path): path for path in files()}
    graph = nx.DiGraph()
    for name, path in names.items():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                base = node.module.removeprefix("ringlight.")
                for alias in node.names:
                    other = (
                        f"{base}.{alias.name}"
                        if f"{base}.{alias.name}" in names
                        else base
                    )
                    if other in names and other != name:
                        graph.add_edge(name, other)
    for group in sorted(map(sorted, nx.strongly_connected_components(graph))):
        if len(group) > 1:
            yield " ".join(group)


def foreign_words() -> Iterator[str]:
    """Yield lines of the core with a word of an extension, from ``tests/extensions/NAME/words.txt``.

    Each line of that file is a regular expression for the beginning of a word, in lower case; names are split
    at underscores.
    """
    words = [
        word
        for path in sorted((ROOT / "tests/extensions").glob("*/words.txt"))
        for word in path.read_text().splitlines()
    ]
    if not words:
        return
    pattern = re.compile(rf"(?<![a-z])({'|'.join(words)})")
    for path in core_files():
        for number, line in enumerate(path.read_text().lower().splitlines(), 1):
            if match := pattern.search(line):
                yield f"{path.relative_to(ROOT)}:{number}: {match[1]}: {line.strip()}"


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def statements(paths: Iterable[Path]) -> int:
    """Return the number of statements of some files."""
    return sum(
        isinstance(node, ast.stmt) for path in paths for node in ast.walk(tree_of(path))
    )


def tokens_a_line() -> dict[str, float]:
    """Return tokens a code line by room: neither blank lines, comments nor docstrings count."""
    found = {}
    for room in ROOMS:
        tokens = lines = 0
        for path in files():
            if not path.is_relative_to(ROOT / room):
                continue
            texts = {
                number
                for node in ast.walk(tree_of(path))
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
                for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
            }
            kept = Counter[int]()
            with path.open("rb") as text:
                for one in tokenize.tokenize(text.readline):
                    if (
                        one.type in (token.NAME, token.NUMBER, token.STRING, token.OP)
                        and one.start[0] not in texts
                    ):
                        kept[one.start[0]] += 1
            tokens += sum(kept.values())
            lines += len(kept)
        # A copy of the tree may be without a room.
        if lines:
            found[room] = round(tokens / lines, 2)
    return found


COUNTS: dict[str, Callable[[], Iterator[str]]] = {
    "clauses": clauses,
    "unsaid_returns": unsaid_returns,
    "nameless": nameless,
    "namesakes": namesakes,
    "unitless": unitless,
    "long_files": long_files,
    "unformatted": unformatted,
    "type_circles": type_circles,
    "foreign_words": foreign_words,
}


def main(words: list[str]) -> None:
    if words[:1] == ["prose"]:
        prose.main(words[1:])
        return
    if words:
        for line in COUNTS[words[0]]():
            if len(words) == 1 or line.startswith(tuple(words[1:])):
                print(line)  # noqa: T201
        return
    for name, count in COUNTS.items():
        print(name, sum(1 for _ in count()))  # noqa: T201
    print("statements", statements(files()), "of the core", statements(core_files()))  # noqa: T201
    print("tokens a line", tokens_a_line())  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
