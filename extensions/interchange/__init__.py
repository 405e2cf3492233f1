"""Fabrics in the formats of others, out and in: Slurm, InfraGraph, topograph, NCCL, nvidia-smi, GraphML, DOT.

``hostlists``, ``slurm_topology`` and ``slurm_yaml`` are Slurm's files.
"""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(name="interchange", commands="commands:register")
