"""``python -m ringlight.controller``: one fabric's controller, from its arguments to its clean end."""

from __future__ import annotations

import argparse
import contextlib
import errno
import gc
import os
import signal
import socket
import ssl
import sys
import threading
from pathlib import Path

from ringlight.controller.circuits.drift import Policy
from ringlight.controller.errors import StartError
from ringlight.controller.logs import configure
from ringlight.controller.openflow.errors import ListenError
from ringlight.controller.openflow.port import open_port
from ringlight.controller.web.access import check_doors, check_tls, read_tokens
from ringlight.controller.web.listening import listen


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
    parser = argparse.ArgumentParser(
        prog="python -m ringlight.controller", description=main.__doc__
    )
    parser.add_argument(
        "--fabric",
        type=Path,
        required=True,
        help="the scenario's fabric section as JSON",
    )
    parser.add_argument(
        "--inventory", type=Path, required=True, help="the testbed's inventory file"
    )
    parser.add_argument(
        "--state",
        type=Path,
        required=True,
        help="directory for what must survive a restart",
    )
    parser.add_argument(
        "--rest",
        default="127.0.0.1:8080",
        help="HOST:PORT of the REST API (%(default)s)",
    )
    parser.add_argument(
        "--openflow",
        default="127.0.0.1:6653",
        help="HOST:PORT for switches (%(default)s)",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        help="file with the token that every call then needs, or a line NAME TOKEN for each of several",
    )
    parser.add_argument(
        "--tls-cert", type=Path, help="file of REST's certificate, with its chain (PEM)"
    )
    parser.add_argument(
        "--tls-key", type=Path, help="file of the certificate's private key (PEM)"
    )
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
    parser.add_argument(
        "--policy",
        type=Policy,
        choices=list(Policy),
        help="what becomes of light that others change, on optical switches without their own policy, and"
        " of what they carry at the first start (default: as it was set, at first mend)",
    )
    parser.add_argument(
        "--inventory-timeout", type=float, default=60.0, help="seconds (%(default)s)"
    )
    parser.add_argument(
        "--switches-timeout", type=float, default=15.0, help="seconds (%(default)s)"
    )
    parser.add_argument(
        "--log-level", default="info", choices=["debug", "info", "warning", "error"]
    )
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
    # The ports come first: a second controller must end before it touches anything, and a switch that finds
    # nobody tries again only after a second.
    with _listen(rest_host, rest_port) as rest, contextlib.ExitStack() as undo:
        listener = None
        if openflow_tls is None:
            listener = undo.enter_context(open_port(openflow_host, openflow_port))
        # Here, as it takes long; nothing that it makes is garbage.
        gc.disable()
        from ringlight.controller.running import run

        gc.enable()
        run(
            options,
            tokens,
            tls,
            rest,
            (openflow_host, openflow_port, openflow_tls, listener),
            stopped,
        )


def _openflow_tls(
    tls: tuple[Path, Path] | None, authorities: Path | None
) -> ssl.SSLContext | None:
    """Return the TLS context with which switches must present a certificate; None without authorities.

    Raises StartError.
    """
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
        raise StartError(
            f"--openflow-ca {authorities}: {error.strerror or error}"
        ) from error
    return context


def _address(option: str, text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise StartError(f"{option} {text}: write HOST:PORT")
    return host.strip("[]"), int(port)


def _listen(host: str, port: int) -> socket.socket:
    """Return the listening socket of the REST port.

    Early clients are answered once everything is up. Raises StartError.
    """
    try:
        return listen(host, port)
    except OSError as error:
        reason = (
            "is already in use"
            if error.errno == errno.EADDRINUSE
            else f"cannot be opened: {error}"
        )
        raise StartError(f"REST port {host}:{port} {reason}") from error


if __name__ == "__main__":
    sys.exit(main())
