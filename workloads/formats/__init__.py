"""Workloads in files. Every reader raises ValueError, in one line with the file and the place in it."""
