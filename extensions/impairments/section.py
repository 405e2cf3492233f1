"""Links that lose, delay or damage frames: what they were to do to them, and what they did."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ringlight.experiments.report.page import quiet, table_of, tag, text
from ringlight.experiments.report.sections import section
from ringlight.experiments.report.view import Draw, View
from ringlight.experiments.report.words import count
from ringlight.extensions.impairments.effect import KEY, Impairments
from ringlight.extensions.impairments.records import LinksCounted
from ringlight.fabric.link_effects import LinkEffect
from ringlight.fabric.parts import Port

#: Standard deviations by which a share may be off its setting and still be chance.
CHANCE = 3.0


@dataclass(frozen=True)
class _Line:
    arm: str
    link: Mapping[str, Any]
    set: LinkEffect | None

    def part(self, key: str, of: int, share: float | None) -> str:
        """Return a share of frames in words, with its setting if the setting never changed; empty without
        frames."""
        if not of:
            return ""
        share_seen = self.link[key] / of
        if share is None:
            return f"{100 * share_seen:.3g} %"
        off = abs(self.link[key] - share * of) > CHANCE * math.sqrt(
            max(of * share * (1 - share), 0.25)
        )
        return f"{100 * share_seen:.3g} % of {100 * share:.3g} %{' (not by chance)' if off else ''}"

    @property
    def lost(self) -> str:
        share = self.set.loss if isinstance(self.set, Impairments) else None
        return self.part("lost", self.link["frames"] - self.link["down"], share)

    @property
    def damaged(self) -> str:
        return self.part(
            "damaged", self.link["frames"] - self.link["down"] - self.link["lost"], None
        )


def _lines(view: View) -> Iterator[_Line]:
    for run in view.first.values():
        own = run.plan.setting.fabric.link_at
        events = {
            str(event.target) for event in run.plan.events if KEY in event.effects
        }
        for record in run.of(LinksCounted):
            for link in record.links:
                setting = own.get(Port.parse(link["to"]))
                changed = (
                    setting is None
                    or f"link {setting.a} {setting.b}" in events
                    or f"link {setting.b} {setting.a}" in events
                )
                effect = (
                    None
                    if setting is None or changed
                    else setting.effects.get(KEY, Impairments())
                )
                yield _Line(run.plan.title, link, effect)


@section("controllers", "Impaired links", needs=("frames_lost",))
def impaired(view: View, draw: Draw) -> str:
    """Return HTML that shows the effects on frames of the impaired links of first runs, by direction."""
    shown = table_of(
        list(_lines(view)),
        [
            ("arm", lambda line: text(line.arm)),
            ("from", lambda line: text(line.link["from"])),
            ("to", lambda line: text(line.link["to"])),
            ("frames", lambda line: count(line.link["frames"])),
            ("lost", lambda line: text(line.lost)),
            ("damaged", lambda line: text(line.damaged)),
            ("while down", lambda line: count(line.link["down"])),
        ],
        9,
    )
    return shown and shown + quiet(
        "Frames that came to a link, and shares: lost, of all while it was up, beside the setting where "
        f"no event changed it; damaged by bit errors, of the rest {tag(view.label)}."
    )
