"""Optical switches of Calient: TL1 and REST."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(name="calient", requires=("http", "tl1"))
