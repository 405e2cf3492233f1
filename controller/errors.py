"""Errors of the controller that a user of the REST API sees; one line each, with their HTTP status."""

from __future__ import annotations


class ControllerError(Exception):
    """Base. ``status`` is the HTTP status of the answer."""

    status = 500


class NotFoundError(ControllerError):
    """Something named does not exist."""

    status = 404


class ConflictError(ControllerError):
    """Something exists, and its present state does not allow this."""

    status = 409


class InvalidError(ControllerError):
    """The request can never be carried out on this fabric."""

    status = 422


class UnsupportedError(ControllerError):
    """There is no such operation with what is there."""

    status = 501


class RefusedError(ControllerError):
    """A switch was reached and did not carry out the request."""

    status = 502


class UnavailableError(ControllerError):
    """A switch or the server agent cannot be reached now; try again later."""

    status = 503


class StartError(ControllerError):
    """The controller cannot start."""
