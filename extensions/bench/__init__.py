"""Bandwidths of collectives by size, as nccl-tests prints them, and labs for other people's tests."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="bench",
    commands="cli:register",
    methods={"Lab.bench": "fixture_lab:bench", "Lab.slow_links": "fixture_lab:slow"},
)
