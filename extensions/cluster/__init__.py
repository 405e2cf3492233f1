"""Traces of jobs that share thousands of GPUs for months, replayed under policies."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="cluster",
    requires=("sip_ml",),
    metrics=("metrics",),
    sections=("section:traces", "section:beside_replay"),
    events=("records",),
    jobs={"trace": "source:TRACES"},
)
