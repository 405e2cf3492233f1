"""``python -m ringlight.extensions.hosts.testbed``: builds a part of a lab over several hosts, and serves it.

Its options are those of ``ringlight.testbed.emulation``, and ``--part`` besides.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from ringlight.extensions.hosts.parts.joint import Joint
from ringlight.extensions.hosts.parts.plan import Parts
from ringlight.testbed.emulation.__main__ import main as build
from ringlight.testbed.lab import ENVIRONMENT, Lab, LabError

PROGRAM = "ringlight.extensions.hosts.testbed"


def main() -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument(
        "--part",
        type=Path,
        required=True,
        help="file that says which part of the lab this is",
    )
    own, options = parser.parse_known_args()
    code = build(options, Joint(Parts.read(own.part)), PROGRAM)
    _remove_state()
    return code


def _remove_state() -> None:
    """Remove the files of the lab if nobody keeps it who would."""
    with suppress(LabError):
        lab = Lab(os.environ.get(ENVIRONMENT, ""))
        if not lab.is_alive():
            shutil.rmtree(lab.state_dir, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
