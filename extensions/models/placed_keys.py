"""Keys of a job's ``workload`` whose operators are placed over GPUs, as SiP-ML's authors place them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ringlight.experiments.language.workload_keys import ComputingKeys, Count, keyed
from ringlight.extensions.models.keys import DEVICE_MISSING, ElementBytes, Ranks
from ringlight.fabric.values import Duration, Size
from ringlight.workloads.graph import Workload


class PlacedKeys(ComputingKeys):
    """A model whose replicas are divided over ``mp`` GPUs each; docs/experiments.md."""

    placed: str
    dp: Ranks = 1
    mp: Ranks = 1
    batch: Count | None = None
    window: Count | None = None
    partners: Count | None = None
    gradient: Size | None = None
    all_reduce: bool = True
    takes: Literal["whole", "part"] = "whole"
    quantum: Annotated[Duration, Field(gt=0)] = 1e-6
    sequence: Annotated[int, Field(ge=0)] = 0
    #: The authors' profiles are of single precision, as is the default of operators.
    element_bytes: ElementBytes = 4
    algorithm: str = ""

    @model_validator(mode="after")
    def _whole(self) -> PlacedKeys:
        if self.device is None:
            raise ValueError(DEVICE_MISSING)
        if self.batch is None:
            raise ValueError(
                "batch: a placed model needs it, the samples of all replicas together"
            )
        if self.window is not None and self.partners is not None:
            raise ValueError(
                "partners: they and window both say how near pieces lie; give one of them"
            )
        if self.has_table:
            raise ValueError(
                f"device: pieces are placed by their time, which {self.device} cannot tell before"
            )
        return self

    def ranks_for(self, ranks: int) -> int:
        """Return the GPUs of all replicas."""
        return self._replicas(ranks) * self.mp

    def _replicas(self, ranks: int) -> int:
        """Return ``dp``, or as many replicas as there are ranks for."""
        if "dp" in self.model_fields_set:
            return self.dp
        if ranks % self.mp:
            raise ValueError(
                f"mp: {ranks} GPUs do not divide into replicas of {self.mp}"
            )
        return ranks // self.mp

    def made(self, ranks: int, directory: Path) -> Workload:
        """Return an iteration of training the model."""
        from ringlight.extensions.models.catalogue import model_named
        from ringlight.extensions.models.placement import placed_workload, widest_window

        assert self.batch is not None
        replicas = self._replicas(ranks)
        window = self.window or self.mp
        if self.partners is not None:
            window = keyed(
                "partners",
                lambda most: widest_window(most, replicas, self.mp),
                self.partners,
            )
        return placed_workload(
            keyed("placed", model_named, self.placed),
            replicas,
            self.mp,
            self.batch,
            window,
            self.real_device(self.element_bytes),
            gradient_bytes=self.gradient,
            all_reduce=self.all_reduce,
            takes=self.takes,
            element_bytes=self.element_bytes,
            sequence=self.sequence,
            quantum_s=self.quantum,
            algorithm=self.algorithm or "ring",
        )
