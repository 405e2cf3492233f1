"""Describe fabrics, with no I/O, no clock and no randomness.

Import the modules you need (``from fabric.topology import Fabric``). This package imports nothing by itself,
so that a training worker, which has only numpy, can use ``fabric.collectives``.
"""
