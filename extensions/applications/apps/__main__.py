"""``python -m ringlight.extensions.applications.apps``: runs users' applications from their files.

They see the switches that connect to their port, and have their REST routes on another. Nothing of ours is in
this process but the names that they import.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from os_ken import cfg
from os_ken.base.app_manager import AppManager, OSKenApp

from ringlight.extensions.applications.apps import ryu, threads, wsgi

log = logging.getLogger("apps")

_HANDLER = "os_ken.controller.ofp_handler"
#: Time for os-ken to open its port, and for applications to close, seconds.
_LISTEN_S, _CLOSE_S = 10.0, 2.0
#: TCP's state of a socket that listens, in /proc/net/tcp.
_LISTENS = "0A"


class AppError(RuntimeError):
    """An application cannot be run; one line that names its file."""


def load(path: Path) -> tuple[str, type]:
    """Import an application's file. Return its module's name and its class. Raises AppError."""
    if (brought := _brought(path)) is not None:
        importlib.import_module(brought)
        return brought, _class_in(brought, path)
    name = path.stem
    if not path.is_file():
        raise AppError(f"{path}: there is no such file")
    if path.suffix != ".py" or name in sys.modules:
        why = (
            "is no .py file"
            if path.suffix != ".py"
            else f"there is a module {name} already; rename it"
        )
        raise AppError(f"{path}: {why}")
    # Modules next to the file can be imported, as if it had been started there.
    sys.path.append(str(path.parent.absolute()))
    spec = importlib.util.spec_from_file_location(name, path.absolute())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        if (lacking := ryu.lacking(error)) is not None:
            raise AppError(f"{path}: it imports {lacking}") from error
        raise AppError(f"{path}: {error}") from error
    except SyntaxError as error:
        raise AppError(f"{path}, line {error.lineno}: {error.msg}") from error
    except Exception as error:
        # Whatever a stranger's file does when it is read, it is this file's fault.
        log.exception("%s", path)
        raise AppError(f"{path}: {type(error).__name__}: {error}") from error
    # A module may list by itself what it requires.
    ryu.required.extend(map(ryu.real_name, vars(module).pop("_REQUIRED_APP", ())))
    return name, _class_in(name, path)


def _brought(path: Path) -> str | None:
    """Return the name under which os-ken's applications know one of our files; None for any other file."""
    for name, ours in ryu.BROUGHT.items():
        if path.absolute() == Path(__file__).with_name(f"{ours.rpartition('.')[2]}.py"):
            return name
    return None


def _class_in(module: str, path: Path) -> type:
    """Return the application's class. Raises AppError if there is none."""
    app_class: type | None = AppManager().load_app(ryu.BROUGHT.get(module, module))
    if app_class is None:
        raise AppError(
            f"{path}: no application in it: no class derived from app_manager.RyuApp (OSKenApp)"
        )
    return app_class


