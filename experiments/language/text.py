"""The text of a scenario file: YAML read strictly, ``$name`` replaced, and what is wrong in one line."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from ringlight.fabric.patterns import in_words
from ringlight.fabric.text import is_text
from ringlight.fabric.values import KIND_TAG, under
from ringlight.workloads.formats.files import FILE_LIMIT, read_bytes

#: Bytes of a scenario file, and the values in it.
SCENARIO_BYTES, VALUES_LIMIT = 4 << 20, 1_000_000


class ScenarioError(ValueError):
    """A scenario that cannot be run; the message is one line naming the file and the key."""


class _Plain(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Writes what is the same twice, so that no reader has to follow anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def plain_yaml(content: Any) -> str:
    """Return the YAML of a scenario, its keys in their order."""
    return yaml.dump(content, Dumper=_Plain, sort_keys=False, allow_unicode=True)


@contextmanager
def at_key(where: str) -> Iterator[None]:
    """Put ``where: `` in front of the message of a ValueError raised in the block."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


@contextmanager
def within(section: str) -> Iterator[None]:
    """Put the section in front of the message of a ValueError raised in the block (``fabric.values.under``).

    For blocks whose message may name a key of the section.
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(under(section, error)) from None


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """With libyaml's parser where it is there, which is many times as fast. Refuses a key that is written
    twice: YAML itself would silently keep the last."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return a node's value. Raises ScenarioError naming the line of an impossible value, such as 31
        February.
        """
        if isinstance(node, yaml.ScalarNode) and not is_text(node.value):
            raise ScenarioError(
                f"line {node.start_mark.line + 1}: {node.value!r:.60} has half of a character, "
                "which UTF-8 cannot encode"
            )
        try:
            return super().construct_object(node, deep=deep)
        except ScenarioError:
            raise
        except (ValueError, KeyError):
            kind = node.tag.rpartition(":")[2]
            raise ScenarioError(
                f"line {node.start_mark.line + 1}: {node.value!r:.60} cannot be read as a {kind}"
            ) from None

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Put in place of ``<<`` the keys of the mappings that it merges; a key of the node's own holds.

        Raises ScenarioError for what is no mapping, and for more than :data:`VALUES_LIMIT` keys.
        """
        own = [pair for pair in node.value if pair[0].tag != _MERGE]
        if len(own) == len(node.value):
            return
        count = 0
        pairs: dict[Any, tuple[yaml.Node, yaml.Node]] = {}
        for key_node, value_node in reversed(node.value):
            if key_node.tag != _MERGE:
                continue
            parts = (
                value_node.value
                if isinstance(value_node, yaml.SequenceNode)
                else [value_node]
            )
            # Of several, the first holds.
            for part in reversed(parts):
                line = f"line {key_node.start_mark.line + 1}"
                if not isinstance(part, yaml.MappingNode):
                    raise ScenarioError(
                        f"{line}: << should merge a mapping, or a list of mappings"
                    )
                self.flatten_mapping(part)
                count += len(part.value)
                if count > VALUES_LIMIT:
                    raise ScenarioError(
                        f"{line}: << merges more than {VALUES_LIMIT} keys"
                    )
                pairs.update((_key_of(pair[0]), pair) for pair in part.value)
        mine = {_key_of(pair[0]) for pair in own}
        node.value = [*(pair for key, pair in pairs.items() if key not in mine), *own]


_MERGE = "tag:yaml.org,2002:merge"


def _key_of(node: yaml.Node) -> Any:
    return (node.tag, node.value) if isinstance(node, yaml.ScalarNode) else id(node)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: dict[Any, int] = {}
    for key_node, _ in node.value:
        if key_node.tag == _MERGE:
            continue
        key = loader.construct_object(key_node, deep=True)
        line = key_node.start_mark.line + 1
        if not isinstance(key, str | int | float):
            raise ScenarioError(f"line {line}: a key should be a text, not {key!r}")
        if key in seen:
            raise ScenarioError(
                f"line {line}: the key {key!r} is also on line {seen[key]}"
            )
        seen[key] = line
    mapping: dict[Any, Any] = loader.construct_mapping(node, deep=True)
    return mapping


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_text(path: str | Path, limit: int = FILE_LIMIT) -> str:
    """Return the text in a file or pipe, at most ``limit`` bytes. Raises ScenarioError, one line naming the
    file.
    """
    try:
        data = read_bytes(Path(path), limit=limit, pipe=True)
    except ValueError as error:
        name, _, reason = str(error).rpartition(": ")
        raise ScenarioError(f"{name}: cannot be read: {reason}") from None
    try:
        # As text files are read everywhere: whichever way its lines end.
        return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8").read()
    except UnicodeDecodeError:
        raise ScenarioError(f"{path}: cannot be read: it is not UTF-8 text") from None


def parse_document(text: str, path: str) -> Any:
    """Return the value of a text in YAML, read strictly. Raises ScenarioError."""
    try:
        raw = _read(text)
        count = _values_in(raw, {})
    except ValueError as error:
        raise ScenarioError(f"{path}: {error}") from None
    if count > VALUES_LIMIT:
        raise ScenarioError(
            f"{path}: its aliases make {count} values of it, {VALUES_LIMIT} are allowed"
        )
    return raw


def parse_yaml(text: str, path: str) -> dict[str, Any]:
    """Return the mapping in a scenario file's text. Raises ScenarioError."""
    raw = parse_document(text, path)
    if not isinstance(raw, dict):
        raise ScenarioError(
            f"{path}: a scenario is a mapping with name, description, fabric, training"
        )
    return raw


