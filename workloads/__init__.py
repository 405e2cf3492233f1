"""Training as a graph of computation and communication: what a job does, without saying on which fabric.

Plain data and pure functions: no I/O but in ``workloads.formats``, no clock, and randomness only from a seed.
"""
