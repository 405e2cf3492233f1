"""Ringlight's one top-level package.

Its rooms are folders at the top of the repository, to which the links beside this file lead; an installed
Ringlight has them here.
"""

import sys
from pathlib import Path

#: The folder that holds this package: what another Python needs in PYTHONPATH.
IMPORT_PATH = Path(__file__).resolve().parents[1]


def leave_out_unused() -> None:
    """Have this process, which must be a program of ours, import libraries without what nobody here uses.

    They do without httpx's own command, and Docker over ssh, with which no lab can be built: these would take
    a tenth of a second of every such process.
    """
    for part in ("httpx._main", "docker.transport.sshconn"):
        sys.modules.setdefault(part, None)  # type: ignore[arg-type]