def _read(text: str, not_yaml: str = "") -> Any:
    """Return the value that a text is in YAML. Raises ValueError."""
    if not is_text(text):
        raise ValueError(f"{not_yaml}half of a character, which UTF-8 cannot encode")
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"{not_yaml}{_yaml_problem(error)}") from None
    except RecursionError:
        raise ValueError("its mappings and lists are nested too deep") from None


def read_sets(texts: Iterable[str]) -> dict[str, Any]:
    """Return the values of ``PATH=VALUE`` by dotted path, each value read as YAML reads it.

    Raises ValueError, which begins with ``--set``, the option of commands that gives them.
    """
    values: dict[str, Any] = {}
    for text in texts:
        path, equals, value = text.partition("=")
        if not (path and equals):
            raise ValueError(
                f"--set: {text!r} is not PATH=VALUE, such as training.iterations=5"
            )
        with at_key(f"--set {path}"):
            values[path] = _read(value, f"{value!r:.60} is not YAML: ")
    return values


def _values_in(value: Any, counted: dict[int, int]) -> int:
    """Return the number of values in a value, with those that an alias (``*name``) repeats counted each time.

    Raises ValueError for a value that is within itself.
    """
    if not isinstance(value, dict | list):
        return 1
    if (count := counted.get(id(value))) is not None:
        if not count:
            raise ValueError("an alias stands for what it is a part of")
        return count
    counted[id(value)] = 0
    inner = value.values() if isinstance(value, dict) else value
    counted[id(value)] = total = 1 + sum(_values_in(entry, counted) for entry in inner)
    return total


def resolved(value: Any, where: str, parameters: Any) -> Any:
    """Return ``value``, at ``where``, with every ``$name`` replaced. Raises ValueError naming the key."""
    if isinstance(value, dict):
        return {k: resolved(v, f"{where}.{k}", parameters) for k, v in value.items()}
    if isinstance(value, list):
        return [resolved(v, f"{where}[{i}]", parameters) for i, v in enumerate(value)]
    if not (isinstance(value, str) and value.startswith("$")):
        return value
    name = value[1:]
    entry = parameters.get(name) if isinstance(parameters, dict) else None
    if not isinstance(entry, dict) or "value" not in entry:
        raise ValueError(f"{where}: there is no parameter {name}")
    return entry["value"]


def references_in(value: Any) -> set[str]:
    """Return the names of the parameters that a value refers to."""
    if isinstance(value, dict):
        return {name for inner in value.values() for name in references_in(inner)}
    if isinstance(value, list):
        return {name for inner in value for name in references_in(inner)}
    return {value[1:]} if isinstance(value, str) and value.startswith("$") else set()


def _yaml_problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"line {mark.line + 1}: {problem}" if mark else str(problem)


def joined(steps: Iterable[str | int]) -> str:
    """Return a dotted path from its keys and positions."""
    path = ""
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f"{'.' if path else ''}{step}"
    return path


#: What pydantic calls after Python's types, in words of the file.
_SHAPES = {
    "model_type": "should be a mapping",
    "dict_type": "should be a mapping",
    "tuple_type": "should be a list",
    "list_type": "should be a list",
    "int_parsing": "should be a whole number",
    "int_from_float": "should be a whole number",
    "float_parsing": "should be a number",
    "string_type": "should be a text",
}


#: How parts of a location begin that pydantic adds and no file has.
_NO_KEYS = ("function-", "constrained", "[key]", KIND_TAG)


def first_problem(
    error: ValidationError,
    written: Any,
    parameters: Any,
    where: str = "",
    near: Callable[[Sequence[str | int]], str] = lambda _: "",
) -> str:
    """Return the first problem of a section as ``key: what is wrong``, and the parameter that the value came
    from.

    ``written``: the section before ``$name`` was replaced; ``where``: its own key; ``near``: returns the end
    of the message about an unknown key, by its place in the types.
    """
    problems = error.errors(include_url=False)
    # An unknown key is most often a misspelt one: say so rather than that the right one is missing. But
    # which keys an event has follows from what it does.
    unknown = next((p for p in problems if p["type"] == "extra_forbidden"), problems[0])
    first = next(
        (
            p
            for p in problems
            if p["type"] == "literal_error" and p["loc"][-1:] == ("do",)
        ),
        unknown,
    )
    location = tuple(
        part for part in first["loc"] if not str(part).startswith(_NO_KEYS)
    )
    key = joined((where, *location) if where else location)
    if first["type"] == "extra_forbidden":
        return f"{key}: unknown key{near(first['loc'])}"
    if first["type"] == "literal_error" and location[-1:] == ("do",):
        there = first["ctx"]["expected"].replace("'", "").replace(" or ", ", ")
        return f"{key}: {first['input']!r:.60} is no do; there are {there}"
    if first["type"] == "missing":
        return f"{key}: missing"
    origin = ""
    for part in (*location, None):
        if (
            isinstance(written, str)
            and written.startswith("$")
            and written[1:] in (parameters or ())
        ):
            origin = f" (from parameters.{written[1:]})"
            written = parameters[written[1:]]["value"]
        if part is None:
            break
        try:
            written = written[part]
        except (KeyError, IndexError, TypeError):
            written = None
            break
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    message = _SHAPES.get(first["type"], message)
    if first["type"] == "string_pattern_mismatch":
        message = in_words(first["ctx"]["pattern"])
    plain = (
        isinstance(written, str | int | float)
        and "not" not in message
        and str(written) not in message
    )
    # The value of a wrong key is not shown.
    plain = plain and "[key]" not in first["loc"]
    shown = f", not {written!r}" if plain else ""
    return f"{key}: {message[0].lower()}{message[1:]}{shown}{origin}"
