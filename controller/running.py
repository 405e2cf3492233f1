"""Run a controller from reading its files to its end, on ports that are already open."""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import socket
import ssl
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

from ringlight.controller.errors import StartError
from ringlight.controller.inventory import wait_for_inventory
from ringlight.controller.openflow.plane import OpenFlowPlane
from ringlight.controller.rest.app import create_app
from ringlight.controller.service import Controller
from ringlight.controller.web.serving import HttpServer
from ringlight.fabric.building import fabric_of_document
from ringlight.fabric.topology import Fabric, circuit_switches

log = logging.getLogger("controller")

#: Longest time that a thread keeps the interpreter while another wants it, seconds.
_SWITCH_S = 0.001


def run(
    options: argparse.Namespace,
    tokens: Mapping[str, str] | None,
    tls: tuple[Path, Path] | None,
    rest: socket.socket,
    switches: tuple[str, int, ssl.SSLContext | None, socket.socket | None],
    stopped: threading.Event,
) -> None:
    """Run until ``stopped``. ``options``: the command's; ``switches``: arguments of ``OpenFlowPlane``.

    Raises StartError, ListenError.
    """
    fabric = read_fabric(options.fabric)
    plane = OpenFlowPlane(*switches)
    plane.start()
    try:
        inventory = wait_for_inventory(
            options.inventory, fabric, options.inventory_timeout, stopped.is_set
        )
        if inventory is None:
            return
        controller = Controller(fabric, inventory, options.state, plane, options.policy)
        try:
            names = [options.rest.rpartition(":")[0].strip("[]"), *options.allow_host]
            # While the switches are waited for, which takes as long.
            with ThreadPoolExecutor(1, "start") as beside:
                started = beside.submit(controller.start, options.switches_timeout)
                app = create_app(controller, tokens, names)
                started.result()
            _serve(HttpServer(app, rest, tls=tls), controller, rest, stopped)
        finally:
            controller.stop()
    finally:
        plane.stop()


def _serve(
    server: HttpServer,
    controller: Controller,
    rest: socket.socket,
    stopped: threading.Event,
) -> None:
    """Answer REST calls until ``stopped``; the server's thread is ended here."""
    controller.complaints.append(lambda: server.complaint)
    with contextlib.suppress(TimeoutError):
        server.start()
    # Objects made by the start are permanent: no full collection shall scan them while a call waits.
    gc.freeze()
    # A thread that a call needs waits no longer than this for one that computes.
    sys.setswitchinterval(_SWITCH_S)
    if circuit_switches(controller.fabric):
        threading.Thread(target=_load_solver, name="solver", daemon=True).start()
    host, port = rest.getsockname()[:2]
    log.info(
        "REST on %s:%s, OpenFlow on %s:%s",
        host,
        port,
        controller.plane.host,
        controller.plane.port,
    )
    while not stopped.wait(0.5):
        if not server.alive:
            raise StartError("the REST server ended by itself")
    controller.bus.close()
    server.stop()


def _load_solver() -> None:
    """Import what the first regroup needs, which should not wait for it, and nothing before."""
    import_module("highspy")
    gc.freeze()


def read_fabric(path: Path) -> Fabric:
    """Return the fabric in a JSON file, plugged together. Raises StartError naming the file and the key."""
    try:
        return fabric_of_document(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StartError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise StartError(f"{path}: {error}") from error
