"""Errors between the controller and a packet switch. Every message is one line."""

from __future__ import annotations

from typing import Literal

#: Reason for a refusal: the request is invalid, its object is missing, or the switch does not support it.
Reason = Literal["bad", "absent", "unsupported"]


class OpenFlowError(RuntimeError):
    """Base of every error of this package. ``status``: HTTP status of the response that reports it."""

    status = 503


class ListenError(OpenFlowError):
    """The OpenFlow port cannot be opened (taken, or not ours to open)."""


class NotConnectedError(OpenFlowError):
    """The switch is not connected, or its connection ended before it answered."""


class SwitchTimeoutError(OpenFlowError):
    """The switch did not answer in time; what was sent may or may not have taken effect."""

    status = 504


class SwitchRefusedError(OpenFlowError):
    """The switch answered with an OpenFlow error. ``index`` is the message of the batch it refused."""

    def __init__(self, message: str, index: int, reason: Reason = "bad") -> None:
        super().__init__(message)
        self.index = index
        self.status = {"bad": 400, "absent": 404, "unsupported": 501}[reason]


class UnreadableError(OpenFlowError):
    """An entry that was handed in cannot be made into an OpenFlow message."""

    status = 400


class NotKeptError(OpenFlowError):
    """The switch confirmed a change and does not show it."""

    status = 502
