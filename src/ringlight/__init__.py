"""Ringlight's one top-level package.

Its rooms are folders at the top of the repository, to which the links beside this file lead; an installed
Ringlight has them here.
"""

from pathlib import Path

#: The folder that holds this package: what another Python needs in PYTHONPATH.
IMPORT_PATH = Path(__file__).resolve().parents[1]
