"""Plan of jobs that come through Slurm, and the keys that describe it. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from ringlight.experiments.language.job_sources import Files
from ringlight.experiments.language.plan import RunPlan, Setting
from ringlight.extensions.cluster.language import TraceSpec, planned
from ringlight.extensions.cluster.plan import TracePlan
from ringlight.extensions.slurm.partitions import Mode
from ringlight.extensions.slurm.slurm_conf import PARAMETERS
from ringlight.fabric.values import Duration, Strict

#: What each mode is, for a person.
MODES: Mapping[Mode, str] = {
    "stand": "light stands, and Slurm knows no topology",
    "follow": "Slurm follows light: its topology is what is lit",
    "lead": "light follows Slurm: a claim brings each job's GPUs together before it starts",
}
#: Keys of a trace by which a replay decides in Slurm's place.
_DECIDED_BY_SLURM = (
    *("queueing", "placement", "light", "sharing", "spare_ports", "moves"),
    *("dark", "every", "start_up", "faults", "until", "warm_up"),
)


@dataclass(frozen=True)
class JobOptions:
    """Options of each ``sbatch``, in Slurm's own real time. ``minutes``: ``--time``. ``switches``:
    ``--switches``, with the longest wait for them; None without that option."""

    minutes: int
    switches: int | None = None
    switches_wait_s: float = 300.0

    @property
    def options(self) -> list[str]:
        """Return the options as words."""
        words = [f"--time={self.minutes}"]
        if self.switches is not None:
            wait_s = round(self.switches_wait_s)
            minutes, seconds = divmod(wait_s, 60)
            words.append(f"--switches={self.switches}@{minutes}:{seconds:02}")
        return words


@dataclass(frozen=True)
class SlurmPlan(TracePlan):
    """Jobs of a trace that Slurm starts. ``request``: options of each job.

    For a simulation, emulated seconds: ``launch_s``: from a job's nodes until all ranks are connected;
    ``claiming_s``: of a claim, besides its light; ``ending_s``: from a job's last iteration until its nodes are
    free. ``parameters``: the ``SchedulerParameters`` of Slurm's configuration.
    """

    mode: Mode = "stand"
    request: JobOptions = JobOptions(5)
    launch_s: float = 0.0
    claiming_s: float = 0.0
    ending_s: float = 0.0
    parameters: str = PARAMETERS

    key: ClassVar[str] = "slurm"
    computed: ClassVar[bool] = False


class SlurmSpec(Strict):
    """Jobs of a ``trace`` (docs/cluster.md has its keys) that are submitted to Slurm at their arrival.

    ``time_limit``: ``sbatch --time``, minutes of real time. ``switches``: ``--switches``; ``switches_wait``: the
    longest wait for that. ``launch``, ``claiming`` and ``ending``: for a simulation, from a job's nodes until its
    ranks are connected, of a claim besides its light, and from the last iteration until the nodes are free.
    """

    mode: Mode
    trace: TraceSpec
    time_limit: Annotated[int, Field(ge=1, le=1440)] = 5
    switches: Annotated[int, Field(ge=1)] | None = None
    switches_wait: Annotated[Duration, Field(gt=0)] | None = None
    launch: Duration = 0.0
    claiming: Duration = 0.0
    ending: Duration = 0.0

    @model_validator(mode="after")
    def _slurm_decides(self) -> SlurmSpec:
        if self.trace.trains is None:
            raise ValueError(
                "trace.trains: missing; jobs that come through Slurm train, so give trains: {iteration: …}"
            )
        written = self.trace.model_fields_set & set(_DECIDED_BY_SLURM)
        if written:
            raise ValueError(
                f"trace.{min(written)}: Slurm decides that here; leave it out"
            )
        if self.switches is not None and self.mode != "follow":
            raise ValueError(
                f"switches: in mode {self.mode} Slurm knows no switches; give mode: follow"
            )
        if self.switches_wait is not None and self.switches is None:
            raise ValueError("switches_wait: only with switches")
        return self


def plan_of(spec: SlurmSpec, setting: Setting, files: Files) -> SlurmPlan:
    """Return the plan of a run's jobs. Raises ValueError, ``key: what is wrong``."""
    try:
        trace = planned(spec.trace, setting, (), files)
    except ValueError as error:
        text = str(error)
        if text.startswith("jobs.trace"):
            text = f"jobs.slurm.trace{text.removeprefix('jobs.trace')}"
        raise ValueError(text) from None
    wait_s = (
        300.0 / setting.scale.time if spec.switches_wait is None else spec.switches_wait
    )
    request = JobOptions(spec.time_limit, spec.switches, wait_s * setting.scale.time)
    shared = {field.name: getattr(trace, field.name) for field in fields(TracePlan)}
    time = setting.scale.time
    return SlurmPlan(
        **shared,
        mode=spec.mode,
        request=request,
        launch_s=spec.launch * time,
        claiming_s=spec.claiming * time,
        ending_s=spec.ending * time,
    )


def slurm_of(plan: RunPlan) -> SlurmPlan:
    """Return the plan of a run whose jobs come through Slurm."""
    assert isinstance(plan.source, SlurmPlan)
    return plan.source
