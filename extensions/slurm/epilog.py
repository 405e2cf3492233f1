"""EpilogSlurmctld: releases the claim of a job that has ended. Its light stays.

Standard library only, as it starts for each job.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from ringlight.extensions.slurm.partitions import SlurmError
from ringlight.extensions.slurm.prolog import claim_name, is_ours, release
from ringlight.extensions.slurm.site import Site, directory_of, read_site


def leave(site: Site, environment: Mapping[str, str]) -> None:
    """Release the claim of the job of a script's environment, if it has one. Raises SlurmError."""
    if is_ours(site, environment):
        release(site, claim_name(environment["SLURM_JOB_ID"]))


def main() -> int:
    """Release the claim of the job that the environment names. Return the exit code."""
    try:
        leave(read_site(directory_of()), os.environ)
    except SlurmError as error:
        sys.stderr.write(f"ringlight: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
