"""Parts of a scenario as functions: fabrics, jobs and events. Each returns what the file would have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from pydantic import ValidationError

from ringlight.experiments.language.sections import near_key
from ringlight.experiments.language.spec import EventSpec, TrainingSpec
from ringlight.experiments.language.text import ScenarioError, first_problem
from ringlight.fabric.schema import FatTreeSpec, LeafSpineSpec
from ringlight.fabric.values import Strict

#: Name of the optical switch that ``ocs=True`` puts between GPUs and packet switches.
OCS = "ocs0"


def leaf_spine(
    leaves: int,
    gpus_per_leaf: int,
    rate: str,
    *,
    spines: int = 1,
    oversubscription: float = 1.0,
    gpu: str = "gpu",
    ocs: bool = False,
    spare_ports: int = 1,
    profile: str = "mems",
    **keys: Any,
) -> dict[str, Any]:
    """Return a fabric of GPUs g0, g1, … on leaf switches, each of which is joined to every spine switch.

    ``rate``: of a GPU's link, with its unit. ``oversubscription``: how many times slower a leaf's links to
    the spines are than those of its GPUs, all together. ``ocs``: the GPUs' fibres pass the optical switch
    ocs0 of this ``profile`` (times and losses), at which each leaf has ``spare_ports`` more. ``keys``: other
    keys of ``leaf_spine`` in a fabric file.

    Rates are texts such as ``40 Gbit/s``. Raises ScenarioError naming the argument.

    >>> leaf_spine(leaves=2, gpus_per_leaf=3, rate="40 Gbit/s", oversubscription=3)["leaf_spine"]["leaves"]
    2
    """
    tree = {
        "gpu": gpu,
        "leaves": leaves,
        "spines": spines,
        "gpus_per_leaf": gpus_per_leaf,
        "rate": rate,
        **({} if oversubscription == 1 else {"oversubscription": oversubscription}),
        **keys,
    }
    fabric: dict[str, Any] = {"leaf_spine": tree}
    if ocs:
        tree |= {"through": OCS, "spare_ports": spare_ports}
        faces = leaves * (2 * gpus_per_leaf + spare_ports)
        fabric["optical_switches"] = {OCS: {"size": faces, "profile": profile}}
    _check(LeafSpineSpec, tree, "leaf_spine")
    return fabric


def fat_tree(
    k: int,
    rate: str,
    *,
    gpus_per_edge: int | None = None,
    oversubscription: float = 1.0,
    gpu: str = "gpu",
    **keys: Any,
) -> dict[str, Any]:
    """Return a fabric of GPUs g0, g1, … on a fat tree of switches with ``k`` ports.

    ``rate``: of a GPU's link, with its unit. ``gpus_per_edge``: GPUs on each switch at the edge; k / 2 if
    left out. ``oversubscription`` and ``keys``: as of :func:`leaf_spine`. Raises ScenarioError naming the
    argument.

    >>> fat_tree(4, "25 Gbit/s")
    {'fat_tree': {'gpu': 'gpu', 'k': 4, 'rate': '25 Gbit/s'}}
    """
    tree = {
        "gpu": gpu,
        "k": k,
        "rate": rate,
        **({} if gpus_per_edge is None else {"gpus_per_edge": gpus_per_edge}),
        **({} if oversubscription == 1 else {"oversubscription": oversubscription}),
        **keys,
    }
    _check(FatTreeSpec, tree, "fat_tree")
    return {"fat_tree": tree}


def training(
    model: str = "vgg16",
    *,
    ranks: str | Iterable[str] | None = None,
    gpus: int | None = None,
    compute: str | None = None,
    gpu: str | None = None,
    batch: int = 28,
    iterations: int | None = None,
    samples: int | None = None,
    collective: str = "ring",
    start: Mapping[str, Any] | str | None = None,
    **keys: Any,
) -> dict[str, Any]:
    """Return a job that trains a model with data parallelism.

    ``ranks``: names of its GPUs in the order of its ranks, as a list or a text with spaces, or ``all``.
    ``gpus``: how many the controller is to choose, in place of ``ranks``; all GPUs if both are left out. GPU
    time of an iteration: ``compute``, a time with its unit, or ``gpu``, a column of the table of GPU times
    (maxwell-titan-x if both are left out). Length: ``iterations``, 20 if left out, or ``samples`` of a data
    set. ``start``: when it starts, as in a file. ``keys``: other keys of ``training`` in a file.

    Raises ScenarioError naming the argument.

    >>> training("resnet50", ranks="g0 g3", compute="200 ms")["ranks"]
    ['g0', 'g3']
    """
    if compute is None and gpu is None:
        gpu = "maxwell-titan-x"
    if iterations is None and samples is None:
        iterations = 20
    optional = {
        "compute": compute,
        "gpu": gpu,
        "iterations": iterations,
        "samples": samples,
    }
    settings = {
        "model": model,
        "batch": batch,
        "collective": collective,
        **{key: value for key, value in optional.items() if value is not None},
        **keys,
    }
    _check(TrainingSpec, settings, "training")
    return {
        **_ranks(ranks, gpus),
        "training": settings,
        **({} if start is None else {"start": start}),
    }


def workload(
    source: Mapping[str, Any] | None = None,
    *,
    ranks: str | Iterable[str] | None = None,
    gpus: int | None = None,
    start: Mapping[str, Any] | str | None = None,
    **keys: Any,
) -> dict[str, Any]:
    """Return a job that executes a workload: a file, one collective, or what an extension makes one of.

    ``source`` and ``keys``: the keys of a job's ``workload`` in a file, which are checked with the study. The
    others: as of :func:`training`. Raises ScenarioError if there are both ``ranks`` and ``gpus``.

    >>> workload(collective="all-gather", size="100 MB", ranks="all")["workload"]["size"]
    '100 MB'
    """
    made = {**(source or {}), **keys}
    return {
        **_ranks(ranks, gpus),
        "workload": made,
        **({} if start is None else {"start": start}),
    }


def event(
    do: str, at: Any = "start", target: str | None = None, **keys: Any
) -> dict[str, Any]:
    """Return an event: something that is made to happen in a run.

    ``do``: regroup, circuits, kill, cut, restore, lose, disturb, cancel, start and others. ``at``: start,
    before the jobs start; a time with its unit; a pair of a job and an iteration; or a mapping, as ``when``
    of a file. ``target``: such as ``switch ocs0``, ``link leaf0 spine0`` or, with ports,
    ``link tor0:5 tor1:5``. ``keys``: other keys of it.

    Raises ScenarioError naming the argument.

    >>> event("cut", at=("red", 6), target="link leaf0:4 spine0:1")["when"]
    {'job': 'red', 'iteration': 6}
    """
    when: Any = at
    if isinstance(at, tuple):
        job, iteration = at
        when = {"job": job, "iteration": iteration}
    elif isinstance(at, str) and at != "start":
        when = {"at": at}
    made = {
        "when": when,
        "do": do,
        **({} if target is None else {"target": target}),
        **keys,
    }
    _check(EventSpec, made, "event")
    return made


def regroup(at: Any = "start", **keys: Any) -> dict[str, Any]:
    """Return the event in which the controller moves light so that each job's GPUs are on one switch.

    ``at`` and ``keys``: as of :func:`event`, which raises the same errors.

    >>> regroup(at="start")
    {'when': 'start', 'do': 'regroup'}
    """
    return event("regroup", at, **keys)


def _ranks(ranks: str | Iterable[str] | None, gpus: int | None) -> dict[str, Any]:
    """Return the key of a job that has its GPUs. Raises ScenarioError."""
    if ranks is not None and gpus is not None:
        raise ScenarioError("gpus: there are ranks too; keep one of them")
    if gpus is not None:
        return {"gpus": gpus}
    if ranks is None or ranks == "all":
        return {"ranks": "all"}
    return {"ranks": ranks.split() if isinstance(ranks, str) else list(ranks)}


def _check(kind: type[Strict], value: dict[str, Any], where: str) -> None:
    """Raise ScenarioError naming the argument for a section that the file could not have."""
    try:
        kind.model_validate(value)
    except ValidationError as error:
        near = partial(near_key, kind)
        raise ScenarioError(first_problem(error, value, None, where, near)) from None
