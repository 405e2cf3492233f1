"""Keys of a job's ``workload`` that is generated from a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from ringlight.experiments.language.workload_keys import (
    ComputingKeys,
    Count,
    SplitSpec,
    keyed,
)
from ringlight.fabric.values import Size
from ringlight.workloads.devices import DEVICES
from ringlight.workloads.graph import Split, Workload

#: Most ranks along one kind of parallelism, and micro-batches: a mistyped number must not fill the memory.
MOST_RANKS, MOST_MICRO_BATCHES = 1 << 17, 10_000
#: A workload without a device.
DEVICE_MISSING = (
    f"device: a workload of a model needs it; give {', '.join(DEVICES)} or a file of "
    "operations' times"
)
Ranks = Annotated[int, Field(ge=1, le=MOST_RANKS)]
ElementBytes = Annotated[int, Field(ge=1, le=8)]


class ModelKeys(ComputingKeys):
    """A model that is spread by data, tensor, pipeline and expert parallelism; docs/experiments.md."""

    parallel: ClassVar[tuple[str, ...]] = ("dp", "tp", "pp", "ep")

    model: str
    dp: Ranks = 1
    tp: Ranks = 1
    pp: Ranks = 1
    ep: Ranks = 1
    micro_batch: Count = 1
    micro_batches: Annotated[int, Field(ge=1, le=MOST_MICRO_BATCHES)] = 1
    sequence: Annotated[int, Field(ge=0)] = 0
    schedule: str = "1f1b"
    virtual_stages: Count = 1
    bucket: Size | None = None
    first_bucket: Size | None = None
    element_bytes: ElementBytes = 2
    gradient_bytes: ElementBytes = 2
    zero: Annotated[int, Field(ge=0, le=3)] = 0
    sequence_parallel: bool = False
    recompute: bool = False
    split: SplitSpec = SplitSpec()
    algorithms: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_device(self) -> ModelKeys:
        if self.device is None:
            raise ValueError(DEVICE_MISSING)
        return self

    def ranks_for(self, ranks: int) -> int:
        """Return the ranks of all kinds of parallelism together."""
        return self.dp * self.tp * self.pp * self.ep

    def made(self, ranks: int, directory: Path) -> Workload:
        """Return an iteration of training the model."""
        from ringlight.extensions.models.catalogue import model_named
        from ringlight.extensions.models.parallelism import generate
        from ringlight.extensions.models.settings import Parallel, Training

        alike = (
            *(
                "micro_batch",
                "micro_batches",
                "sequence",
                "schedule",
                "virtual_stages",
                "zero",
                "recompute",
            ),
            *("sequence_parallel", "algorithms", "element_bytes", "gradient_bytes"),
        )
        values = {name: getattr(self, name) for name in alike}
        for name in ("bucket", "first_bucket"):
            if (size := getattr(self, name)) is not None:
                values[f"{name}_bytes"] = size
        training = Training(**values, split=Split(**self.split.model_dump()))
        parallel = Parallel(self.dp, self.tp, self.pp, self.ep)
        workload = generate(keyed("model", model_named, self.model), parallel, training)
        return self.timed(workload, directory, self.element_bytes)
