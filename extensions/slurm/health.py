"""The health of a lab's Slurm cluster as a part of the controller's."""

from __future__ import annotations

from ringlight.controller.service import Controller
from ringlight.extensions.slurm.status import read_status, troubles
from ringlight.testbed.lab import Lab, LabError


def add(controller: Controller) -> None:
    """Have the controller's health name processes of the cluster that have ended or stand still."""
    try:
        lab = Lab(controller.inventory.lab)
    except LabError:
        # Of an inventory that somebody wrote for other switches.
        return

    def complaint() -> str | None:
        try:
            document = read_status(lab)
        except (OSError, ValueError) as error:
            return f"Slurm: the state of its processes cannot be read: {error}"
        return None if document is None else "; ".join(troubles(lab, document)) or None

    controller.complaints.append(complaint)
