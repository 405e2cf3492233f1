"""``python -m ringlight.extensions.optinc.emulated``: one averager of OptINC as a process of its own."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
from pathlib import Path

# One thread is what an averager has; a BLAS would start more when numpy loads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from ringlight.extensions.optinc.emulated.core import Core, Unit
from ringlight.extensions.optinc.emulated.lookup import (
    EXACT,
    Lookup,
    LookupSample,
    evaluate,
    load,
)
from ringlight.extensions.optinc.emulated.server import Server
from ringlight.extensions.optinc.unit.averaging import Coding
from ringlight.extensions.optinc.unit.network import wrong_of


def _address(text: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not host:port")
    return host, int(port)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ringlight.extensions.optinc.emulated", description=__doc__
    )
    parser.add_argument(
        "--name", required=True, help="the averager's name in the fabric"
    )
    parser.add_argument(
        "--listen",
        type=_address,
        required=True,
        help="host:port; port 0 takes a free one",
    )
    parser.add_argument("--bits", type=int, required=True)
    parser.add_argument(
        "--servers", type=int, required=True, help="how many it averages"
    )
    parser.add_argument("--inputs", type=int, default=4, help="of the network")
    parser.add_argument(
        "--arriving", type=int, default=1, help="parts of the last symbol that arrives"
    )
    parser.add_argument(
        "--leaving", type=int, default=1, help="parts of the last symbol that leaves"
    )
    parser.add_argument(
        "--weights", default=EXACT, help=f"an npz file, or {EXACT!r}: the exact mean"
    )
    parser.add_argument(
        "--first-rank", type=int, default=0, help="rank of the server at port 0"
    )
    parser.add_argument(
        "--of-units", action="store_true", help="its servers are averagers"
    )
    parser.add_argument(
        "--above", type=_address, help="host:port of the averager of averagers"
    )
    parser.add_argument("--unit", type=int, default=0, help="its port there")
    parser.add_argument("--units", type=int, default=0, help="how many ports that has")
    parser.add_argument(
        "--silence", type=float, default=3.0, help="seconds that a server may be silent"
    )
    parser.add_argument(
        "--status", type=Path, help="file that tells address, table and counters (JSON)"
    )
    return parser


def main(arguments: list[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    try:
        coding = Coding(
            chosen.bits, chosen.servers, chosen.inputs, chosen.arriving, chosen.leaving
        )
        if (chosen.above is None) != (chosen.units == 0) or not chosen.unit < max(
            1, chosen.units
        ):
            raise ValueError("--above, --unit and --units go together")
        if chosen.leaving != 1 and chosen.above is None:
            raise ValueError("--leaving: decimals go to an averager above only")
        began = time.process_time()
        network = load(chosen.weights)
        table = evaluate(network, coding)
        wrong = wrong_of(table)
        sample = LookupSample(network, coding)
        unit = Unit(
            coding,
            first_rank=None if chosen.of_units else chosen.first_rank,
            above=None if chosen.above is None else (chosen.unit, chosen.units),
            silence_s=chosen.silence,
        )
        core = Core(unit, Lookup(table), sample)
        spent = time.process_time() - began
        with socket.create_server(chosen.listen, backlog=64) as listener:
            facts = {
                "name": chosen.name,
                "pid": os.getpid(),
                "listen": list(listener.getsockname()[:2]),
                "bits": chosen.bits,
                "servers": chosen.servers,
                "weights": chosen.weights,
                "table": {
                    "inputs": wrong.inputs,
                    "wrong": wrong.wrong,
                    "by": dict(wrong.by),
                    "worst": wrong.worst,
                    "cpu_s": spent,
                },
                "check": {"every": sample.every, "codes": sample.codes},
            }
            server = Server(core, listener, chosen.above, chosen.status, facts)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: server.stop())
            server.run()
    except (OSError, ValueError) as error:
        sys.stderr.write(f"averager {chosen.name}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
