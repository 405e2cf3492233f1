"""Traces of jobs that share thousands of GPUs for months, replayed under policies."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="cluster",
    metrics=("metrics",),
    sections=("section:traces", "section:beside_replay"),
)
