"""Chakra execution traces, schema 1.0, one file NAME.RANK.et for each rank: ``reader`` and ``writer``.

A file is a row of messages, each after its length as a varint: GlobalMetadata, then one Node for each
operation (``schema``). ``names`` finds the files, ``attributes`` reads what a node says;
docs/chakra.md has how each field is read.
"""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(name="chakra", formats=("format:CHAKRA",))
