"""A bridge of Open vSwitch as an optical switch: a patch panel under OpenFlow."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="openflow_patch",
    drivers={"openflow": "patch_panel:PATCH_PANEL"},
)
