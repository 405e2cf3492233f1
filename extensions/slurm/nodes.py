"""The slurmd of a GPU: its command and its environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

#: Variables by which the SPANK plug-in knows the namespace of a node's GPU, and the GPU.
NAMESPACE, GPU = "RINGLIGHT_NETNS", "RINGLIGHT_GPU"

#: Folder in which network namespaces have names, by the convention of iproute2.
NAMESPACES = Path("/run/netns")


def command(directory: Path, gpu: str) -> list[str]:
    """Return the command of a GPU's slurmd, in the foreground. ``directory``: of slurm.conf."""
    return ["/usr/sbin/slurmd", "-D", "-N", gpu, "-f", f"{directory}/slurm.conf"]


def environment(base: Mapping[str, str], gpu: str, namespace: str) -> dict[str, str]:
    """Return the environment of a GPU's slurmd, which its tasks' plug-in reads. ``namespace``: a path."""
    return {**base, NAMESPACE: namespace, GPU: gpu}
