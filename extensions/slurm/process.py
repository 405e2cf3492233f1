"""The process that runs a lab's Slurm cluster: its settings, which a file brings to the testbed, and its start."""

from __future__ import annotations

import json
import socket
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ringlight.extensions.slurm.partitions import Mode

if TYPE_CHECKING:
    from ringlight.testbed.lab import Lab
    from ringlight.testbed.process_start import Process

#: The partition of a lab's cluster, and its folder in the lab's state.
PARTITION, FOLDER = "gpus", "slurm"
#: Address of all of its processes.
LOOPBACK = "127.0.0.1"
#: What a cluster needs: a program or a file, and Debian's package that has it.
_NEEDED = (
    ("/usr/sbin/slurmctld", "slurm-wlm"),
    ("/usr/sbin/slurmd", "slurm-wlm"),
    ("/usr/bin/srun", "slurm-wlm"),
    ("/usr/sbin/munged", "munge"),
    ("/usr/include/slurm/spank.h", "libslurm-dev"),
)


def missing_packages() -> list[str]:
    """Return Debian's packages that a cluster needs and this machine lacks."""
    missing = [package for file, package in _NEEDED if not Path(file).exists()]
    return list(dict.fromkeys(missing))


def obstacle() -> str | None:
    """Return in one line why no cluster can run on this machine, None if one can.

    Slurm listens on one address only if that is the address of the machine's name (NoInAddrAny, slurm.conf(5)).
    Other addresses of loopback do not serve: a step connects back to the address from which srun's request came.
    """
    if packages := missing_packages():
        install = f"apt-get install {' '.join(packages)}"
        return f"Slurm is not installed; run as root: {install}"
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        address = "unknown"
    if address == LOOPBACK:
        return None
    return (
        f"Slurm listens at the address of this machine's name, and that of {name} is {address}; "
        f"have this line in /etc/hosts in place of another of {name}: {LOOPBACK} {name}"
    )


@dataclass(frozen=True)
class SlurmCluster:
    """A lab's Slurm cluster, whose one partition has all GPUs.

    ``port``: of slurmctld. ``controller``: URL of our REST API. ``token_file``, ``cacert``: for calls there.
    """

    mode: Mode
    port: int
    partition: str
    controller: str
    cacert: str | None
    token_file: str | None
    log: Path

    #: It writes no switch's tables.
    openflow = None

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), default=str), encoding="utf-8")

    def start(self, lab: Lab, ready: Path) -> Process:
        """Start the process of the cluster and return it. Raises OSError.

        The process writes ``ready`` once it runs; the health of the lab tells when Slurm is ready.
        """
        from ringlight.testbed.process_start import start_process

        ready.unlink(missing_ok=True)
        plan = lab.state_dir / f"{FOLDER}-plan.json"
        module = "ringlight.extensions.slurm.cluster"
        command = [sys.executable, "-m", module, lab.id, str(plan), str(ready)]
        with self.log.open("ab") as output:
            return start_process(command, lab.environment(), output)


def read_cluster(path: Path) -> SlurmCluster:
    """Return what :meth:`SlurmCluster.write` wrote into a file. Raises OSError, ValueError."""
    from pydantic import TypeAdapter

    return TypeAdapter(SlurmCluster).validate_json(path.read_bytes())
