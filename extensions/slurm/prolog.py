"""PrologSlurmctld: claims the GPUs of a job, which brings light to them, before the job starts.

Standard library only, as it starts for each job.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ringlight.extensions.interchange.hostlists import expand
from ringlight.extensions.slurm.partitions import SlurmError
from ringlight.extensions.slurm.rest import ControllerSilentError, Refused, call
from ringlight.extensions.slurm.scontrol import slurm
from ringlight.extensions.slurm.site import Site, directory_of, read_site

#: So long a claim waits for light, and its answer comes at the latest, seconds.
LIGHT_S, CLAIM_S = 20.0, 25.0
#: So long a call waits for a controller that is being started again or stands still, seconds.
RESTART_S = 15.0
#: Wait for the epilog of an ended job, and between two attempts, seconds.
EPILOG_S, AGAIN_S = 1.0, 0.03
PREFIX = "slurm-"
#: What a job has that was refused at its last try.
_REFUSAL = re.compile(r"AdminComment=ringlight: refusal (\d+) of ")


def claim_name(job: str) -> str:
    """Return the name of the claim of a job of Slurm."""
    return f"{PREFIX}{job}"


def is_ours(site: Site, environment: Mapping[str, str]) -> bool:
    """Return whether light follows Slurm for the job of a script's environment.

    Raises SlurmError for a script that has no job.
    """
    if "SLURM_JOB_ID" not in environment:
        raise SlurmError(
            "SLURM_JOB_ID: not set; Slurm's controller calls this for a job"
        )
    partition = site.partition(environment.get("SLURM_JOB_PARTITION", ""))
    return partition is not None and partition.mode == "lead"


def claim(site: Site, environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Claim the GPUs of a job, and return the claim; None for a job of another partition.

    Raises SlurmError with the reason if they cannot be had.
    """
    if not is_ours(site, environment):
        return None
    gpus = expand(environment["SLURM_JOB_NODELIST"])
    name = claim_name(environment["SLURM_JOB_ID"])
    body = {"name": name, "gpus": gpus, "wait_s": LIGHT_S}
    document = _claimed(site, body)
    # A job on a GPU that is lost or dark would start, and wait for its network; a failed claim has no GPUs.
    waits = document["state"] != "ACTIVE" and len(gpus) > 1
    if waits or document["state"] == "FAILED":
        release(site, name)
        raise SlurmError(document["reason"] or f"claim {name} is {document['state']}")
    return dict(document)


def _claimed(site: Site, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the claim of a body. Raises SlurmError.

    Slurm frees nodes before the epilog of their job has run, and an epilog may have found no controller.
    Claims of jobs that have left their nodes are therefore waited for, and then released.
    """
    deadline = time.monotonic() + EPILOG_S
    nobody = False
    while True:
        try:
            return dict(call(site, "POST", "/v1/claims", body, RESTART_S, CLAIM_S))
        except Refused as refusal:
            left = _left_claims(site, body) if refusal.status == 409 else None
            if left is None or time.monotonic() > deadline + EPILOG_S:
                raise
            # The claim in the way may have been released since; at the second time it is something else.
            if nobody and not left:
                raise
            nobody = not left
        if time.monotonic() > deadline:
            for name in left:
                release(site, name)
        time.sleep(AGAIN_S)


def _left_claims(site: Site, body: Mapping[str, Any]) -> list[str] | None:
    """Return the claims of these GPUs of jobs of Slurm that no longer have them, and an earlier one of this job.

    None if another client has one of the GPUs. Raises SlurmError.
    """
    gpus = set(body["gpus"])
    claims = [
        claim["name"]
        for claim in call(site, "GET", "/v1/claims")
        if claim["state"] != "FAILED"
        and (gpus.intersection(claim["gpus"]) or claim["name"] == body["name"])
    ]
    own = [name for name in claims if name == body["name"] or _has_left(name)]
    return own if own == claims else None


def _has_left(claim: str) -> bool:
    """Return whether a claim is that of a job of Slurm which no longer has nodes. Raises SlurmError."""
    job = claim.removeprefix(PREFIX)
    if job == claim or not job.isdigit():
        return False
    words = (
        "squeue",
        "--noheader",
        "--format=%i",
        f"--jobs={job}",
        "--states=R,CF,S,ST",
    )
    try:
        return not slurm(*words).strip()
    except SlurmError as error:
        if "Invalid job id" in str(error):
            return True
        raise


def release(site: Site, name: str) -> None:
    """Release a claim, if there is one of that name. Raises SlurmError."""
    try:
        # Asked once if there is no answer: a controller that stood still answers all that it was asked.
        call(site, "DELETE", f"/v1/claims/{name}", None, RESTART_S, RESTART_S)
    except Refused as refusal:
        if refusal.status != 404:
            raise


def note(environment: Mapping[str, str], text: str) -> None:
    """Write a line into the job of a script's environment. Raises SlurmError.

    Slurm then stores its state, which it does not at the start of every job. A slurmctld that is killed would
    start the job again.
    """
    job = environment["SLURM_JOB_ID"]
    slurm("scontrol", "update", f"JobId={job}", f"AdminComment=ringlight: {text}")


def note_failure(site: Site, environment: Mapping[str, str], error: SlurmError) -> None:
    """Write why a job does not start into the job, which Slurm then requeues. Raises SlurmError.

    After some refusals one after another the job is held. A job that waits for a silent controller is never held.
    """
    if isinstance(error, ControllerSilentError):
        note(environment, _line(error))
        return
    job = environment["SLURM_JOB_ID"]
    before = _REFUSAL.search(slurm("scontrol", "--oneliner", "show", "job", job))
    # A job that was held and released has as many tries again.
    refusals = (int(before[1]) if before else 0) % site.refusals + 1
    note(environment, f"refusal {refusals} of {site.refusals}: {_line(error)}")
    if refusals == site.refusals:
        slurm("scontrol", "requeuehold", job)


def _line(error: SlurmError) -> str:
    return " ".join(str(error).split())


def main() -> int:
    """Claim the GPUs of the job that the environment names. Return the exit code, 1 if they are refused."""
    environment = os.environ
    site = None
    try:
        site = read_site(directory_of(environment))
        claimed = claim(site, environment)
    except SlurmError as error:
        sys.stderr.write(f"ringlight: {_line(error)}\n")
        if site is not None and "SLURM_JOB_ID" in environment:
            with suppress(SlurmError):
                note_failure(site, environment, error)
        return 1
    if claimed is not None:
        moved = claimed["fibres_moved"]
        with suppress(SlurmError):
            note(environment, f"claim {claimed['name']}, fibres moved: {moved}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
