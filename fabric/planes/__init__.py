"""Carry a job's bytes: a file for each way, and ``choice.plane_of``, which decides."""
