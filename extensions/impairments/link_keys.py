"""The keys of a link, and the key ``impaired`` of a fabric file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field, model_validator

from ringlight.extensions.impairments.effect import KEY, Impairments
from ringlight.fabric.keys import FabricKey, FindPort, LinkKeys
from ringlight.fabric.link_effects import Effects, acting
from ringlight.fabric.parts import Link, Port
from ringlight.fabric.values import Duration, Strict

#: Longest time of an impairment that a lab is asked for, seconds.
_LONGEST_S = 3600.0


class FlapSpec(Strict):
    """Nothing passes for ``down``, then everything for ``up``, and so on."""

    down: Annotated[Duration, Field(gt=0)]
    up: Annotated[Duration, Field(gt=0)]


class ImpairmentsSpec(Strict):
    """Impairments of frames on a link. ``loss``: share of frames; ``errors``: share of bits."""

    delay: Duration = 0.0
    jitter: Duration = 0.0
    loss: Annotated[float, Field(ge=0, le=1)] = 0.0
    errors: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    flap: FlapSpec | None = None

    @model_validator(mode="after")
    def _can_be(self) -> ImpairmentsSpec:
        self.impairments()
        return self

    def impairments(self) -> Impairments:
        down_s, up_s = (
            (0.0, 0.0) if self.flap is None else (self.flap.down, self.flap.up)
        )
        return Impairments(
            self.delay, self.jitter, self.loss, self.errors, down_s, up_s
        )


class ImpairedSpec(ImpairmentsSpec):
    """The same of a link that a short form or an entry of another key makes, by its two ``ends``."""

    ends: tuple[str, str]


@dataclass(frozen=True)
class AskedImpairments(Impairments):
    """Requested impairments of a link, with emulated times. Raises ValueError."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("delay_s", "down_s", "up_s"):
            if not getattr(self, name) <= _LONGEST_S:
                raise ValueError(f"{name} must be at most {_LONGEST_S:g} seconds")


def _impaired(
    entries: Sequence[ImpairedSpec], links: Sequence[Link], port: FindPort
) -> list[Link]:
    """Return the links with the impairments that are given for some by their ends.

    Raises ValueError for ends that no link joins, or that are named twice.
    """
    by_ends: dict[frozenset[Port], Effects] = {}
    known = {frozenset((link.a, link.b)) for link in links}
    for index, entry in enumerate(entries):
        where = f"impaired[{index}].ends"
        ends = frozenset(port(where, text) for text in entry.ends)
        if ends not in known:
            raise ValueError(f"{where}: no link joins {' and '.join(entry.ends)}")
        if ends in by_ends:
            raise ValueError(f"{where}: {' and '.join(entry.ends)} are named twice")
        by_ends[ends] = {KEY: entry.impairments()}
    return [
        replace(
            link,
            effects=acting(
                {**link.effects, **by_ends.get(frozenset((link.a, link.b)), {})}
            ),
        )
        for link in links
    ]


IMPAIRED = FabricKey(
    tuple[ImpairedSpec, ...],
    links=_impaired,
    link_keys=LinkKeys(
        ImpairmentsSpec, ImpairmentsSpec.impairments, "impair", KEY, AskedImpairments
    ),
)
