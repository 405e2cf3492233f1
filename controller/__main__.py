"""``python -m ringlight.controller``: one fabric's controller, from its arguments to its clean end."""

from __future__ import annotations

import argparse
import contextlib
import errno
import gc
import json
import logging
import os
import signal
import socket
import ssl
import sys
import threading
from importlib import import_module
from pathlib import Path

from pydantic import ValidationError

from ringlight.controller.circuits.drift import Policy
from ringlight.controller.errors import StartError
from ringlight.controller.inventory import wait_for_inventory
from ringlight.controller.logs import configure
from ringlight.controller.openflow.errors import ListenError
from ringlight.controller.openflow.plane import OpenFlowPlane
from ringlight.controller.rest.app import create_app
from ringlight.controller.service import Controller
from ringlight.controller.web.access import check_doors, check_tls, read_tokens
from ringlight.controller.web.listening import listen
from ringlight.controller.web.serving import HttpServer
from ringlight.fabric.planes.divided.plugged import plugged
from ringlight.fabric.schema import FabricSpec, build_fabric
from ringlight.fabric.topology import Fabric, circuit_switches

log = logging.getLogger("controller")

#: Longest time that a thread keeps the interpreter while another wants it, seconds.
_SWITCH_S = 0.001


def main(argv: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code: 0, or 1 after a one-line error on stderr."""
    options = _arguments().parse_args(argv)
    configure(options.log_level)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    try:
        _run(options, stopped)
    except (StartError, ListenError) as error:
        sys.stderr.write(f"ringlight controller: {error}\n")
        return 1
    return 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ringlight.controller", description=main.__doc__)
    parser.add_argument("--fabric", type=Path, required=True, help="the scenario's fabric section as JSON")
    parser.add_argument("--inventory", type=Path, required=True, help="the testbed's inventory file")
    parser.add_argument("--state", type=Path, required=True, help="directory for what must survive a restart")
    parser.add_argument("--rest", default="127.0.0.1:8080", help="HOST:PORT of the REST API (%(default)s)")
    parser.add_argument("--openflow", default="127.0.0.1:6653", help="HOST:PORT for switches (%(default)s)")
    parser.add_argument(
        "--token-file",
        type=Path,
        help="file with the token that every call then needs, or a line NAME TOKEN for each of several",
    )
    parser.add_argument("--tls-cert", type=Path, help="file of REST's certificate, with its chain (PEM)")
    parser.add_argument("--tls-key", type=Path, help="file of the certificate's private key (PEM)")
    parser.add_argument(
        "--rest-insecure",
        action="store_true",
        help="REST beyond loopback may go without TLS: whoever sees the traffic has the token",
    )
    parser.add_argument(
        "--openflow-ca",
        type=Path,
        help="OpenFlow over TLS, with the certificate and key of --tls-cert and --tls-key: switches must have"
        " a certificate that these authorities (a file, PEM) have signed",
    )
    parser.add_argument(
        "--openflow-insecure",
        action="store_true",
        help="OpenFlow beyond loopback may go without TLS: whoever reaches the port can be a switch",
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        # The variable also reaches the controller of ``ringlight up``.
        default=os.environ.get("RINGLIGHT_ALLOW_HOSTS", "").split(),
        metavar="NAME",
        help="another name that it may be called by, besides localhost and its address; may be repeated"
        " (also: RINGLIGHT_ALLOW_HOSTS, names with spaces between)",
    )
    parser.add_argument("--page", type=Path, metavar="DIR", help="directory of the page served at /view/")
    parser.add_argument(
        "--policy",
        type=Policy,
        choices=list(Policy),
        help="what becomes of light that others change, on optical switches without their own policy, and"
        " of what they carry at the first start (default: as it was set, at first mend)",
    )
    parser.add_argument("--inventory-timeout", type=float, default=60.0, help="seconds (%(default)s)")
    parser.add_argument("--switches-timeout", type=float, default=15.0, help="seconds (%(default)s)")
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    return parser


def _run(options: argparse.Namespace, stopped: threading.Event) -> None:
    tokens = None if options.token_file is None else read_tokens(options.token_file)
    rest_host, rest_port = _address("--rest", options.rest)
    openflow_host, openflow_port = _address("--openflow", options.openflow)
    tls = check_tls(options.tls_cert, options.tls_key)
    openflow_tls = _openflow_tls(tls, options.openflow_ca)
    check_doors(
        options.rest,
        options.openflow,
        token=tokens is not None,
        tls=tls is not None,
        rest_insecure=options.rest_insecure,
        openflow_tls=openflow_tls is not None,
        openflow_insecure=options.openflow_insecure,
    )
    fabric = read_fabric(options.fabric)
    # The ports come first: a second controller must end before it touches anything.
    with _listen(rest_host, rest_port) as rest:
        plane = OpenFlowPlane(openflow_host, openflow_port, openflow_tls)
        plane.start()
        try:
            inventory = wait_for_inventory(
                options.inventory, fabric, options.inventory_timeout, stopped.is_set
            )
            if inventory is None:
                return
            controller = Controller(fabric, inventory, options.state, plane, options.policy)
            try:
                controller.start(options.switches_timeout)
                app = create_app(controller, tokens, [rest_host, *options.allow_host], options.page)
                _serve(HttpServer(app, rest, tls=tls), controller, rest, stopped)
            finally:
                controller.stop()
        finally:
            plane.stop()


def _openflow_tls(tls: tuple[Path, Path] | None, authorities: Path | None) -> ssl.SSLContext | None:
    """How switches are met that must show a certificate. Raises StartError."""
    if authorities is None:
        return None
    if tls is None:
        raise StartError("--openflow-ca: it needs --tls-cert and --tls-key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(*tls)
        context.load_verify_locations(authorities)
    except OSError as error:
        raise StartError(f"--openflow-ca {authorities}: {error.strerror or error}") from error
    return context


def _serve(server: HttpServer, controller: Controller, rest: socket.socket, stopped: threading.Event) -> None:
    """Answer REST calls until ``stopped``; the server's thread is ended here."""
    with contextlib.suppress(TimeoutError):
        server.start()
    # What the start has made stays: no full collection shall look through it again while a call waits.
    gc.freeze()
    # A thread that a call needs waits no longer than this for one that computes.
    sys.setswitchinterval(_SWITCH_S)
    if circuit_switches(controller.fabric):
        threading.Thread(target=_load_solver, name="solver", daemon=True).start()
    host, port = rest.getsockname()[:2]
    log.info("REST on %s:%s, OpenFlow on %s:%s", host, port, controller.plane.host, controller.plane.port)
    while not stopped.wait(0.5):
        if not server.alive:
            raise StartError("the REST server ended by itself")
    controller.bus.close()
    server.stop()


def _load_solver() -> None:
    """Import what the first regroup needs, which should not wait for it, and nothing before."""
    import_module("scipy.optimize")
    gc.freeze()


def read_fabric(path: Path) -> Fabric:
    """The fabric in a JSON file, plugged together. Raises StartError naming the file and the key."""
    try:
        return plugged(build_fabric(FabricSpec.model_validate(json.loads(path.read_text()))))
    except OSError as error:
        raise StartError(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise StartError(f"{path}: {where}: {first['msg'].removeprefix('Value error, ')}") from error
    except ValueError as error:
        raise StartError(f"{path}: {error}") from error


def _address(option: str, text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise StartError(f"{option} {text}: write HOST:PORT")
    return host.strip("[]"), int(port)


def _listen(host: str, port: int) -> socket.socket:
    """The REST port, held from now on; who connects early is answered once all is up."""
    try:
        return listen(host, port)
    except OSError as error:
        reason = "is already in use" if error.errno == errno.EADDRINUSE else f"cannot be opened: {error}"
        raise StartError(f"REST port {host}:{port} {reason}") from error


if __name__ == "__main__":
    sys.exit(main())
