"""Links that lose, delay and damage frames, or go down and come back by themselves."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="impairments",
    fabric={"impaired": "link_keys:IMPAIRED"},
    devices={"impairments": "device:IMPAIRED_LINKS"},
    events=("records",),
    metrics=("metrics",),
    sections=("section:impaired",),
)
