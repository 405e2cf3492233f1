"""Partitions of a Slurm cluster over a fabric, each with one mode, and the names of its nodes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

#: ``lead``: light follows Slurm, as a prolog claims the GPUs of each job. ``follow``: Slurm follows light, as
#: its topology file names the switch that each GPU's light reaches. ``stand``: neither knows of the other.
Mode = Literal["lead", "follow", "stand"]

#: A name that Slurm's hostlists take for one node.
_NODE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
_PARTITION = re.compile(r"[A-Za-z0-9_-]{1,64}")


class SlurmError(RuntimeError):
    """Slurm cannot be configured or used; one line with the reason."""


@dataclass(frozen=True)
class Partition:
    """A partition of GPUs, each of which is the node of its name. ``max_nodes``: of a job; None: no limit."""

    name: str
    mode: Mode
    nodes: tuple[str, ...]
    max_nodes: int | None = None


def check_node_names(gpus: Iterable[str]) -> None:
    """Raise SlurmError for the first GPU whose name cannot be that of a node."""
    for gpu in gpus:
        if not _NODE.fullmatch(gpu):
            raise SlurmError(
                f"GPU {gpu}: not a name of a Slurm node, which has letters, digits, - and _ after a letter"
            )


def parse_partitions(
    texts: Sequence[str], gpus: Sequence[str], max_nodes: int | None
) -> tuple[Partition, ...]:
    """Return the partitions that options describe, each ``NAME=MODE`` or ``NAME=MODE:GPU,GPU``.

    ``gpus``: of the fabric; a partition without a list has all. ``max_nodes``: of a job in a partition that
    leads. Raises SlurmError as :func:`check_partitions`, and for a text of another form.
    """
    partitions = []
    for text in texts:
        name, has_mode, rest = text.partition("=")
        mode, has_nodes, nodes = rest.partition(":")
        if not has_mode or mode not in ("lead", "follow"):
            raise SlurmError(
                f"--partition {text}: not NAME=lead or NAME=follow, with :GPU,GPU for some GPUs only"
            )
        members = tuple(filter(None, nodes.split(","))) if has_nodes else tuple(gpus)
        partitions.append(_partition(name, mode, members, max_nodes))
    check_partitions(partitions, gpus)
    return tuple(partitions)


def _partition(
    name: str, mode: str, nodes: tuple[str, ...], max_nodes: int | None
) -> Partition:
    leads = mode == "lead"
    return Partition(
        name, "lead" if leads else "follow", nodes, max_nodes if leads else None
    )


def check_partitions(partitions: Sequence[Partition], gpus: Iterable[str]) -> None:
    """Raise SlurmError, one line that names the partition, for partitions that cannot be.

    A node in partitions of both modes is refused. In one of them Slurm waits for light that brings a job's
    nodes to one switch, and in the other light waits for the job's start.
    """
    known = set(gpus)
    check_node_names(known)
    names = [partition.name for partition in partitions]
    if not names:
        raise SlurmError(
            "no partition: name one with --partition NAME=lead or NAME=follow"
        )
    for partition in partitions:
        if not _PARTITION.fullmatch(partition.name):
            raise SlurmError(
                f"partition {partition.name!r}: not a name of letters, digits, - and _"
            )
        if names.count(partition.name) > 1:
            raise SlurmError(f"partition {partition.name}: named twice")
        if not partition.nodes:
            raise SlurmError(f"partition {partition.name}: no GPU")
        if unknown := sorted(set(partition.nodes) - known):
            raise SlurmError(
                f"partition {partition.name}: there is no GPU {unknown[0]}"
            )
        if max(map(partition.nodes.count, partition.nodes)) > 1:
            raise SlurmError(f"partition {partition.name}: a GPU is named twice")
    first: dict[str, Partition] = {}
    for partition in partitions:
        for node in partition.nodes:
            other = first.setdefault(node, partition)
            if other.mode != partition.mode:
                raise SlurmError(
                    f"node {node} is in partition {other.name} ({other.mode}) and in partition "
                    f"{partition.name} ({partition.mode}): a job there would wait for light that waits for the job"
                )


def most_at_a_switch(
    switches: Collection[str],
    gpus: Collection[str],
    optical: Collection[str],
    links: Iterable[Sequence[str]],
) -> int:
    """Return the largest number of GPUs that one packet switch can reach by light or cable.

    ``links``: both ends of each, by node. Raises SlurmError for a fabric without such a switch.
    """
    counts = dict.fromkeys(switches, 0)
    reached = {*gpus, *optical}
    for a, b in links:
        for end, other in ((a, b), (b, a)):
            if end in counts and other in reached:
                counts[end] += 1
    if not any(counts.values()):
        raise SlurmError(
            "no packet switch of this fabric reaches a GPU; claims need one"
        )
    return max(counts.values())


def most_of_document(fabric: Mapping[str, Any]) -> int:
    """Return :func:`most_at_a_switch` of a document of ``GET /v1/fabric``. Raises SlurmError."""
    kinds = ("packet_switches", "gpus", "optical_switches")
    switches, gpus, optical = (
        {part["name"] for part in fabric[kind]} for kind in kinds
    )
    links = [
        [port.partition(":")[0] for port in link["ends"]] for link in fabric["links"]
    ]
    return most_at_a_switch(switches, gpus, optical, links)
