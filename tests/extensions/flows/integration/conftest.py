"""Processes of labs are forked from one that has imported what they need."""

from tests.forks import forks as forks
