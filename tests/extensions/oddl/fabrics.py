"""Grids that several tests share."""

from __future__ import annotations

from ringlight.fabric.building import build_fabric
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.topology import Fabric


def grid_fabric(rows: int, columns: int, **values: object) -> Fabric:
    """A grid n. ``values``: more keys of it."""
    grid = {
        "rows": rows,
        "columns": columns,
        "gpu": "titan-v",
        "rate": "100 Gbit/s",
        **values,
    }
    return build_fabric(FabricSpec.model_validate({"grids": {"n": grid}}))
