"""Describe the work of a job, on whichever fabric: training as a graph of computation and communication.

Plain data and pure functions: no I/O but in ``workloads.formats``, no clock, and randomness only from a seed.
"""
