"""Graphs of the fabrics that optical ones are compared with, and what each is built of, with no I/O."""
