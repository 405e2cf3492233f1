"""Records of jobs that came through Slurm, and of the light that moved meanwhile."""

from __future__ import annotations

from dataclasses import field

from ringlight.experiments.record.events import Record


class SlurmRule(Record, event="slurm_rule"):
    """The rule by which Slurm decided in a run. ``rule``: in words; ``version``: of Slurm, None in a simulation.
    ``parameters``: the ``SchedulerParameters`` of its configuration. ``not_modelled``: the parts that a
    simulation leaves out, sentences."""

    mode: str
    rule: str
    parameters: str
    version: str | None = None
    not_modelled: list[str] = field(default_factory=list)


class SlurmJob(Record, event="slurm_job"):
    """A job at its end, as Slurm knows it. ``id``: Slurm's. ``submitted``: when ``sbatch`` returned;
    ``allocated``: when Slurm gave it nodes; ``freed``: when all nodes were idle again. ``by``: main or backfill,
    which started it. ``switches``: packet switches that its GPUs were lit to when it began. ``restarts``: how
    often it was requeued. ``limit_s``: its time limit."""

    job: str
    id: int
    submitted: float
    allocated: float
    freed: float
    by: str
    nodes: list[str]
    switches: list[str]
    restarts: int = 0
    limit_s: float = 0.0


class SlurmLight(Record, event="slurm_light"):
    """Light was moved, or is as it was at the start. ``on``: the packet switch that each GPU is lit to from
    then on, None for one that is dark. ``why``: a job's claim, an event, or the start."""

    on: dict[str, str | None]
    why: str = ""
