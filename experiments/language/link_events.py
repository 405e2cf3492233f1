"""Keys of events that say what a link does to frames from then on, which extensions add."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import create_model

from ringlight.experiments.language.light_events import light_events
from ringlight.fabric.keys import link_keys
from ringlight.fabric.link_effects import Effects
from ringlight.fabric.values import Strict

#: All that events do, in the order in which messages list it.
DO = (
    *("regroup", "circuits", *light_events()),
    *("kill", "cut", "restore", "lose", "disturb"),
    *(keys.do for keys in link_keys()),
    *("cancel", "start"),
)


class _LinkEventKeys(Strict):
    @property
    def effects(self) -> Effects:
        """Return what the event says that a link does to frames, by key."""
        given = {keys: getattr(self, keys.key) for keys in link_keys()}
        return {
            keys.key: keys.effect(value)
            for keys, value in given.items()
            if value is not None
        }


if TYPE_CHECKING:
    LinkEventKeys = _LinkEventKeys
else:
    LinkEventKeys = create_model(
        "LinkEventKeys",
        __base__=_LinkEventKeys,
        **{keys.key: (keys.spec | None, None) for keys in link_keys()},
    )
