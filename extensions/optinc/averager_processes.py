"""A fabric's averagers (OptINC) in a lab: their processes, and what workers are told.

Functions import what needs numpy: every lab of a fabric with averagers imports this module.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from ringlight.extensions.optinc.averager import Averager, averagers_in
from ringlight.fabric.topology import Fabric
from ringlight.testbed.devices import Device, NodeProcess, NodeProcesses, Site
from ringlight.testbed.emulation.device_cables import address_of, cables_at

#: Where every averager listens.
TCP_PORT = 7070
#: Seconds that a server may be silent, besides what a few frames take; a worker gives the averager that much
#: more.
SILENCE_S, LONGER_S = 3.0, 1.5
_FRAMES = 4
#: How long averagers may take until they listen, seconds: tables may have millions of rows.
TABLES_S = 120.0


def frame_bytes(averager: Averager) -> int:
    """Return the bytes of the longest frame on an averager's cables, which is the frame with decimals."""
    from ringlight.extensions.optinc.unit.wire import FRAME, HEADER_BYTES, Form

    return HEADER_BYTES + Form(averager.bits, averager.ports).bytes_of(FRAME)


def under_way(averager: Averager) -> int:
    """Return the most bytes that a sender has in flight on a cable: its window of frames, and headers.

    A queue at the sender's own end never needs more. With a shorter queue, packets would be lost that TCP
    then sends again.
    """
    from ringlight.extensions.optinc.emulated.core import DEPTH
    from ringlight.extensions.optinc.reducing import WINDOW

    return (max(WINDOW, 2 * DEPTH) + 1) * frame_bytes(averager)


def silence_s(averager: Averager, rate_bps: Callable[[float], float]) -> float:
    """Return how long a server of an averager may be silent, seconds (in tenths). Frames on a slow link take
    longer."""
    slowest = min(rate_bps(cable.rate_bps) for cable in averager.cables)
    return (
        math.ceil(10 * (SILENCE_S + _FRAMES * 8 * frame_bytes(averager) / slowest)) / 10
    )


def place_of(
    fabric: Fabric, gpus: Sequence[str], rank: int, rate_bps: Callable[[float], float]
) -> dict[str, Any]:
    """Return the averager's settings for the worker of a rank (``containers.worker.spec``). ``rate_bps``:
    turns the real rate of a link into the emulated rate. Raises ValueError if the job cannot average here."""
    from ringlight.extensions.optinc.averaging import averaging_of

    averaging = averaging_of(fabric, gpus)
    if tuple(gpus) != averaging.servers:
        raise ValueError(
            f"ranks are in the order of the averagers' ports: {', '.join(averaging.servers)}"
        )
    (cable,) = cables_at(fabric, gpus[rank])
    own = averagers_in(fabric)[cable.b.node]
    slowest = max(
        silence_s(averager, rate_bps)
        for averager in (
            *averaging.first,
            *([averaging.above] if averaging.above else []),
        )
    )
    return {
        "address": f"{address_of(fabric, cable.b)}:{TCP_PORT}",
        "port": cable.b.number - 1,
        "ports": own.ports,
        "bits": own.bits,
        "decimals": own.decimals,
        "silence_s": slowest + LONGER_S,
    }


class AveragerDevice(Device):
    """The averagers of one lab, each a process in the namespace of its node.

    ``site``: of a lab whose fabric is ``fabric``.
    """

    def __init__(self, fabric: Fabric, site: Site) -> None:
        self._fabric, self._directory, self._rate_bps = (
            fabric,
            site.state,
            site.rate_bps,
        )
        self._processes = NodeProcesses(
            "averager",
            "averagers",
            TABLES_S,
            {
                averager.name: self._process(averager)
                for averager in averagers_in(fabric).values()
            },
        )

    @property
    def processes(self) -> NodeProcesses:
        return self._processes

    def _process(self, averager: Averager) -> NodeProcess:
        status = self._file(averager.name, "json")
        return NodeProcess(
            partial(self._command_anew, averager.name),
            self._file(averager.name, "log"),
            status.exists,
            {"status": str(status)},
            under_way(averager),
        )

    def _file(self, name: str, suffix: str) -> Path:
        """Return a file of an averager: its ``log``, its weights (``npz``), or its status (``json``), which
        it writes once it listens and again every second."""
        return self._directory / f"{name}.averager.{suffix}"

    def _command_anew(self, name: str) -> list[str]:
        self._file(name, "json").unlink(missing_ok=True)
        return self._command(name)

    def _command(self, name: str) -> list[str]:
        from ringlight.extensions.optinc.averaging import coding

        fabric = self._fabric
        averager = averagers_in(fabric)[name]
        below = [
            averagers_in(fabric)[cable.a.node]
            for cable in averager.cables
            if cable.a.node in averagers_in(fabric)
        ]
        up = next((cable for cable in fabric.cables if cable.a.node == name), None)
        above = None if up is None else averagers_in(fabric)[up.b.node]
        its = coding(averager, above, below[0] if below else None)
        command = [
            *(
                sys.executable,
                "-m",
                "ringlight.extensions.optinc.emulated",
                "--name",
                name,
            ),
            *(
                "--listen",
                f"0.0.0.0:{TCP_PORT}",
                "--status",
                str(self._file(name, "json")),
            ),
            *(
                "--bits",
                str(its.bits),
                "--servers",
                str(its.servers),
                "--inputs",
                str(its.inputs),
            ),
            *("--arriving", str(its.arriving), "--leaving", str(its.leaving)),
            *("--silence", repr(silence_s(averager, self._rate_bps))),
            *("--weights", self._weights(averager)),
        ]
        if below:
            command.append("--of-units")
        elif above is None or up is None:
            command += ["--first-rank", "0"]
        else:
            # Ranks are in the order of ports, first of the averager above.
            command += ["--first-rank", str((up.b.number - 1) * averager.ports)]
        if above is not None and up is not None:
            command += ["--above", f"{address_of(fabric, up.b)}:{TCP_PORT}"]
            command += ["--unit", str(up.b.number - 1), "--units", str(above.ports)]
        return command

    def _weights(self, averager: Averager) -> str:
        from ringlight.extensions.optinc.unit.designed import designed
        from ringlight.extensions.optinc.unit.structure import CASES
        from ringlight.extensions.optinc.unit.weights import pack

        if averager.network == "exact":
            return "exact"
        case = next(
            name
            for name, known_case in CASES.items()
            if (known_case.coding.bits, known_case.coding.servers)
            == (averager.bits, averager.ports)
        )
        if averager.network == "trained":
            return str(
                resources.files("ringlight.extensions.optinc.unit.weights")
                / f"{case}.npz"
            )
        path = self._file(averager.name, "npz")
        path.write_bytes(pack(designed(CASES[case])))
        return str(path)

    def worker_keys(
        self, spec: Mapping[str, Any], gpus: Sequence[str], rank: int
    ) -> dict[str, Any]:
        # Here, as the testbed comes up sooner without numpy.
        from ringlight.fabric.algorithms import parse_collective

        if not parse_collective(str(spec.get("collective", "ring"))).stepless:
            return {}
        return {"place": place_of(self._fabric, gpus, rank, self._rate_bps)}

    def stop(self) -> None:
        for name in self._processes.by_node:
            for suffix in ("json", "log", "npz"):
                with suppress(OSError):
                    self._file(name, suffix).unlink()
