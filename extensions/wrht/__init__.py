"""Rings of wavelengths whose light is set between the steps of a collective (WRHT, Dai et al., 2022)."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="wrht",
    fabric={"rings": "ring_keys:RINGS"},
    planes={"ring": "plane_kind:RING"},
    collectives={"wrht": "collective:WRHT"},
    events=("records",),
    metrics=("metrics",),
    sections=("section:rings",),
    papers={"wrht": "paper"},
    worker=("collective", "schedule"),
)
