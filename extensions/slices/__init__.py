"""Slices: cubes of GPUs whose faces optical circuit switches join into tori, several at once.

``shapes.py`` and ``cubes.py`` contain the geometry, ``pool.py`` the assignment of cubes to slices, and
``fabric_key.py`` the key ``cubes`` of a fabric file. ``resource.py`` has the fields of GKE's Slice; ``manager.py``
keeps and lights slices. ``swaps.py`` is the event of a scenario that swaps a cube.
"""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="slices",
    requires=("cluster",),
    fabric={"cubes": "fabric_key:CUBES"},
    controller=("service:add_slices",),
    light_events={"swap": "swaps:SWAP"},
    commands="commands:register",
)
