"""Slurm over a lab: its configuration, claims for its jobs, and a cluster with a node at each GPU."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="slurm",
    requires=("cluster",),
    events=("experiment_records",),
    jobs={"slurm": "experiment:SLURM"},
)
