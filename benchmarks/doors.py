"""Measures the REST API's answers to one client while others flood it. Needs root.

It brings up the six GPUs of the bundled scenario and, in turn, sends bodies of 100 MB, has 400 clients say
half a request slowly, has 1,000 clients ask for ``/metrics`` at the same time and again and again, and does
all of that at once. Then it sends trailers of 40 MB behind a body, a head of 40 MB behind a request for the
event stream, and has 3,000 clients connect and say nothing: at REST, at OpenFlow and, in a lab of its own, at
REST over TLS. Meanwhile another process asks for ``/v1/health`` every 20 ms, in turn on a connection that it
keeps and on a new one.

Beside the figures stand their limits, and ``quiet``: the same question with nothing else going on.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
import math
import multiprocessing
import resource
import ssl
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.harness import check_known, lab_up, milliseconds
from benchmarks.rest_latency import SCENARIO

#: Bar: health's 99th percentile, seconds, and what the controller's memory may grow by, bytes.
HEALTH_S, MEMORY_BYTES = 0.1, 20_000_000
BODY_BYTES, FIELDS_BYTES = 100_000_000, 40_000_000
#: Clients that say nothing.
SILENT = 3000
#: From one question to the next, and longest wait for an answer, seconds.
EVERY_S, ANSWER_S = 0.02, 30.0
#: From one piece of a slow client to its next, seconds.
DRIP_S = 0.5
PIECE = b"x" * (1 << 16)


KINDS = (
    "quiet",
    "bodies",
    "slow",
    "metrics",
    "everything",
    "trailers",
    "heads",
    "silent",
    "openflow",
)
TLS_KINDS = ("tls_quiet", "tls_silent")


def doors(seconds: float = 15.0, only: str | None = None) -> dict[str, Any]:
    """``seconds`` of each phase, or of the ``only`` one."""
    kinds = (*KINDS, *TLS_KINDS) if only is None else (only,)
    check_known("--only", kinds, (*KINDS, *TLS_KINDS))
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        for chosen, tls in (
            ([kind for kind in kinds if kind in KINDS], ()),
            (
                [kind for kind in kinds if kind in TLS_KINDS],
                certificate(Path(directory)),
            ),
        ):
            if not chosen:
                continue
            with lab_up(SCENARIO, "namespace", None, *tls) as lab:
                pid = lab["pids"]["controller"]
                at_first = settled(pid)
                url = lab["url"].replace("http:", "https:") if tls else lab["url"]
                for kind in chosen:
                    found[kind] = phase(
                        kind, url, pid, seconds, openflow=lab["openflow"]
                    )
                grew = f"grew_in_all_{'tls_' if tls else ''}mb"
                found[grew] = (resident_bytes(pid) - at_first) / 1e6
    limits = {"health_p99_ms": HEALTH_S * 1000, "memory_mb": MEMORY_BYTES / 1e6}
    return {"limits": limits, **found, "missed": list(misses(found))}


def misses(found: Mapping[str, Any]) -> Iterator[str]:
    """What is beyond its limit."""
    for kind, one in found.items():
        if isinstance(one, dict):
            if one["memory_grew_mb"] > MEMORY_BYTES / 1e6:
                yield f"{kind}: memory grew by {one['memory_grew_mb']} MB"
            if one["health"]["p99_ms"] > HEALTH_S * 1000:
                yield f"{kind}: health took {one['health']['p99_ms']} ms (99th percentile)"
            if one["health_not_200"]:
                yield f"{kind}: health answered {one['health_not_200']}"


def certificate(directory: Path) -> tuple[str, ...]:
    """Options of ``up`` for REST over TLS, with a certificate of its own."""
    cert, key = directory / "cert.pem", directory / "key.pem"
    kind = (
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    )
    about = (
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-days",
        "2",
    )
    command = ["openssl", *kind, *about, "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    return "--tls-cert", str(cert), "--tls-key", str(key)


PARTS = (doors,)


def resident_bytes(pid: int) -> int:
    return (
        int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    )


def settled(pid: int) -> int:
    """A process's memory once it has grown by less than 1 MB in two seconds, at most 20 s from now.

    A controller answers before the solver, which it loads beside that, is there.
    """
    before, until = 0, time.monotonic() + 20.0
    while (
        now := resident_bytes(pid)
    ) > before + 1_000_000 and time.monotonic() < until:
        before = now
        time.sleep(2.0)
    return now


# The clients that flood


class Flood:
    """Clients of one process. ``said``: how often each status was answered, or an error's name."""

    def __init__(self, host: str, port: int, until: float) -> None:
        self.host, self.port, self.until = host, port, until
        self.said: Counter[str] = Counter()

    def head(self, method: str, path: str, *lines: str) -> bytes:
        return "\r\n".join(
            [
                f"{method} {path} HTTP/1.1",
                f"Host: {self.host}:{self.port}",
                *lines,
                "",
                "",
            ]
        ).encode()

    async def answer(self, reader: asyncio.StreamReader) -> str:
        """The status of an answer that is read to its end."""
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), ANSWER_S)
        length = next(
            (
                int(line[15:])
                for line in head.lower().split(b"\r\n")
                if line.startswith(b"content-length:")
            ),
            0,
        )
        await asyncio.wait_for(reader.readexactly(length), ANSWER_S)
        return head.split()[1].decode()

    async def bodies(self) -> None:
        """Bodies of `BODY_BYTES`, with a length and without, one after the other."""
        number = 0
        while time.monotonic() < self.until:
            chunked, number = number % 2 == 1, number + 1
            reader, writer = await asyncio.open_connection(self.host, self.port)
            length = (
                "Transfer-Encoding: chunked"
                if chunked
                else f"Content-Length: {BODY_BYTES}"
            )
            writer.write(
                self.head(
                    "PUT", "/v1/circuits", "Content-Type: application/json", length
                )
            )
            answer = asyncio.ensure_future(self.answer(reader))
            with contextlib.suppress(ConnectionError):
                for _ in range(BODY_BYTES // len(PIECE)):
                    if chunked:
                        writer.write(b"10000\r\n")
                    writer.write(PIECE)
                    if chunked:
                        writer.write(b"\r\n")
                    await writer.drain()
            await self._note(answer)
            writer.transport.abort()

    async def slow(self, clients: int) -> None:
        """Clients that never say a whole request: half of them no head, half of them no body."""
        await asyncio.gather(
            *(self._slow(number % 2 == 0) for number in range(clients))
        )

    async def _slow(self, no_head: bool) -> None:
        while time.monotonic() < self.until:
            try:
                reader, writer = await asyncio.open_connection(self.host, self.port)
                if no_head:
                    writer.write(b"GET /v1/health HTTP/1.1\r\n")
                else:
                    kind = ("Content-Type: application/json", "Content-Length: 100000")
                    writer.write(self.head("PUT", "/v1/circuits", *kind))
                self.said["slow clients that connected"] += 1
                while time.monotonic() < self.until and not reader.at_eof():
                    writer.write(b"X-A: b\r\n" if no_head else b"[")
                    await writer.drain()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(reader.read(1 << 16), DRIP_S)
                writer.transport.abort()
            except OSError as error:
                self.said[type(error).__name__] += 1
                await asyncio.sleep(DRIP_S)

    async def metrics(self, clients: int) -> None:
        """Let ``clients`` ask at the same time, each again once it has its answer."""
        start = asyncio.Event()
        asking = [asyncio.ensure_future(self._metrics(start)) for _ in range(clients)]
        await asyncio.sleep(0.5)
        start.set()
        await asyncio.gather(*asking)

    async def _metrics(self, start: asyncio.Event) -> None:
        try:
            reader, writer = await asyncio.open_connection(self.host, self.port)
        except OSError as error:
            self.said[type(error).__name__] += 1
            return
        await start.wait()
        while time.monotonic() < self.until:
            try:
                writer.write(self.head("GET", "/metrics"))
                status = await self.answer(reader)
            except (OSError, EOFError, TimeoutError) as error:
                self.said[type(error).__name__] += 1
                return
            self.said[status] += 1
        writer.transport.abort()

    async def trailers(self) -> None:
        """Bodies in chunks with `FIELDS_BYTES` of trailers, in turn many and a long one."""
        begun = self.head(
            "PUT",
            "/v1/circuits",
            "Content-Type: application/json",
            "Transfer-Encoding: chunked",
        )
        await self._fields(begun + b"2\r\n{}\r\n0\r\nX-A: ")

    async def heads(self) -> None:
        """Heads of `FIELDS_BYTES` behind a request whose answer does not end."""
        await self._fields(
            self.head("GET", "/v1/events") + b"GET /v1/health HTTP/1.1\r\nX-A: "
        )

    async def _fields(self, begun: bytes) -> None:
        number = 0
        while time.monotonic() < self.until:
            piece, number = (
                (b"x" if number % 2 else b"b\r\nX-A: ") * (1 << 13),
                number + 1,
            )
            try:
                _, writer = await asyncio.open_connection(self.host, self.port)
                writer.write(begun)
                for _ in range(FIELDS_BYTES // len(piece)):
                    writer.write(piece)
                    await writer.drain()
                self.said["sent whole"] += 1
            except OSError as error:
                self.said[type(error).__name__] += 1
            else:
                writer.transport.abort()
            await asyncio.sleep(0.05)

    async def silent(self, clients: int) -> None:
        """Clients that connect and say nothing, and connect again where they are hung up on."""
        await asyncio.gather(*(self._silent() for _ in range(clients)))

    async def _silent(self) -> None:
        while time.monotonic() < self.until:
            try:
                reader, writer = await asyncio.open_connection(self.host, self.port)
                self.said["silent clients that connected"] += 1
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(
                        reader.read(1 << 16), max(0.1, self.until - time.monotonic())
                    )
                writer.transport.abort()
            except OSError as error:
                self.said[type(error).__name__] += 1
            await asyncio.sleep(DRIP_S)

    async def _note(self, answer: asyncio.Future[str]) -> None:
        try:
            self.said[await answer] += 1
        except (OSError, EOFError, TimeoutError) as error:
            self.said[type(error).__name__] += 1


async def everything(flood: Flood, slow: int, asking: int) -> None:
    await asyncio.gather(flood.bodies(), flood.slow(slow), flood.metrics(asking))


def _flood(
    kind: str,
    host: str,
    port: int,
    seconds: float,
    clients: tuple[int, int],
    told: Connection,
) -> None:
    resource.setrlimit(
        resource.RLIMIT_NOFILE,
        (min(8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2,
    )
    flood = Flood(host, port, time.monotonic() + seconds)
    slow, asking = clients
    kinds: dict[str, Callable[[], Awaitable[None]]] = {
        "bodies": flood.bodies,
        "slow": lambda: flood.slow(slow),
        "metrics": lambda: flood.metrics(asking),
        "everything": lambda: everything(flood, slow, asking),
        "trailers": flood.trailers,
        "heads": flood.heads,
        "silent": lambda: flood.silent(SILENT),
        "openflow": lambda: flood.silent(SILENT),
        "tls_silent": lambda: flood.silent(SILENT),
    }

    async def run() -> None:
        await kinds[kind]()

    asyncio.run(run())
    told.send(dict(flood.said))


# The client that asks after health


def _probe(host: str, port: int, tls: bool, seconds: float, told: Connection) -> None:
    """Sends how long each answer took, seconds, and what was answered other than 200, with how often."""
    connect: Callable[[], http.client.HTTPConnection] = functools.partial(
        http.client.HTTPConnection, host, port, timeout=ANSWER_S
    )
    if tls:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connect = functools.partial(
            http.client.HTTPSConnection, host, port, timeout=ANSWER_S, context=context
        )
    kept = connect()
    spent: list[float] = []
    wrong: Counter[str] = Counter()
    until, number = time.monotonic() + seconds, 0
    while (began := time.monotonic()) < until:
        number += 1
        one = kept if number % 2 else connect()
        try:
            one.request("GET", "/v1/health")
            answer = one.getresponse()
            answer.read()
            if answer.status != 200:
                wrong[str(answer.status)] += 1
        except (OSError, http.client.HTTPException) as error:
            wrong[type(error).__name__] += 1
            one.close()
        spent.append(time.monotonic() - began)
        if one is not kept:
            one.close()
        time.sleep(max(0.0, began + EVERY_S - time.monotonic()))
    told.send((spent, dict(wrong)))


class Memory(threading.Thread):
    """The largest resident memory of a process, bytes, while this runs."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.most, self.over = pid, 0, threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.02):
            self.most = max(self.most, resident_bytes(self.pid))


def phase(
    kind: str,
    url: str,
    pid: int,
    seconds: float,
    clients: tuple[int, int] = (400, 1000),
    openflow: str = "",
) -> dict[str, Any]:
    """One kind of flood (``quiet``: none) for some seconds, and what health and memory did meanwhile."""
    where = urlsplit(url)
    host, port = str(where.hostname), int(where.port or 80)
    spawn = multiprocessing.get_context("spawn")
    before, memory = resident_bytes(pid), Memory(pid)
    memory.start()
    # The probe is there before the flood and after it.
    heard, told = spawn.Pipe(duplex=False)
    probe = spawn.Process(
        target=_probe,
        args=(host, port, where.scheme == "https", seconds + 1.0, told),
        daemon=True,
    )
    probe.start()
    said: dict[str, int] = {}
    if not kind.endswith("quiet"):
        time.sleep(0.3)
        if kind == "openflow":
            host, _, number = openflow.rpartition(":")
            port = int(number)
        of_flood, flooding = spawn.Pipe(duplex=False)
        flood = spawn.Process(
            target=_flood,
            args=(kind, host, port, seconds, clients, flooding),
            daemon=True,
        )
        flood.start()
        limit_s = seconds + 2 * ANSWER_S
        said = (
            of_flood.recv() if of_flood.poll(limit_s) else {"the flood did not end": 1}
        )
        flood.join(5)
    spent, wrong = (
        heard.recv()
        if heard.poll(seconds + 2 * ANSWER_S)
        else ([math.inf], {"no end": 1})
    )
    probe.join(5)
    memory.over.set()
    memory.join()
    return {
        "answers": said,
        "health": milliseconds(spent),
        "health_not_200": wrong,
        "memory_grew_mb": round(max(0, memory.most - before) / 1e6, 1),
    }
