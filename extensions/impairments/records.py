"""Records of a run with links that lose, delay or damage frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ringlight.experiments.record.events import Record


class LinksCounted(Record, event="impaired"):
    """Effects on the frames of a run of links that lose, delay or damage frames, by direction. ``from``
    and ``to``: its ports. The frames that arrived and their bytes, and the numbers of frames that were
    ``lost``, ``damaged``, or arrived while the link was ``down``."""

    links: Sequence[Mapping[str, Any]]
