"""Errors of the server agent, each with an HTTP status."""

from __future__ import annotations


class AgentError(RuntimeError):
    """A request cannot be met; ``status`` is the HTTP status that says so."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
