"""Light divided by demand (SiP-ML, Khani et al.) or phases, and interconnects described as wholes."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="sip_ml",
    requires=("wrht", "models"),
    fabric={
        "interconnect": "wholes.whole_keys:INTERCONNECT",
        "hop_ring": "wholes.whole_keys:HOP_RING",
    },
    planes={"interconnect": "plane_kind:INTERCONNECT"},
    events=("records",),
    metrics=("metrics.divisions", "metrics.turns"),
    sections=(
        "sections.divided:divisions",
        "sections.divided:turns",
        "sections.turns:phases",
    ),
    papers={"sip_ml": "paper"},
    worker=("phases", "workload_phases", "following:PHASES"),
)
