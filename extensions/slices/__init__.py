"""Slices: cubes of GPUs whose faces optical circuit switches join into tori, several at once.

``shapes.py`` and ``cubes.py`` are the geometry, ``pool.py`` which slice has which cube, ``fabric_key.py`` the key
``cubes`` of a fabric file. ``resource.py`` is the resource with GKE's fields, which ``manager.py`` keeps and lights.
"""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="slices",
    fabric={"cubes": "fabric_key:CUBES"},
    controller=("service:add_slices",),
    commands="commands:register",
)
