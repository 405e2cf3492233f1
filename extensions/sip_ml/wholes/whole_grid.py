"""A grid of GPUs described as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ringlight.extensions.sip_ml.wholes.interconnect import Interconnect
from ringlight.fabric.parts import Counts


@dataclass(frozen=True)
class GridOfGpus(Interconnect):
    """ODDL (Li et al., OFC 2024): ``rows`` rows and ``columns`` columns of GPUs, each line with one switch of
    wavelengths.

    ``transceivers``: 1 that serves row and column with all of the GPU's rate, or 2 with half of it each.
    ``handshake_s``: seconds of request, grant and tuning before the first byte of each transfer, once on each
    line that it takes.
    """

    kind: ClassVar[str] = "grid"
    requests_light: ClassVar[bool] = True

    rows: int
    columns: int
    gpu_bps: float
    transceivers: int = 1
    handshake_s: float = 0.0

    def counts(self, gpus: int) -> Counts:
        """Return the parts of the grid: O-NICs on the WSS of their row and on that of their column.

        There is one transceiver for each of the two, or one whose light both take.
        """
        ours, switches = self.transceivers * gpus, self.rows + self.columns
        return Counts(
            gpus,
            2 * gpus,
            ours,
            ours,
            optical_switches=switches,
            optical_ports=2 * gpus,
        )
