"""Effects on frames of links that lose, delay or damage frames."""

from __future__ import annotations

from collections.abc import Mapping

from ringlight.experiments.analysis.metrics import Context, metric
from ringlight.extensions.impairments.records import LinksCounted

_SAID = {
    "frames_lost": "Frames that impaired links lost, over all that came to them while up",
    "frames_damaged": "Frames with bit errors on impaired links, over those that were not lost there",
    "frames_down": "Frames that came to impaired links while these were down",
}


@metric("1", of="run", makes=_SAID)
def impaired(context: Context) -> Mapping[str, float]:
    """Return the effects of links that lose, delay or damage frames, by metric; empty if no frame reached
    such a link."""
    links = [link for record in context.run.of(LinksCounted) for link in record.links]
    came, lost, damaged, down = (
        sum(link[key] for link in links)
        for key in ("frames", "lost", "damaged", "down")
    )
    if not came:
        return {}
    up = came - down
    values = {"frames_lost": lost / up if up else 0.0, "frames_down": float(down)}
    return values | {"frames_damaged": damaged / (up - lost) if up > lost else 0.0}
