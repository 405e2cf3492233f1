"""A grid of wavelength-selective switches whose light O-NICs ask for (ODDL, Li et al., 2024)."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="oddl",
    fabric={"grids": "grid_keys:GRIDS"},
    planes={"grid": "plane_kind:GRID"},
    events=("records",),
    metrics=("metrics",),
    sections=("section:light",),
)
