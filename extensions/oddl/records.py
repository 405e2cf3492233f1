"""Records of a run with grids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from ringlight.experiments.record.light_records import PlaneShown


class GridLit(PlaneShown, event="grid"):
    """A grid as the controller shows it while the jobs run."""

    plane_kind: ClassVar[str] = "grid"
    moment: ClassVar[Literal["release", "end"]] = "release"

    grid: Mapping[str, Any]

    @classmethod
    def shown(cls, plane: Mapping[str, Any], changes: list[dict[str, Any]]) -> dict[str, Any]:
        return {"grid": plane}
