"""Workloads made from models and from how these are spread over ranks, and widened to more ranks.

``catalogue`` has models by name, ``layers`` what they are made of, ``parallelism`` the workload of one that
is spread by data, tensor, pipeline and expert parallelism, ``placement`` that of one placed operator by
operator.
"""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="models",
    commands="commands:register",
    workloads={"model": "keys:ModelKeys", "placed": "placed_keys:PlacedKeys"},
)
