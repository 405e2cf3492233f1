"""Photonic units that average the gradients of their servers as whole numbers (OptINC, Fei et al., 2026)."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="optinc",
    devices={"averager": "averager_device:AVERAGERS"},
    carriers={"averagers": "averager_carrier:AveragerCarrier"},
    metrics=("averager_metrics", "photonic_metrics"),
    sections=(
        "averager_sections:averager_links",
        "averager_sections:averagers",
        "averager_sections:networks",
    ),
    papers={"optinc": "closed_forms"},
)
