"""An experiment emulated and simulated, side by side: how far apart, which is off, and why."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="crosscheck",
    commands="cli:register",
    methods={"Study.crosscheck": "script:crosscheck"},
)
