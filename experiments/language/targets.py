"""Targets of events: what each event is done to, as a scenario file names it."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationInfo

from ringlight.experiments.language.light_events import light_events
from ringlight.experiments.language.plan import Target
from ringlight.fabric.keys import device_words, link_keys

#: What an event's target may be, with the names that follow.
TARGETS: Mapping[str, tuple[str, ...]] = {
    "controller": (),
    "switch": ("NAME",),
    "agent": ("GPU",),
    **dict.fromkeys(device_words(), ("NAME",)),
    "server agent": (),
    "worker": ("JOB", "RANK"),
    "link": ("PORT", "PORT"),
    "gpu": ("GPU",),
    "nic": ("GPU",),
    "job": ("JOB",),
    **{kind.target: kind.names for kind in light_events().values()},
}


#: What each event is done to: the kinds of target, the first in an example.
TARGETS_OF: Mapping[str, tuple[str, ...]] = {
    "kill": (
        "controller",
        "switch",
        "agent",
        *device_words(),
        "server agent",
        "worker",
    ),
    "cut": ("link",),
    **{keys.do: ("link",) for keys in link_keys()},
    **{do: (kind.target,) for do, kind in light_events().items()},
    "restore": ("link", "gpu", "nic"),
    "lose": ("gpu", "nic"),
    "cancel": ("job",),
    "start": ("job",),
}


def parse_target(text: object, values: ValidationInfo) -> Target:
    """Return the target that a text such as ``switch ocs0`` names, of the event with these ``values``.

    Raises ValueError naming what a target may be.
    """
    words = text.split() if isinstance(text, str) else []
    kind = "server agent" if words[:2] == ["server", "agent"] else " ".join(words[:1])
    names = tuple(words[len(kind.split()) :])
    if kind not in TARGETS:
        raise ValueError(
            f"{text!r} is no target; {_taken(values.data.get('do'), words)}"
        )
    if len(names) != len(TARGETS[kind]):
        raise ValueError(f"{text!r} is not {' '.join((kind, *TARGETS[kind]))}")
    return Target(kind, names)


def _taken(do: str | None, words: list[str]) -> str:
    """Return what an event takes as its target, and what was meant if that is plain."""
    kinds = TARGETS_OF.get(do or "")
    if kinds is None:
        return f"there are {', '.join(TARGETS)}"
    forms = ", ".join(" ".join((kind, *TARGETS[kind])) for kind in kinds)
    ports = len(words) == 2 and all(":" in word for word in words)
    meant = f"; write link {' '.join(words)}" if ports and "link" in kinds else ""
    return f"{do} takes {forms}{meant}"
