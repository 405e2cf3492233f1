"""Several machines for labs: sweeps and labs on workers of Dask, and one lab over several of them."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="hosts",
    requires=("console",),
    commands="commands:register",
    executors={"dask": "executor:DASK"},
    sections=("section:network",),
)
