"""``python -m ringlight.testbed.emulation.onic``: the agent of one O-NIC, with its lasers and routes.

Imports little: a lab starts one of these for each O-NIC.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from ringlight.controller.onic.agent import Agent
from ringlight.controller.onic.agent_settings import AgentError, AgentSettings
from ringlight.controller.onic.lease_times import Times
from ringlight.testbed.emulation.onic.transmitters import BpfLaser, BpfRoutes

#: An O-NIC's control unit is hardware of its own and never waits for the GPU's work; here they share cores.
NICENESS = -20


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ringlight.testbed.emulation.onic", description=__doc__
    )
    parser.add_argument("--gpu", required=True)
    parser.add_argument(
        "--listen", required=True, help="host:port on the control network"
    )
    parser.add_argument(
        "--directory", type=Path, required=True, help="for its sockets and its map"
    )
    parser.add_argument(
        "--pins", type=Path, required=True, help="BPF maps of this O-NIC"
    )
    parser.add_argument(
        "--lasers", type=Path, required=True, help="pinned map of the lab's lasers"
    )
    parser.add_argument(
        "--laser-ids", required=True, help="numbers of its lasers by port, such as 4,5"
    )
    parser.add_argument("--tuning", type=float, default=0.0, help="emulated seconds")
    parser.add_argument(
        "--lease", type=float, default=Times().lease_s, help="emulated seconds"
    )
    parser.add_argument(
        "--time-dilation", type=float, default=1.0, help="times longer that all takes"
    )
    parser.add_argument("--allow-faults", action="store_true")
    return parser


def main(arguments: list[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
        host, _, port = chosen.listen.rpartition(":")
        ids = [int(laser) for laser in chosen.laser_ids.split(",")]
        settings = AgentSettings(
            gpu=chosen.gpu,
            directory=chosen.directory,
            listen=(host, int(port)),
            tuning_s=chosen.tuning * chosen.time_dilation,
            times=Times.dilated(chosen.lease, chosen.time_dilation),
            ports=len(ids),
            allow_faults=chosen.allow_faults,
        )
        agent = Agent(
            settings, BpfLaser.open(chosen.lasers, ids), BpfRoutes(chosen.pins)
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: agent.stop())
        agent.run()
    except (AgentError, OSError, ValueError) as error:
        sys.stderr.write(f"O-NIC {chosen.gpu}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
