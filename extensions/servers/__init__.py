"""Clusters of servers with several NICs and collectives over them, as NCCL runs them."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="servers",
    fabric={"gpu_servers": "fabric_key:GPU_SERVERS"},
    planes={"gpu-servers": "plane_kind:GPU_SERVERS"},
    collectives={
        "channel-rings": "collective:CHANNEL_RINGS",
        "double-binary-tree": "collective:DOUBLE_BINARY_TREE",
        "nccl": "collective:NCCL",
        "nccl-ring": "collective:NCCL_RING",
        "nccl-tree": "collective:NCCL_TREE",
        "nvls": "collective:NVLS",
        "nvls-tree": "collective:NVLS_TREE",
        "sharp": "collective:SHARP",
    },
    worker=("collective", "schedules", "trees"),
)
