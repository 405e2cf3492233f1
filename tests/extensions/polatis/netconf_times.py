"""Control time through the NETCONF driver against Debian's netconfd,
as ``benchmarks/optical_drivers.py`` measures it.

    python -m tests.extensions.polatis.netconf_times
"""

from __future__ import annotations

import contextlib
import json
import os
import sys

from benchmarks.optical_drivers import measure
from ringlight.controller.optical.registry import make_driver
from tests.extensions.polatis.netconf_server import (
    PASSWORD,
    USER,
    NetconfServer,
    missing,
)

PORTS, ROUNDS, MOVES = 320, 5, 200


def main() -> None:
    if why := missing():
        sys.exit(f"not measured: {why}")
    with contextlib.closing(NetconfServer(2 * PORTS)) as server:
        os.environ["OPTICAL_BENCHMARK"] = PASSWORD
        entry = {
            "driver": "polatis-netconf",
            "address": server.address,
            "host_key": server.host_key,
        }
        entry |= {"username": USER, "password_env": "OPTICAL_BENCHMARK"}
        driver = make_driver("ocs0", entry, PORTS)
        json.dump(
            measure(driver, range(PORTS + 1, 2 * PORTS + 1), ROUNDS, MOVES, 0),
            sys.stdout,
            indent=1,
        )


if __name__ == "__main__":
    main()
