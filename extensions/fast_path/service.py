"""The fast path's part in the controller."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringlight.controller.service import Controller


def add_carried(controller: Controller) -> None:
    """Have the controller add the traffic of the lab's fast path, if there is one, to switches' counters."""
    from ringlight.extensions.fast_path.carried import Carried

    path = (controller.inventory.model_extra or {}).get("fast_path")
    if path is not None:
        controller.plane.carried = Carried(Path(path))
