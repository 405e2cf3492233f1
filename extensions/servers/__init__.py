"""Clusters of servers with several NICs and collectives over them, as NCCL runs them."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(name="servers")
