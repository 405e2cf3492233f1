"""Bodies of the REST API that change light, and the generation of the light that they expect."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Header
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    WithJsonSchema,
)

from ringlight.controller.errors import InvalidError
from ringlight.controller.rest.body import Body
from ringlight.controller.rest.requests import Channel, Label, Name, PortNumber
from ringlight.fabric.crossconnect import Mode


class Expecting(Body):
    """Change of a document of light. ``expect``: generation of the document that the caller has read."""

    expect: int | None = Field(None, ge=0, le=2**53, strict=True)


_TAG = re.compile(r'(?:W/)?"([0-9]{1,16})"|\*')
#: ``"17"``, as the header ``ETag`` of a document of light has it. A list, to see a second header.
IfMatch = Annotated[
    list[str] | None,
    Header(alias="If-Match"),
    WithJsonSchema({"type": "string", "pattern": f"^(?:{_TAG.pattern})$"}),
]


def expected(if_match: Sequence[str] | None, *bodies: int | None) -> int | None:
    """Return the generation of the light that a caller has read, as the header or a body names it; None
    if neither does.

    Raises InvalidError if they name two, or the header none.
    """
    named = {number for number in bodies if number is not None}
    for header in if_match or ():
        tag = _TAG.fullmatch(header)
        if tag is None:
            raise InvalidError(f'If-Match: {header} is not one ETag, such as "17"')
        named |= set() if tag[1] is None else {int(tag[1])}
    if len(named) > 1:
        raise InvalidError("If-Match, expect and generation name different generations")
    return named.pop() if named else None


class OneCrossConnect(Expecting):
    """``PUT …/cross-connects/{ingress}``. ``wavelength``: channel index, on a WSS."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"egress": 15}]})

    egress: PortNumber
    wavelength: Channel | None = None
    name: Label | None = None
    mode: Mode = Mode.UPDATE
    dry_run: StrictBool = False


class CrossConnectEntry(Body):
    ingress: PortNumber
    egress: PortNumber
    wavelength: Channel | None = None
    name: Label | None = None


class CrossConnectSet(Expecting):
    """``PUT …/cross-connects``."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"cross_connects": [{"ingress": 1, "egress": 15}]}]
        }
    )

    mode: Mode = Mode.UPDATE
    cross_connects: list[CrossConnectEntry] = Field(max_length=16_384)
    dry_run: StrictBool = False


class SwitchTarget(Body):
    """Cross-connects that one optical switch must carry, in this mode; nothing at the
    ``delete`` ingresses.
    """

    mode: Mode = Mode.UPDATE
    cross_connects: list[CrossConnectEntry] = Field(default=[], max_length=16_384)
    delete: list[PortNumber] = Field(default=[], max_length=16_384)


class LightChange(Expecting):
    """``POST /v1/optical-changes``: what some optical switches shall carry, by name."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "optical_switches": {
                        "ocs0": {"cross_connects": [{"ingress": 1, "egress": 15}]}
                    }
                }
            ]
        }
    )

    optical_switches: dict[str, SwitchTarget] = Field(min_length=1, max_length=4096)
    dry_run: StrictBool = False


def _ends(circuit: Any) -> Any:
    """Return the ends of a circuit as ``GET /v1/circuits`` has it; else the value as it is."""
    return circuit.get("ends", circuit) if isinstance(circuit, dict) else circuit


#: A pair of ends (``["g0", "tor0:1"]``), or a circuit as ``GET /v1/circuits`` has it.
CircuitEnds = Annotated[
    tuple[Name, Name],
    BeforeValidator(_ends),
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "array",
                    "items": {"type": "string"},
                    "minItems": 2,
                    "maxItems": 2,
                },
                {
                    "type": "object",
                    "properties": {
                        "ends": {
                            "type": "array",
                            "items": {"type": "string"},
                            "minItems": 2,
                            "maxItems": 2,
                        }
                    },
                    "required": ["ends"],
                },
            ]
        }
    ),
]


class Circuits(Expecting):
    """``PUT /v1/circuits``: the duplex circuits that must be lit.

    ``generation`` is an ``expect``, so the answer of ``GET /v1/circuits`` is a body, too.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"circuits": [["g0", "tor0:1"], ["g1", "tor0:2"], ["g2", "tor1:1"]]}
            ]
        }
    )

    circuits: list[CircuitEnds] = Field(max_length=16_384)
    generation: int | None = Field(None, ge=0, le=2**53, strict=True)
    dry_run: StrictBool = False


class CircuitsPatch(Expecting):
    """``PATCH /v1/circuits``: circuits to add and to remove; the others stay.

    The second end of a circuit to add is a port, or a packet switch: then any free port of it. The circuit at
    the first end gives way.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"remove": [["g0", "tor0:1"]]}, {"add": [["g0", "tor0"]]}]
        }
    )

    add: list[CircuitEnds] = Field(default=[], max_length=16_384)
    remove: list[CircuitEnds] = Field(default=[], max_length=16_384)
    dry_run: StrictBool = False
