"""The file beside slurm.conf by which Ringlight's programs of a Slurm cluster know the controller and the modes.

Standard library only: a prolog that starts in milliseconds reads it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ringlight.extensions.slurm.partitions import Partition, SlurmError

FILE = "ringlight.json"
#: Path of the REST API at which the follower reports.
FOLLOWER_PATH = "/v1/slurm/follower"
#: Most characters of a problem that it reports.
PROBLEM_LENGTH = 1000
#: Folder of slurm.conf if the environment names none.
DIRECTORY = Path("/etc/slurm")
#: Refusals after which a job is held.
REFUSALS = 3


@dataclass(frozen=True)
class Site:
    """One Slurm cluster over one lab.

    ``url``: of the controller's REST API. ``addresses``: IP address of each GPU in the fabric.
    ``token_file``, ``cacert``: paths, None if it needs none.
    ``own_certificate``: the controller's certificate is the one in ``cacert``, and need not name its address.
    ``refusals``: number of refused claims after which a job is held.
    """

    url: str
    partitions: tuple[Partition, ...]
    addresses: Mapping[str, str]
    token_file: str | None = None
    cacert: str | None = None
    refusals: int = REFUSALS
    own_certificate: bool = False

    def write(self, directory: Path) -> None:
        """Write the file into the folder of slurm.conf. Raises OSError."""
        text = json.dumps(asdict(self), indent=1) + "\n"
        (directory / FILE).write_text(text, encoding="utf-8")

    def partition(self, name: str) -> Partition | None:
        """Return the partition of a name, None if Ringlight does not know it."""
        return next((p for p in self.partitions if p.name == name), None)

    def nodes(self, mode: str) -> tuple[str, ...]:
        """Return the nodes of all partitions of a mode, each once."""
        of_mode = (p.nodes for p in self.partitions if p.mode == mode)
        return tuple(dict.fromkeys(node for nodes in of_mode for node in nodes))

    def token(self) -> str | None:
        """Return the controller's token, None if it needs none. Raises OSError."""
        if self.token_file is None:
            return None
        return Path(self.token_file).read_text(encoding="utf-8").strip()


def read_site(directory: Path) -> Site:
    """Return the site that a folder's file describes. Raises SlurmError, one line that names file and key."""
    path = directory / FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SlurmError(
            f"{path}: {error.strerror}; write it with: ringlight slurm config"
        ) from None
    except ValueError as error:
        raise SlurmError(f"{path}: not JSON: {error}") from None
    try:
        partitions = tuple(
            Partition(p["name"], p["mode"], tuple(p["nodes"]), p.get("max_nodes"))
            for p in document.pop("partitions")
        )
        return Site(partitions=partitions, **document)
    except (AttributeError, KeyError, TypeError) as error:
        raise SlurmError(
            f"{path}: not as ringlight slurm config writes it: {error}"
        ) from None


def directory_of(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the slurm.conf that an environment names."""
    file = environment.get("SLURM_CONF")
    return Path(file).parent if file else DIRECTORY
