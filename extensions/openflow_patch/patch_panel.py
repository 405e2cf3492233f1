"""The driver of a patch panel, for fabric files."""

from __future__ import annotations

from ringlight.fabric.optical_drivers import DriverKind

PATCH_PANEL = DriverKind(
    "driver:OpenFlowDriver",
    login=False,
    is_bridge=True,
    rig="patch_panel_rig:OpenFlowRig",
)
