"""Trees of YANG models as an emulated switch shows them: nodes, paths in them, their JSON. No protocol."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class TreeError(Exception):
    """A path or value that the model does not have. Nothing has changed."""


class Counter(int):
    """A 64 bit counter."""


class Entries(dict[str, "Node"]):
    """The entries of a list, by the value of their key leaf ``key``. Of a list with several key leaves,
    separated by commas in ``key``, the values are separated so, too."""

    def __init__(self, entries: Mapping[str, Node] = {}, key: str = "name") -> None:
        super().__init__(entries)
        self.key = key

    def named(self, entry: str) -> tuple[tuple[str, str], ...]:
        """Return key leaves and values of an entry, in the order of the leaves' names, as in a path."""
        return tuple(sorted(zip(self.key.split(","), entry.split(","), strict=True)))


#: A container, a list, a leaf-list or a leaf.
Node = dict[str, Any] | Entries | list[str] | str | bool | int | float


class Step(NamedTuple):
    """One element of a path; ``keys`` choose entries of a list, ``*`` any."""

    name: str
    keys: tuple[tuple[str, str], ...] = ()


Path = tuple[Step, ...]


def bare(name: str) -> str:
    """Return a name without its module prefix."""
    return name.rpartition(":")[2]


def shown(path: Path) -> str:
    """Return a path in the form used in error messages."""
    return "/" + "/".join(step.name for step in path)


def find(node: Any, path: Path, prefix: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the nodes of a path, each with its own path. A list without keys means all its entries."""
    if not path:
        yield prefix, node
        return
    if not isinstance(node, dict) or isinstance(node, Entries):
        return
    step, rest = path[0], path[1:]
    for name, child in list(node.items()):
        if step.name not in ("*", name):
            continue
        if isinstance(child, Entries):
            keys = dict(step.keys)
            for key, entry in child.items():
                named = child.named(key)
                fits = all(keys.get(leaf, "*") in ("*", value) for leaf, value in named)
                if fits and keys.keys() <= {leaf for leaf, _ in named}:
                    yield from find(entry, rest, (*prefix, Step(name, named)))
        elif not step.keys:
            yield from find(child, rest, (*prefix, Step(name)))


def in_empty_list(node: Any, path: Path) -> bool:
    """Return whether a path without a target leads into an empty list, any entry of which would match."""
    for number, step in enumerate(path):
        if next(find(node, path[: number + 1]), None) is None:
            if any(value != "*" for _, value in step.keys):
                return False
            above = [
                parent
                for _, parent in find(node, path[:number])
                if isinstance(parent, dict)
            ]
            return any(
                step.name == "*" or isinstance(parent_node.get(step.name), Entries)
                for parent_node in above
            )
    return False


def leaves(node: Any, prefix: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield every leaf under a node with its path."""
    if isinstance(node, Entries):
        raise AssertionError("a list is walked from what holds it")
    if not isinstance(node, dict):
        yield prefix, node
        return
    for name, child in node.items():
        if isinstance(child, Entries):
            for key, entry in child.items():
                yield from leaves(entry, (*prefix, Step(name, child.named(key))))
        else:
            yield from leaves(child, (*prefix, Step(name)))


def plain(node: Any, ietf: bool, modules: Mapping[str, str], module: str = "") -> Any:
    """Return the JSON of a value.

    With ``ietf`` the form follows RFC 7951: a model's name before a node if the model changes (``modules``,
    by name of node), and 64-bit numbers and decimals as text.
    """
    if isinstance(node, Entries):
        return [plain(entry, ietf, modules, module) for entry in node.values()]
    if isinstance(node, dict):
        document = {}
        for name, child in node.items():
            own = modules.get(name, module)
            qualified = f"{own}:{name}" if ietf and own != module else name
            document[qualified] = plain(child, ietf, modules, own)
        return document
    if isinstance(node, bool | str | list):
        return node
    if isinstance(node, float):
        return f"{node:.2f}" if ietf else round(node, 2)
    return str(node) if ietf and isinstance(node, Counter) else int(node)


def flatten(
    path: Path, value: Any, keys: Mapping[str, str] = {}
) -> Iterator[tuple[Path, Any]]:
    """Yield the assignments of leaves that make up an assignment. ``keys``: the key leaf of lists whose key
    is not ``name``. Raises TreeError."""
    if len(path) > 16:
        raise TreeError("a value that is nested too deeply")
    if isinstance(value, dict):
        for name, child in value.items():
            name = bare(name)
            if isinstance(child, list):
                leaf = keys.get(name, "name")
                for entry in child:
                    key = bare_entry(entry).get(leaf)
                    if not isinstance(key, str):
                        raise TreeError(f"an entry of {name} without its {leaf}")
                    yield from flatten((*path, Step(name, ((leaf, key),))), entry, keys)
            else:
                yield from flatten((*path, Step(name)), child, keys)
    elif isinstance(value, str | bool | int | float):
        yield path, value
    else:
        raise TreeError(
            f"{path[-1].name if path else '/'}: a value of that kind is not taken"
        )


def bare_entry(entry: object) -> dict[str, Any]:
    """Return the leaves of an entry without their modules' names, none if the entry is not an object."""
    return (
        {bare(name): leaf for name, leaf in entry.items()}
        if isinstance(entry, dict)
        else {}
    )
