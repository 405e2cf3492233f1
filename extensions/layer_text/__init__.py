"""Workload texts of ASTRA-sim 1.0 and of SimAI, with a line for each layer of a model."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(name="layer_text", formats=("format:LAYER_TEXT",))
