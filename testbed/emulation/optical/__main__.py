"""``python -m ringlight.testbed.emulation.optical``: one emulated optical switch as a process."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from pathlib import Path

from ringlight.controller.errors import StartError
from ringlight.controller.web.access import is_loopback, read_tokens
from ringlight.fabric.optical_profiles import profiles
from ringlight.testbed.emulation.kernel.build import BuildError
from ringlight.testbed.emulation.optical.alone import read_address, read_users
from ringlight.testbed.emulation.optical.commands import Recovery
from ringlight.testbed.emulation.optical.datapath import MAX_SELECTIVE_PORTS
from ringlight.testbed.emulation.optical.far_light import LightPlan
from ringlight.testbed.emulation.optical.server import OpticalSwitchServer
from ringlight.testbed.emulation.optical.session import protocol_named
from ringlight.testbed.emulation.optical.switch_settings import IDLE_TIMEOUT_S, Settings


def _address(text: str) -> tuple[str, int]:
    try:
        return read_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _served(text: str) -> tuple[str, tuple[str, int]]:
    name, separator, where = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not protocol=host:port")
    try:
        protocol_named(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return name, _address(where)


def _users(text: str) -> dict[str, str]:
    try:
        return read_users(Path(text))
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _laser(text: str) -> tuple[int, int]:
    port, separator, laser = text.partition("=")
    if not separator or not port.isdigit() or not laser.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not port=laser")
    return int(port), int(laser)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ringlight.testbed.emulation.optical", description=__doc__
    )
    parser.add_argument("--name", required=True, help="the switch's name in the fabric")
    parser.add_argument(
        "--lab", default="", help="id of the lab it belongs to (told in the log)"
    )
    parser.add_argument(
        "--size", type=int, required=True, help="duplex faceplate ports"
    )
    parser.add_argument(
        "--listen",
        type=_address,
        default=("127.0.0.1", 5025),
        help="host:port for SCPI",
    )
    parser.add_argument(
        "--serve",
        type=_served,
        action="append",
        default=[],
        metavar="PROTOCOL=HOST:PORT",
        help="another management protocol of the same switch, besides SCPI",
    )
    parser.add_argument(
        "--users",
        type=_users,
        default={},
        metavar="FILE",
        help="lines user:password, for protocols with a login",
    )
    parser.add_argument(
        "--rest",
        type=_address,
        metavar="HOST:PORT",
        help="REST of the switch itself: what it really does, faults",
    )
    parser.add_argument(
        "--rest-token-file",
        type=Path,
        metavar="FILE",
        help="the token that every call of it then needs",
    )
    parser.add_argument("--profile", choices=sorted(profiles()), default="mems")
    parser.add_argument(
        "--netns",
        help="namespace (name or path) whose interfaces p1, p2, … are the ports",
    )
    parser.add_argument(
        "--pins",
        type=Path,
        required=True,
        help="directory in bpffs of this switch alone",
    )
    parser.add_argument(
        "--recovery",
        type=Recovery,
        choices=list(Recovery),
        metavar="MODE",
        help="what a start does to light: maintain, restore or remove it (as last told; maintain)",
    )
    parser.add_argument(
        "--time-dilation", type=float, default=1.0, help="times longer that delays take"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--wavelengths", type=int, default=0, help="channels, which makes it a WSS"
    )
    parser.add_argument(
        "--lasers", type=Path, help="pinned map of the lab's tunable lasers; for a WSS"
    )
    parser.add_argument(
        "--tagged",
        action="store_true",
        help="a WSS to which light tells its colour itself, by its 802.1Q tag",
    )
    parser.add_argument(
        "--laser",
        type=_laser,
        action="append",
        default=[],
        help="port=id, of the laser plugged into a port",
    )
    parser.add_argument(
        "--loss", type=float, help="dB of a pass, in place of the profile's"
    )
    parser.add_argument(
        "--dark", type=float, help="seconds that a new cross-connect is dark, likewise"
    )
    parser.add_argument("--light", type=Path, help="file that tells of the lab's light")
    parser.add_argument(
        "--failed-port", type=int, action="append", default=[], help="a broken port"
    )
    parser.add_argument(
        "--idle-timeout",
        type=float,
        default=IDLE_TIMEOUT_S,
        help="seconds; idle clients are dropped",
    )
    parser.add_argument(
        "--ready",
        type=Path,
        help="file to write addresses and pid to once clients can connect",
    )
    return parser


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    chosen = parser.parse_args(arguments)
    if not 1 <= chosen.size <= 4096:
        parser.error(f"--size {chosen.size}: 1 to 4096 ports")
    if chosen.tagged and (chosen.lasers is not None or chosen.laser):
        parser.error("--tagged: light that tells its colour needs no lasers")
    if (chosen.wavelengths > 0) != (chosen.lasers is not None or chosen.tagged):
        parser.error("--wavelengths and --lasers (or --tagged) go together")
    if chosen.wavelengths > 0 and chosen.size > MAX_SELECTIVE_PORTS:
        parser.error(
            f"--size {chosen.size}: a WSS has at most {MAX_SELECTIVE_PORTS} ports"
        )
    try:
        tokens = (
            None
            if chosen.rest_token_file is None
            else read_tokens(chosen.rest_token_file)
        )
    except StartError as error:
        parser.error(f"--rest-token-file {error}")
    if chosen.rest is not None and tokens is None and not is_loopback(chosen.rest[0]):
        parser.error(
            f"--rest {chosen.rest[0]}: not a loopback address; that needs --rest-token-file"
        )
    if len({name for name, _ in chosen.serve} | {"scpi"}) != len(chosen.serve) + 1:
        parser.error("--serve: each protocol once, scpi by --listen")
    if chosen.wavelengths > 0 and chosen.serve:
        parser.error("--serve: of these protocols only scpi knows wavelengths")
    for port, _ in chosen.laser:
        if not 1 <= port <= chosen.size:
            parser.error(f"--laser {port}: there is no such port (1..{chosen.size})")
    if not chosen.time_dilation > 0:
        parser.error(f"--time-dilation {chosen.time_dilation}: must be more than 0")
    for port in chosen.failed_port:
        if not 1 <= port <= 2 * chosen.size:
            parser.error(
                f"--failed-port {port}: there is no such port (1..{2 * chosen.size})"
            )
    logging.basicConfig(
        level=logging.INFO, format=f"%(asctime)s {chosen.lab}/{chosen.name} %(message)s"
    )
    try:
        light = LightPlan.read(chosen.light) if chosen.light is not None else None
    except (OSError, ValueError) as error:
        parser.error(f"--light {chosen.light}: {error}")
    settings = Settings(
        name=chosen.name,
        size=chosen.size,
        profile=profiles()[chosen.profile]
        .losing(chosen.loss)
        .dark_for(chosen.dark)
        .dilated(chosen.time_dilation),
        listen=chosen.listen,
        netns=chosen.netns,
        pins=chosen.pins,
        seed=chosen.seed,
        failed_ports=tuple(chosen.failed_port),
        idle_timeout_s=chosen.idle_timeout,
        wavelengths=chosen.wavelengths,
        lasers=chosen.lasers,
        laser_of_port=dict(chosen.laser),
        light=light,
        serve=tuple(chosen.serve),
        users=chosen.users,
        rest=chosen.rest,
        rest_tokens=tokens,
        recovery=chosen.recovery,
    )
    try:
        server = OpticalSwitchServer(settings)
    except (OSError, ValueError, BuildError) as error:
        sys.stderr.write(f"optical switch {chosen.name}: {error}\n")
        return 1
    server.stop_on_signals()
    addresses = server.addresses
    listing = ", ".join(f"{name} {where}" for name, where in addresses.items())
    logging.info(
        "ready at %s: %s", listing, "light as it was" if server.resumed else "all dark"
    )
    if chosen.ready is not None:
        temporary = chosen.ready.with_name(f".{chosen.ready.name}.{os.getpid()}")
        ready = {
            "address": addresses["scpi"],
            "addresses": addresses,
            "pid": os.getpid(),
        }
        if server.rest_address is not None:
            ready["rest"] = server.rest_address
        temporary.write_text(json.dumps(ready) + "\n")
        temporary.replace(chosen.ready)
    server.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
