"""Photonic units that average the gradients of their servers as whole numbers (OptINC, Fei et al., 2026)."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="optinc",
    devices={"averager": "averager_device:AVERAGERS"},
    fabric={
        "averaging": "averager_keys:AVERAGING",
        "averagers": "averager_keys:AVERAGERS",
    },
    collectives={"optinc": "collective:OPTINC"},
    worker=(
        *(
            "collective",
            "averager_place",
            "averaged",
            "averaged_gradients",
            "exchange",
            "reducing",
        ),
        *(
            f"unit.{name}"
            for name in ("averaging", "gradients", "network", "pam4", "wire")
        ),
    ),
    planes={"averagers": "plane_kind:AVERAGERS"},
    events=("averager_records",),
    metrics=("averager_metrics", "photonic_metrics"),
    sections=(
        "averager_sections:averager_links",
        "averager_sections:averagers",
        "averager_sections:networks",
    ),
    papers={"optinc": "closed_forms"},
)
