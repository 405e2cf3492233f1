"""MSCCL XML, in which algorithms for collectives are exchanged: ``reader`` and ``writer``.

``elements`` are the file's words, ``buffers`` where chunks are in them, ``play`` does what they say.
"""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="msccl", commands="algorithm_command:register", formats=("format:MSCCL",)
)
