"""Slices' part in the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringlight.extensions.slices.fabric_key import cubes_of

if TYPE_CHECKING:
    from fastapi import FastAPI

    from ringlight.controller.service import Controller


def add_slices(controller: Controller) -> None:
    """Have the controller keep slices if its fabric has cubes, and else answer that there are none."""
    part = cubes_of(controller.fabric)
    if part is None:
        controller.app_parts.append(_without_cubes)
        return

    from ringlight.extensions.slices.manager import SliceManager

    manager = SliceManager(
        controller.fabric,
        part,
        controller.circuits,
        controller.reservations.holders,
        lambda: controller.jobs.lost_gpus,
        controller.bus,
        controller.store,
    )

    def add_to(app: FastAPI) -> None:
        from ringlight.extensions.slices.routes import add_slice_routes

        add_slice_routes(app, manager)

    controller.app_parts.append(add_to)
    controller.complaints.append(lambda: manager.complaint)
    controller.on_start.append(manager.start)
    controller.on_stop.append(manager.stop)


def _without_cubes(app: FastAPI) -> None:
    from ringlight.extensions.slices.routes import add_no_slices

    add_no_slices(app)
