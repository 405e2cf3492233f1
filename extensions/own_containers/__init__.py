"""Jobs of containers of users' own images, one on each GPU, in place of what our workers do."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="own_containers",
    commands="cli:register",
    guests={"container": "kind:CONTAINER"},
    metrics=("metrics",),
    sections=("section:containers",),
)
