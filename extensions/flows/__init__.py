"""Flows as a file gives them: source, destination, bytes and start; completion times over any fabric."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="flows",
    requires=("sip_ml",),
    commands="cli:register",
    metrics=("metrics",),
    sections=("section:flows", "section:flows_beside"),
    events=("records",),
    jobs={"flows": "source:FLOWS"},
)
