"""Records as lines of a file, one writer and one reader; and as a table."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ringlight.experiments.language.text import ScenarioError, read_text
from ringlight.experiments.record import events, lab_records, light_records
from ringlight.experiments.record.events import KINDS, Record
from ringlight.experiments.record.lab_records import ProcessBack, ProcessEnded
from ringlight.fabric.extension import loaded
from ringlight.fabric.text import HalfCharacterError, parse_json

#: Modules with the core's kinds of records.
_CORE = (events, light_records, lab_records)


@cache
def kinds() -> Mapping[str, type[Record]]:
    """Return every kind of record by the name of its event: those here and those of extensions."""
    loaded("events")
    return KINDS


def table(*modules: str) -> str:
    """Return the kinds of records of some modules as a table in Markdown: the core's, if none is named, for
    docs/records.md, an extension's for its page."""
    chosen = modules or tuple(module.__name__ for module in _CORE)
    lines = ["| event | fields besides `t`, `event`, `run` | |", "|---|---|---|"]
    for name, kind in kinds().items():
        if kind.__module__ not in chosen:
            continue
        own = [
            f"`{f.name}`"
            for f in dataclasses.fields(kind)
            if f.name not in ("t", "run")
        ]
        words = " ".join((kind.__doc__ or "").replace("``", "`").split())
        lines.append(f"| `{name}` | {', '.join(own)} | {words} |")
    return "\n".join(lines) + "\n"


def line_of(record: Record) -> str:
    """Return the record as a line of JSON, with its end of line."""
    values = {"t": record.t, "event": record.event, **vars(record)}
    return json.dumps(values, separators=(",", ":")) + "\n"


def record_of(document: Mapping[str, Any]) -> Record | None:
    """Return the record that an object stands for; None for an unknown kind.

    Keys that the kind does not have are left out. Raises TypeError for a missing key.
    """
    kind = kinds().get(document["event"])
    if kind is None:
        return None
    known = kind.__dataclass_fields__
    return kind(**{key: value for key, value in document.items() if key in known})


def _as_now(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Convert an object that an earlier version wrote. Return the objects that are written now in its
    place."""
    fields: dict[str, Any]
    if document["event"] == "switch_restarted":
        fields = {
            "kind": "optical switch",
            "name": document["switch"],
            "how": "how is not on record",
        }
    elif document["event"] == "controller_restarted":
        fields = {"kind": "controller", "name": "controller", "how": document["reason"]}
    else:
        return [document]
    fields |= {key: document[key] for key in ("t", "run")} | {
        "planned": False,
        "away_s": 0.0,
    }
    both = [{**fields, "event": kind.event} for kind in (ProcessEnded, ProcessBack)]
    return both * int(document.get("times", 1))


def read_records(path: Path) -> list[Record]:
    """Return all records of a file; a last line that a crash cut short is left out.

    Raises ScenarioError naming the file, and the line if any other line is broken.
    """
    lines = read_text(path).splitlines()
    records: list[Record] = []
    for number, line in enumerate(lines, start=1):
        try:
            of_line = [record_of(document) for document in _as_now(parse_json(line))]
        except HalfCharacterError as error:
            raise ScenarioError(f"{path}: line {number}: {error.msg}") from None
        except json.JSONDecodeError:
            if number == len(lines):
                break
            raise ScenarioError(f"{path}: line {number} is not JSON") from None
        except RecursionError:
            raise ScenarioError(f"{path}: line {number} is nested too deep") from None
        except (KeyError, TypeError) as error:
            message = str(error).partition("__init__() ")[2] or f"lacks {error}"
            known = "another version of ringlight may have made it"
            raise ScenarioError(f"{path}: line {number}: {message}; {known}") from None
        records += [record for record in of_line if record is not None]
    return records
