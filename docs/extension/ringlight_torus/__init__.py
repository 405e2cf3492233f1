"""Torus cubes joined by an optical switch: an example of an extension."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="torus",
    fabric={"torus": "fabric_key:TORUS"},
    metrics=("metrics",),
    sections=("section:torus",),
)
