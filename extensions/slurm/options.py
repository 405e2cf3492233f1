"""Options of commands whose labs may have a Slurm cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import typer

from ringlight.experiments.cli.common import fail
from ringlight.extensions.slurm.partitions import SlurmError, check_node_names
from ringlight.extensions.slurm.process import PARTITION, SlurmCluster
from ringlight.extensions.slurm.slurm_conf import PORT

if TYPE_CHECKING:
    from ringlight.experiments.language.plan import Setting


@dataclass(frozen=True)
class SlurmOptions:
    """Options of a lab in which a Slurm cluster may run."""

    slurm: Annotated[
        bool,
        typer.Option(
            "--slurm",
            help="Run a Slurm cluster in the lab: its controller, and a node at each GPU.",
        ),
    ] = False
    slurm_mode: Annotated[
        Literal["lead", "follow"],
        typer.Option(
            "--slurm-mode",
            help="lead: light follows the jobs. follow: jobs are placed by the light.",
        ),
    ] = "lead"
    slurm_port: Annotated[
        int,
        typer.Option(
            "--slurm-port",
            min=1024,
            max=60000,
            help="TCP port of slurmctld; the nodes have the next ones.",
        ),
    ] = PORT

    name: ClassVar[str] = "slurm"
    needs_hosts: ClassVar[bool] = True

    @property
    def is_requested(self) -> bool:
        return self.slurm

    @property
    def is_asked(self) -> bool:
        return self.slurm or self.slurm_mode != "lead" or self.slurm_port != PORT

    def given_to(self, scenario: Path, settings: Sequence[Setting]) -> list[Setting]:
        """Return the settings as they are. Raises UserError for a fabric whose GPUs cannot be nodes."""
        if self.is_asked and not self.slurm:
            fail("--slurm-mode and --slurm-port: only with --slurm", 2)
        for setting in settings if self.slurm else ():
            try:
                check_node_names(setting.fabric.gpus)
            except SlurmError as error:
                fail(f"--slurm: {scenario}: {error}", 2)
            if not setting.fabric.packet_gpus:
                fail(
                    f"--slurm: {scenario}: no GPU is at a packet switch, and only there light moves for claims",
                    2,
                )
        return list(settings)

    def listens(self) -> Mapping[str, str]:
        """Return the address of slurmctld. Raises LabError if no cluster can run on this machine."""
        from ringlight.extensions.slurm.process import LOOPBACK, obstacle
        from ringlight.testbed.lab import LabError

        if (line := obstacle()) is not None:
            raise LabError(f"--slurm: {line}")
        return {"--slurm-port": f"{LOOPBACK}:{self.slurm_port}"}

    def facts(self) -> Mapping[str, Any]:
        return {"slurm": self.slurm_mode} if self.slurm else {}

    def write(
        self, path: Path, url: str, cacert: str | None, token: Path | None, logs: Path
    ) -> None:
        SlurmCluster(
            mode=self.slurm_mode,
            port=self.slurm_port,
            partition=PARTITION,
            controller=url,
            cacert=cacert,
            token_file=None if token is None else str(token),
            log=logs / "slurm.log",
        ).write(path)
