"""A job's ``workload``: a graph of operations in place of the training loop.

It is generated from a model and how that is spread over ranks, read from files, or made of one collective.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import numpy as np
from pydantic import Field, model_validator

from experiments.language.plan import Scale
from fabric.schema import Size, Strict
from workloads.graph import Book, Collective, Split, Workload, Writer

if TYPE_CHECKING:
    from workloads.settings import Parallel, Training

T = TypeVar("T")
Count = Annotated[int, Field(ge=1)]


class SplitSpec(Strict):
    """How unequally tokens divide over experts: ``workloads.graph.Split``."""

    skew: Annotated[float, Field(ge=0, le=16)] = 0.0
    seed: Annotated[int, Field(ge=0)] = 0
    same_order: bool = False


class WorkloadSpec(Strict):
    """One of ``model``, ``files`` and ``collective``; the other keys belong to one of them.

    ``model``: of ``workloads.models``, spread over dp · tp · pp · ep ranks and trained as the keys down to
    ``algorithms`` say (``workloads.settings``); its computations take the time of ``device``. ``files``:
    traces in one of the formats of docs/workloads-formats.md, beside the scenario. ``collective``: a kind,
    run with ``algorithm`` over ``size`` by all ranks of the job. ``iterations``: how often the graph is
    executed.
    """

    iterations: Count = 1
    model: str | None = None
    dp: Count = 1
    tp: Count = 1
    pp: Count = 1
    ep: Count = 1
    micro_batch: Count = 1
    micro_batches: Count = 1
    sequence: Annotated[int, Field(ge=0)] = 0
    schedule: str = "1f1b"
    virtual_stages: Count = 1
    bucket: Size | None = None
    zero: Annotated[int, Field(ge=0, le=3)] = 0
    sequence_parallel: bool = False
    recompute: bool = False
    split: SplitSpec = SplitSpec()
    algorithms: dict[str, str] = Field(default_factory=dict)
    device: str | None = None
    efficiency: Annotated[float, Field(gt=0, le=1)] | None = None
    collective: str | None = None
    algorithm: str = ""
    size: Size | None = None

    @model_validator(mode="after")
    def _one_source(self) -> WorkloadSpec:
        given = [name for name in ("model", "collective") if getattr(self, name)]
        if len(given) != 1:
            raise ValueError("give one of model and collective")
        (source,) = given
        for key in sorted(self.model_fields_set - _KEYS[source]):
            raise ValueError(f"{key}: a workload of {source} has no such key")
        if source == "collective" and self.size is None:
            raise ValueError("size: a workload of one collective needs it")
        if source == "model" and self.device is None:
            raise ValueError("device: a workload of a model needs it")
        return self


_KEYS = {
    "collective": {"iterations", "collective", "algorithm", "size", "split"},
    "model": WorkloadSpec.model_fields.keys() - {"collective", "algorithm", "size"},
}


def workload_of(found: WorkloadSpec, ranks: int, scale: Scale, directory: Path) -> Workload:
    """What the job of so many ranks does in an iteration, as emulated: computation takes D times as long, and
    payload is 1/S.

    ``directory``: of the scenario file. Raises ValueError, ``key: reason``.
    """
    made = _made(found, ranks, directory)
    if made.ranks != ranks:
        raise ValueError(f"it is for {made.ranks} ranks, and the job has {ranks}")
    from workloads.devices import scaled

    emulated: Workload = scaled(made, scale.time, scale.payload)
    return emulated


def _made(found: WorkloadSpec, ranks: int, directory: Path) -> Workload:
    if found.collective is not None:
        return _collective(found, ranks)
    from workloads.devices import device_named

    device = None if found.device is None else _keyed("device", device_named, found.device)
    if device is not None and found.efficiency is not None:
        device = replace(device, efficiency=found.efficiency)
    assert found.model is not None
    from workloads.models import model_named
    from workloads.parallelism import generate

    return generate(_keyed("model", model_named, found.model), _parallel(found), _training(found), device)


def _keyed(key: str, make: Callable[[Any], T], value: Any) -> T:
    try:
        return make(value)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def _collective(found: WorkloadSpec, ranks: int) -> Workload:
    from fabric.kinds import collective_steps

    assert found.collective is not None
    assert found.size is not None
    collective_steps(found.collective, found.algorithm, ranks)
    split = Split(**found.split.model_dump()) if found.collective == "all-to-all-v" else None
    book = Book()
    group = book.group(range(ranks))
    writer = Writer(book)
    what = Collective(found.collective, found.algorithm, split=split)
    writer.collective(found.collective, what, found.size, 0)
    nobody = np.empty((ranks, 0))
    return book.workload(found.collective, [writer.done()], [0] * ranks, [[group]] * ranks, nobody)


def _parallel(found: WorkloadSpec) -> Parallel:
    from workloads.settings import Parallel

    return Parallel(found.dp, found.tp, found.pp, found.ep)


def _training(found: WorkloadSpec) -> Training:
    from workloads.settings import Training

    alike = ("micro_batch", "micro_batches", "sequence", "schedule", "virtual_stages", "zero", "recompute")
    values = {name: getattr(found, name) for name in (*alike, "sequence_parallel", "algorithms")}
    if found.bucket is not None:
        values["bucket_bytes"] = found.bucket
    return Training(**values, split=Split(**found.split.model_dump()))
