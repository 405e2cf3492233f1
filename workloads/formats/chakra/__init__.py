"""Chakra execution traces, schema 1.0: one file NAME.RANK.et for each rank."""
