"""Records of a run with grids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ringlight.experiments.record.events import Record


class GridLit(Record, event="grid"):
    """A grid as the controller shows it while the jobs run."""

    grid: Mapping[str, Any]
