"""Ringlight's one top-level package.

Its rooms are folders at the top of the repository, to which the links beside this file lead; an installed
Ringlight has them here.
"""

import sys
from pathlib import Path

#: The folder that holds this package: what another Python needs in PYTHONPATH.
IMPORT_PATH = Path(__file__).resolve().parents[1]

# Parts of libraries that do without them where they cannot be imported: httpx's own command, and Docker over
# ssh, which no lab can use. They would take a tenth of a second of every process that imports the library.
for _part in ("httpx._main", "docker.transport.sshconn"):
    sys.modules.setdefault(_part, None)  # type: ignore[arg-type]
