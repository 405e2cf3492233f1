"""The key ``grids`` of a fabric file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from ringlight.extensions.oddl.grid import Grid, make_grid, plugged_grid
from ringlight.fabric.keys import Assembly, FabricKey
from ringlight.fabric.topology import Fabric
from ringlight.fabric.values import Duration, Name, Rate, Strict, WssSpec


class GridWssSpec(WssSpec):
    """``lcos``: liquid crystal on silicon."""

    profile: Literal["lcos", "ideal"] = "lcos"


class GridSpec(Strict):
    """``rows`` × ``columns`` nodes, each with an O-NIC on its row's WSS and its column's WSS.

    A grid named n has GPUs n0, n1, … row by row, row switches n-r0, … and column switches n-c0, …; each
    node is a server of its own. One row (or one column) is one WSS for all, and one port for each node.
    ``wavelengths``: channels of every WSS (without it, as many as its longer side; with fewer, the light of
    a job is set for its collective). ``tuning``: time a transmitter takes to change its wavelength.
    """

    rows: int = Field(ge=1, le=512)
    columns: int = Field(ge=1, le=512)
    gpu: str = Field(min_length=1)
    rate: Rate
    queue: Duration = 0.02
    wavelengths: int | None = Field(default=None, ge=1, le=512)
    tuning: Duration = 10.5e-9
    wss: GridWssSpec = GridWssSpec()

    @model_validator(mode="after")
    def _has_nodes_to_join(self) -> GridSpec:
        if self.rows * self.columns < 2:
            raise ValueError("a grid needs at least 2 nodes")
        return self


def _add(specs: Mapping[str, GridSpec], assembly: Assembly) -> None:
    """Plug grids in."""
    for name, spec in specs.items():
        grid = make_grid(name, spec.rows, spec.columns, spec.wavelengths)
        first = len(assembly.gpus)
        made = plugged_grid(
            grid, spec.gpu, spec.rate, spec.queue, spec.tuning, spec.wss.made(), first
        )
        assembly.plug("grids", name, grid, made)


def _document(fabric: Fabric) -> list[Grid]:
    return list(fabric.parts.get("grids", {}).values())


GRIDS = FabricKey(
    dict[Name, GridSpec],
    add=_add,
    documents=list[Grid],
    document=_document,
    columns={
        "grid": "name",
        "rows": "rows",
        "columns": "columns",
        "wavelengths": "wavelengths",
    },
    per_run=("tuning",),
)