def _check_names(loaded: Sequence[tuple[str, type]]) -> None:
    """Raise AppError for two applications of one name, which os-ken cannot tell apart."""
    files: dict[str, str] = {}
    for module, kind in loaded:
        if (other := files.setdefault(kind.__name__, module)) != module:
            raise AppError(
                f"{other}.py, {module}.py: both have an application {kind.__name__}; rename one"
            )


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code: 0, or 1 after a one-line error on stderr."""
    options = _arguments().parse_args(argv)
    handler = logging.StreamHandler()
    handler.setFormatter(
        threads.OneLine("%(asctime)s %(name)s %(levelname)s %(message)s")
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    try:
        manager = _start(options)
    except (AppError, OSError) as error:
        sys.stderr.write(f"applications: {error}\n")
        sys.stderr.flush()
        # An application's threads may be running, which nothing can end.
        os._exit(1)
    stopped.wait()
    threads.closing.set()
    closing = threading.Thread(target=manager.close, name="close", daemon=True)
    closing.start()
    closing.join(_CLOSE_S)
    logging.shutdown()
    os._exit(0)


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ringlight.extensions.applications.apps", description=__doc__
    )
    parser.add_argument(
        "--openflow", required=True, help="HOST:PORT for their switches"
    )
    parser.add_argument("--rest", required=True, help="HOST:PORT of their REST routes")
    parser.add_argument("--ready", type=Path, help="file to write once they run")
    parser.add_argument(
        "--observe-links",
        action="store_true",
        help="discover links between switches (LLDP), for ryu.topology",
    )
    parser.add_argument("files", type=Path, nargs="+")
    return parser


def _start(options: argparse.Namespace) -> AppManager:
    """Start the applications and their servers. Return the manager. Raises AppError, OSError."""
    openflow, rest = _address(options.openflow), _address(options.rest)
    ryu.install()
    threads.install()
    # Before the options are read, because it declares some.
    topology = importlib.import_module(
        "ringlight.extensions.applications.apps.topology"
    )
    topology.install()
    cfg.CONF(args=[], project="os_ken", default_config_files=[], default_config_dirs=[])
    for key, value in (
        ("ofp_listen_host", openflow[0]),
        ("ofp_tcp_listen_port", openflow[1]),
        ("wsapi_host", rest[0]),
        ("wsapi_port", rest[1]),
        ("observe_links", options.observe_links),
    ):
        cfg.CONF.set_override(key, value)
    loaded = [load(path) for path in options.files]
    _check_names(loaded)
    manager = AppManager.get_instance()
    try:
        manager.load_apps(
            [_HANDLER, *(name for name, _ in loaded), *dict.fromkeys(ryu.required)]
        )
        contexts = manager.create_contexts()
        # os-ken opens the port on a thread of its own, where nobody is told that it is taken.
        _check_free(openflow)
        manager.instantiate_apps(**contexts)
        _await_listening(openflow[1])
    except (AppError, OSError):
        raise
    except Exception as error:
        log.exception("the applications do not start")
        files = ", ".join(str(path) for path in options.files)
        lacking = ryu.lacking(error) if isinstance(error, ImportError) else None
        what = (
            f"an application requires {lacking}"
            if lacking
            else f"{type(error).__name__}: {error}"
        )
        raise AppError(f"{files}: {' '.join(what.split())}") from error
    _serve(rest, contexts)
    if options.ready is not None:
        facts = {
            "openflow": options.openflow,
            "rest": options.rest,
            "files": [str(f) for f in options.files],
        }
        partial = options.ready.with_suffix(".part")
        partial.write_text(json.dumps(facts), encoding="utf-8")
        partial.replace(options.ready)
    log.info(
        "OpenFlow on %s, REST on %s: %s",
        *_texts(options.openflow, options.rest, loaded),
    )
    return manager


def _texts(
    openflow: str, rest: str, loaded: Sequence[tuple[str, type[OSKenApp]]]
) -> tuple[str, str, str]:
    return (
        openflow,
        rest,
        ", ".join(f"{kind.__name__} of {name}.py" for name, kind in loaded),
    )


def _serve(address: tuple[str, int], contexts: dict[str, Any]) -> None:
    """Serve the routes of the applications, if any application has some. Raises OSError."""
    application = next(
        (c for c in contexts.values() if isinstance(c, wsgi.WSGIApplication)), None
    )
    if application is None:
        return
    # The variable is that of our own REST; it also reaches the process of ``ringlight up --app``.
    names = os.environ.get("RINGLIGHT_ALLOW_HOSTS", "").split()
    wsgi.make_server(address, application, names).start()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def _check_free(address: tuple[str, int]) -> None:
    with socket.socket(
        socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    ) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


def _await_listening(port: int, timeout_s: float = _LISTEN_S) -> None:
    """Wait until os-ken has opened its port. Raises AppError."""
    deadline = time.monotonic() + timeout_s
    while not _listens(port):
        if time.monotonic() > deadline:
            raise AppError(
                f"OpenFlow port {port} was not opened within {timeout_s:g} s"
            )
        time.sleep(0.01)


def _listens(port: int) -> bool:
    """Return whether any process listens on a TCP port of this machine."""
    rows: list[list[str]] = []
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError):
            rows += [
                line.split()
                for line in Path("/proc/self/net", table).read_text().splitlines()[1:]
            ]
    return any(row[1].endswith(f":{port:04X}") and row[3] == _LISTENS for row in rows)


if __name__ == "__main__":
    sys.exit(main())
