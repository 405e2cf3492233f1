"""What the server agent does of standing light, over HTTP: keeps tables, and says what was posted."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ringlight.fabric.topology import Fabric


class StandingAgent:
    """``tables`` by GPU; ``left``: bytes that each pair (of names) has posted and not sent.

    ``log``: what O-NICs were told, in order: "hold", "lit" or "clear". ``refuse``: what it answers to tables
    instead, with status 409; ``mute``: to who asks what is left, with status 500. ``forgets``: GPUs whose
    tables it does not keep.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.tables: dict[str, dict[str, Any]] = {}
        self.left: dict[tuple[str, str], int] = {}
        #: Pairs of which something was lost and is sent again: it goes round while they have no light.
        self.lost: set[tuple[str, str]] = set()
        self.held: dict[tuple[str, str], int] = {}
        self.log: list[str] = []
        self.refuse: str | None = None
        self.mute: str | None = None
        #: Turns that each GPU's worker has ended.
        self.turns: dict[str, int] = {}
        self.forgets: set[str] = set()
        self.lock = threading.Lock()
        agent = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                if self.path != "/v1/traffic":
                    self.answer(200, {"status": "ok"})
                elif agent.mute is not None:
                    self.answer(500, {"detail": agent.mute})
                else:
                    self.answer(200, agent.traffic())

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                time.sleep(0.002)
                with agent.lock:
                    self.answer(200, dict(agent.turns))

            def do_PUT(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if agent.refuse is not None:
                    self.answer(409, {"detail": agent.refuse})
                else:
                    self.answer(200, agent.put(body))

            def answer(self, status: int, document: Any) -> None:
                data = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def put(self, tables: dict[str, dict[str, Any]]) -> dict[str, Any]:
        with self.lock:
            entries = [entry for table in tables.values() for entry in table.values()]
            lit = any(entry["lit"] for entry in entries)
            self.log.append("lit" if lit else "hold" if entries else "clear")
            kept = {
                gpu: table for gpu, table in tables.items() if gpu not in self.forgets
            }
            self.tables |= kept
            return {gpu: self.tables.get(gpu, {}) for gpu in tables}

    def traffic(self) -> dict[str, Any]:
        ips = {gpu.name: gpu.ip for gpu in self.fabric.gpus.values()}
        for pair in self.lost - self.lit().keys():
            self.held[pair] = self.held.get(pair, 0) + 1
        with self.lock:
            counted = {
                gpu: {
                    ips[peer]: {
                        "posted": 1000 + self.left.get((gpu, peer), 0),
                        "fresh": 1000,
                        "resent": 0,
                        "held": self.held.get((gpu, peer), 0),
                    }
                    for peer in ips
                    if peer != gpu
                }
                for gpu in ips
            }
        return {"t": 0.0, "gpus": counted}

    def lit(self) -> dict[tuple[str, str], list[tuple[int, int | None]]]:
        """The lightpaths of each pair that is lit."""
        names = {gpu.ip: gpu.name for gpu in self.fabric.gpus.values()}
        with self.lock:
            return {
                (gpu, names[ip]): [
                    (path["port"], path["wavelength"]) for path in entry["paths"]
                ]
                for gpu, table in self.tables.items()
                for ip, entry in table.items()
                if entry["lit"]
            }
