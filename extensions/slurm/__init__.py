"""Slurm over a lab: its configuration, claims for its jobs, and a cluster with a node at each GPU."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="slurm",
    requires=("interchange", "cluster"),
    commands="commands:register",
    processes={"slurm": "program:SLURM"},
    controller=("health:add", "follower_routes:add"),
    metrics=("experiment_metrics",),
    sections=("experiment_section:queue",),
    events=("experiment_records",),
    jobs={"slurm": "experiment:SLURM"},
)
