"""Light of an O-NIC: its tunable lasers, and when each is ready."""

from __future__ import annotations

import time
from typing import Protocol

from ringlight.controller.onic.agent_settings import AgentError, AgentSettings


class Laser(Protocol):
    """The tunable transmitters of one O-NIC. Times: CLOCK_MONOTONIC seconds. Methods raise OSError."""

    def tune(
        self, port: int, wavelength: int, ready_in_s: float, until_s: float
    ) -> float:
        """Light from ``ready_in_s`` after now, dark again at ``until_s`` by itself; returns when it is lit.

        Light that is on with this wavelength and ``ready_in_s`` 0 goes on without a gap.
        """

    def dark(self, port: int) -> None:
        """No light from now on."""

    def read(self, port: int) -> int | None:
        """Return the wavelength on which the laser emits, or is about to emit, light; None if it is dark."""


class Lasers:
    """The lasers of an agent. ``tuning_s``: seconds from the command to a laser until there is light."""

    def __init__(self, settings: AgentSettings, laser: Laser) -> None:
        self._gpu, self._laser = settings.gpu, laser
        self.tuning_s = settings.tuning_s
        self._ready_s = [0.0] * settings.ports

    def darken(self) -> None:
        """Darken every laser and read it back. Raises AgentError."""
        for port in range(len(self._ready_s)):
            try:
                self._laser.dark(port)
                still = self._laser.read(port)
            except OSError as error:
                raise AgentError(
                    f"O-NIC {self._gpu}: laser of port {port}: {error}"
                ) from error
            if still is not None:
                raise AgentError(
                    f"O-NIC {self._gpu}: laser of port {port} stays lit on wavelength {still}"
                )

    def tune(self, port: int, wavelength: int, until_s: float) -> float:
        """Light a laser until ``until_s``. Return when it is lit, monotonic seconds. Raises OSError."""
        self._ready_s[port] = self._laser.tune(port, wavelength, self.tuning_s, until_s)
        return self._ready_s[port]

    def extend(self, port: int, wavelength: int, until_s: float) -> None:
        """Let the light of a laser go on until ``until_s``, without a gap. Raises OSError."""
        left_s = max(0.0, self._ready_s[port] - time.monotonic())
        self._laser.tune(port, wavelength, left_s, until_s)

    def dark(self, port: int) -> None:
        """Darken a laser. Raises AgentError."""
        try:
            self._laser.dark(port)
        except OSError as error:
            # Whoever gets the receiver next would meet this light: better dead, dark at the lease's end and
            # started anew, than going on.
            raise AgentError(
                f"laser of port {port} cannot be darkened: {error}"
            ) from error

    def let_go(self) -> list[str]:
        """Darken every laser that can be. Return one line for each that cannot."""
        failures = []
        for port in range(len(self._ready_s)):
            try:
                self._laser.dark(port)
            except OSError as error:
                # The laser's watchdog ends it when the lease does.
                failures.append(f"laser of port {port} not darkened: {error}")
        return failures

    def read(self) -> list[int | None]:
        """Return the wavelength of each laser's light, None if it is dark. Raises OSError."""
        return [self._laser.read(port) for port in range(len(self._ready_s))]
