"""What stands before every HTTP server of ours: bounds of bodies, of time and of connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request

from ringlight.controller.errors import StartError
from ringlight.controller.web import bounds, serving
from ringlight.controller.web.access import check_doors, check_tls
from ringlight.controller.web.bounds import BoundedBodies, Shared, Uploads
from ringlight.controller.web.listening import listen
from ringlight.controller.web.serving import HttpServer
from ringlight.experiments.client import Api, Unreachable

LIMIT, UPLOAD = 1 << 20, 3 << 20


@contextlib.contextmanager
def serving_app(app: Any, **more: Any) -> Iterator[int]:
    """The port at which ``app`` is answered."""
    with listen("127.0.0.1", 0) as listener:
        server = HttpServer(app, listener, **more)
        server.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.stop(at_once=True)
            assert not server.alive


@pytest.fixture
def app(tmp_path: Path) -> FastAPI:
    app = FastAPI()
    app.add_middleware(BoundedBodies, streamed={("PUT", "/file/"): UPLOAD})
    uploads = Uploads(tmp_path / "files", UPLOAD)

    @app.get("/well")
    async def well() -> str:
        return "yes"

    @app.post("/length")
    async def length(request: Request) -> int:
        return len(await request.body())

    @app.put("/file/{name}")
    async def put(name: str, request: Request) -> dict[str, Any]:
        async with uploads(request.receive) as (part, digest):
            return {"bytes": part.stat().st_size, "sha256": digest}

    return app


def ask(port: int, *pieces: bytes, wait_s: float = 5.0) -> bytes:
    """All that is answered to these bytes until the other side hangs up or says nothing for ``wait_s``."""
    with socket.create_connection(("127.0.0.1", port), timeout=wait_s) as client:
        said = b""
        with contextlib.suppress(TimeoutError, ConnectionResetError, BrokenPipeError):
            for piece in pieces:
                client.sendall(piece)
            while data := client.recv(1 << 16):
                said += data
        return said


def head(method: str, path: str, *lines: str) -> bytes:
    return "\r\n".join(
        [f"{method} {path} HTTP/1.1", "Host: localhost", *lines, "", ""]
    ).encode()


def test_a_body_is_read_up_to_its_limit_and_no_further(
    app: FastAPI, tmp_path: Path
) -> None:
    with (
        serving_app(app) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        assert client.post("/length", content=b"x" * LIMIT).json() == LIMIT
        told = client.post("/length", content=b"x" * (LIMIT + 1))
        assert (told.status_code, told.json()) == (
            413,
            {"detail": f"the body has more than {LIMIT} bytes"},
        )
        # Without a length, and without an end.
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        said = ask(
            port,
            head("POST", "/length", "Transfer-Encoding: chunked"),
            chunk * 20,
            wait_s=0.5,
        )
        assert said.startswith(b"HTTP/1.1 413 "), said
        # Whoever asks for leave first is not left waiting for it.
        large = (f"Content-Length: {LIMIT + 1}", "Expect: 100-continue")
        said = ask(port, head("POST", "/length", *large))
        assert said.startswith(b"HTTP/1.1 413 "), said
        assert b"connection: close" in said
        assert client.put("/file/a", content=b"y" * UPLOAD).json()["bytes"] == UPLOAD
        assert client.put("/file/a", content=b"y" * (UPLOAD + 1)).status_code == 413
        assert (
            client.put("/file/a", content=iter([b"y" * UPLOAD, b"y"])).status_code
            == 413
        )
    assert list((tmp_path / "files").iterdir()) == []


def test_a_large_body_takes_neither_memory_nor_the_connection(app: FastAPI) -> None:
    with (
        serving_app(app) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        client.get("/well")
        before = resident_bytes()
        for _ in range(2):
            assert (
                client.post("/length", content=iter([b"x" * LIMIT] * 40)).status_code
                == 413
            )
        assert client.get("/well").json() == "yes"
        assert resident_bytes() - before < 30 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_a_body_that_does_not_come_is_answered(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "BODY_S", 0.2)
    with serving_app(app) as port:
        for method, path in (("POST", "/length"), ("PUT", "/file/a")):
            said = ask(
                port, head(method, path, "Content-Length: 10"), b"12345", wait_s=1.0
            )
            assert said.startswith(b"HTTP/1.1 408 "), said


def test_bodies_that_come_slowly_are_bounded_together(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "BODIES_BYTES", LIMIT)
    with serving_app(app) as port, contextlib.ExitStack() as stack:
        for _ in range(2):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            one.sendall(
                head("POST", "/length", f"Content-Length: {LIMIT}")
                + b"x" * (LIMIT // 2)
            )
        deadline = time.monotonic() + 5
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            while (
                told := client.post("/length", content=b"x" * 20_000)
            ).status_code == 200:
                assert time.monotonic() < deadline
            assert told.status_code == 503
            assert client.post("/length", content=b"x" * 1000).json() == 1000


def test_no_text_comes_in_that_utf_8_cannot_encode(app: FastAPI) -> None:
    with (
        serving_app(app) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        for body in (
            rb'{"container": {"command": ["a", "\ud800"]}}',
            rb'{"container": {"command": ["a", "\uDFFFb"]}}',
            b'{"container": {"command": ["a", "\xed\xa0\x80"]}}',
            '{"container": {"command": ["a", "\ud800"]}}'.encode(
                "utf-16", "surrogatepass"
            ),
        ):
            told = client.post("/length", content=body)
            assert told.status_code == 422, body
            assert told.json()["detail"].startswith(
                "container.command.1: half of a character"
            ), told.json()
        told = client.post("/length", content=rb'{"a": {"\ud800": 1}}')
        assert told.json()["detail"].startswith("a: half of a character")
        for body in (
            rb'["\ud83d\ude00 \u00e9"]',
            '["😀"]'.encode(),
            b"\xff\xd8 no JSON",
            rb'"\\ud800"',
        ):
            assert client.post("/length", content=body).json() == len(body)


def test_half_a_head_is_not_waited_for(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "HEAD_S", 0.3)
    with serving_app(app) as port:
        for said in (b"", b"GET /well HT", head("GET", "/well") + b"GET /w"):
            began = time.monotonic()
            answer = ask(port, said)
            assert time.monotonic() - began < 3
            assert answer.count(b"HTTP/1.1 200") == said.count(b"HTTP/1.1")
        long = head(
            "GET", "/well", *(f"X-{number}: {'x' * 1000}" for number in range(200))
        )
        assert ask(port, long[:-2], wait_s=1.0).startswith(b"HTTP/1.1 400 ")


def test_trailers_are_bounded_and_are_no_fields_of_the_head(app: FastAPI) -> None:
    seen: list[list[str]] = []

    @app.post("/fields")
    async def fields(request: Request) -> int:
        length = len(await request.body())
        seen.append(sorted(request.headers))
        return length

    chunked = (
        head("POST", "/fields", "Transfer-Encoding: chunked") + b"3\r\nabc\r\n0\r\n"
    )
    with serving_app(app) as port:
        said = ask(
            port, chunked + b"X-Sum: 1\r\nAuthorization: Bearer x\r\n\r\n", wait_s=0.5
        )
        assert said.startswith(b"HTTP/1.1 200 ")
        assert seen == [["host", "transfer-encoding"]]
        before = resident_bytes()
        for piece in (b"X-A: b\r\n" * 8192, b"b" * (1 << 16)):
            said = ask(port, chunked + b"X-A: ", *[piece] * 640)
            assert said == b"" or said.startswith(b"HTTP/1.1 400 "), said
        said = ask(port, chunked + b"X-A: b\r\n" * 200)
        assert said.startswith(b"HTTP/1.1 400 "), said
        assert len(seen) == 1
        assert resident_bytes() - before < 20 << 20


def test_a_head_behind_a_request_in_work_is_bounded(app: FastAPI) -> None:
    asked, over = threading.Event(), asyncio.Event()

    @app.get("/long")
    async def long() -> str:
        asked.set()
        await asyncio.wait_for(over.wait(), 20)
        return "done"

    with serving_app(app) as port, contextlib.ExitStack() as stack:
        before = resident_bytes()
        begun = b"GET /well HTTP/1.1\r\nX-A: "
        for first, piece in (
            (begun, b"b" * (1 << 16)),
            (begun, b"X-A: b\r\n" * 8192),
            (b"GET /", b"a" * (1 << 16)),
        ):
            asked.clear()
            client = stack.enter_context(
                socket.create_connection(("127.0.0.1", port), timeout=5)
            )
            client.sendall(head("GET", "/long"))
            assert asked.wait(5)
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                client.sendall(first)
                for _ in range(640):
                    client.sendall(piece)
                # Nothing that could be taken for the answer to the first.
                assert client.recv(1 << 16) == b""
        assert resident_bytes() - before < 20 << 20


def test_a_body_behind_a_request_in_work_waits_outside(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "HEADS_BYTES", 256 << 10, raising=False)
    asked, over = threading.Semaphore(0), threading.Event()

    @app.get("/long")
    async def long() -> str:
        asked.release()
        while not over.is_set():
            await asyncio.sleep(0.01)
        return "done"

    with serving_app(app) as port, contextlib.ExitStack() as stack:
        clients = []
        for _ in range(8):
            client = stack.enter_context(
                socket.create_connection(("127.0.0.1", port), timeout=0.5)
            )
            client.sendall(head("GET", "/long"))
            assert asked.acquire(timeout=5)
            clients.append(client)
        hung_up = 0
        for client in clients:
            try:
                client.sendall(
                    head("POST", "/length", "Content-Length: 90000") + b"x" * 60_000
                )
                hung_up += client.recv(1) == b""
            except TimeoutError:
                pass
            except OSError:
                hung_up += 1
        assert 3 <= hung_up <= 5
        over.set()


def test_a_head_ends_where_it_says_it_does(app: FastAPI) -> None:
    """Not where a piece ends that the kernel has handed over."""
    with serving_app(app) as port:
        for length, status in ((63_000, 200), (66_000, 400), (120_000, 400)):
            said = ask(port, head("GET", "/well", "X-A: " + "b" * length), wait_s=1.0)
            assert said.startswith(f"HTTP/1.1 {status} ".encode()), (length, said)
        many = [f"X-{number}: b" for number in range(128)]
        assert ask(port, head("GET", "/well", *many), wait_s=1.0).startswith(
            b"HTTP/1.1 400 "
        )
        assert ask(port, head("GET", "/well", *many[1:]), wait_s=1.0).startswith(
            b"HTTP/1.1 200 "
        )


def test_heads_are_bounded_together(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "HEADS_BYTES", 300 << 10, raising=False)
    large = head("GET", "/well", *(f"X-{number}: {'b' * 500}" for number in range(100)))
    with serving_app(app) as port, contextlib.ExitStack() as stack:
        said = []
        for _ in range(12):
            client = stack.enter_context(
                socket.create_connection(("127.0.0.1", port), timeout=0.2)
            )
            client.sendall(large[:-2])
            with contextlib.suppress(TimeoutError):
                said.append(client.recv(1 << 16)[:12])
        assert 5 <= len(said) <= 9
        assert set(said) == {b"HTTP/1.1 503"}
        # Others are served, and whoever is answered takes nothing any more.
        for _ in range(3):
            assert ask(port, head("GET", "/well"), wait_s=0.3).startswith(
                b"HTTP/1.1 200"
            )
        stack.close()
        deadline = time.monotonic() + 5
        while not ask(port, large, wait_s=0.3).startswith(b"HTTP/1.1 200"):
            assert time.monotonic() < deadline
        with contextlib.ExitStack() as idle:
            for _ in range(12):
                client = idle.enter_context(
                    socket.create_connection(("127.0.0.1", port), timeout=5)
                )
                client.sendall(large)
                assert client.recv(12) == b"HTTP/1.1 200"


def test_whoever_says_nothing_shuts_nobody_out(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MOST_CONNECTIONS", 20)
    with serving_app(app) as port, contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(
                socket.create_connection(("127.0.0.1", port), timeout=5)
            )
            for _ in range(60)
        ]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            for one in silent[40:]:
                one.sendall(b"GET /well HTTP/1.1\r\n")
            assert client.get("/well").json() == "yes"
        # The first that came were the first to go.
        with contextlib.suppress(ConnectionResetError):
            assert silent[0].recv(1) == b""


def test_who_asks_while_it_is_computed_gets_the_next() -> None:
    async def run() -> None:
        begun, go_on = 0, asyncio.Event()

        async def compute() -> int:
            nonlocal begun
            begun += 1
            number = begun
            await go_on.wait()
            return number

        shared = Shared(compute)
        first = asyncio.ensure_future(shared())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        others = [asyncio.ensure_future(shared()) for _ in range(100)]
        await asyncio.sleep(0)
        others.pop().cancel()
        go_on.set()
        assert await first == 1
        assert set(await asyncio.gather(*others)) == {2}
        assert await shared() == 3

    asyncio.run(run())


# Doors beyond loopback


def test_beyond_loopback_every_door_is_stated() -> None:
    here, there = "127.0.0.1:8080", "0.0.0.0:8080"
    check_doors(here, "127.0.0.1:6653", token=False, tls=False)
    check_doors(there, "127.0.0.1:6653", token=True, tls=True)
    check_doors(there, "127.0.0.1:6653", token=True, tls=False, rest_insecure=True)
    check_doors(here, "0.0.0.0:6653", token=False, tls=False, openflow_insecure=True)
    check_doors(here, "0.0.0.0:6653", token=False, tls=True, openflow_tls=True)
    for said, rest, openflow, choice in (
        (
            "--rest 0.0.0.0:8080: not a loopback address; that needs a token",
            there,
            here,
            {"tls": True},
        ),
        (
            "give --tls-cert and --tls-key, or --rest-insecure",
            there,
            here,
            {"token": True},
        ),
        (
            "--openflow 0.0.0.0:8080: not a loopback address, and OpenFlow asks nobody",
            here,
            there,
            {},
        ),
    ):
        with pytest.raises(StartError, match=said):
            check_doors(rest, openflow, **{"token": False, "tls": False, **choice})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate that names ``lab.example`` and its key."""
    directory = tmp_path_factory.mktemp("tls")
    cert, key = directory / "cert.pem", directory / "key.pem"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
            ),
            *(
                "-nodes",
                "-subj",
                "/CN=lab.example",
                "-addext",
                "subjectAltName=DNS:lab.example",
            ),
            *("-days", "2", "-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
        timeout=30,
    )
    return cert, key


def test_rest_over_tls_is_for_those_who_trust_its_certificate(
    app: FastAPI, certificates: tuple[Path, Path]
) -> None:
    cert, key = certificates
    with serving_app(app, tls=check_tls(cert, key)) as port:
        address = f"127.0.0.1:{port}"
        with Api(address, cacert=str(cert), anywhere=True) as api:
            assert api.get("/well") == "yes"
        with (
            Api(address, cacert=str(cert)) as api,
            pytest.raises(
                Unreachable, match=r"a certificate that is not trusted: .*127.0.0.1"
            ),
        ):
            api.get("/well")
        with (
            Api(f"https://{address}") as api,
            pytest.raises(Unreachable, match="not trusted: self"),
        ):
            api.get("/well")
        with Api(address) as api, pytest.raises(Unreachable):
            api.get("/well")
    with pytest.raises(Unreachable, match=f"{key}: certificates cannot be read"):
        Api("127.0.0.1:1", cacert=str(key))


def test_who_does_not_greet_over_tls_is_counted_and_goes(
    app: FastAPI, certificates: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MOST_TLS", 20, raising=False)
    monkeypatch.setattr(serving, "HEAD_S", 1.0)
    cert, key = certificates
    with (
        serving_app(app, tls=check_tls(cert, key)) as port,
        contextlib.ExitStack() as stack,
    ):
        before = resident_bytes()
        silent = [
            stack.enter_context(
                socket.create_connection(("127.0.0.1", port), timeout=5)
            )
            for _ in range(200)
        ]
        with Api(f"127.0.0.1:{port}", cacert=str(cert), anywhere=True) as api:
            assert api.get("/well") == "yes"
        assert resident_bytes() - before < 20 << 20
        for one in silent[0], silent[-1]:
            began = time.monotonic()
            with contextlib.suppress(ConnectionResetError):
                assert one.recv(1) == b""
            assert time.monotonic() - began < 4


def test_an_answer_that_is_cut_off_at_the_end_is_no_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = FastAPI()
    asked = threading.Event()

    @app.get("/never")
    async def never() -> None:
        asked.set()
        await asyncio.sleep(60)

    with (
        serving_app(app) as port,
        socket.create_connection(("127.0.0.1", port), timeout=5.0) as client,
    ):
        client.sendall(b"GET /never HTTP/1.1\r\nhost: a\r\n\r\n")
        assert asked.wait(5.0)
    assert not [record for record in caplog.records if record.exc_info]


def test_files_of_tls_go_together(
    certificates: tuple[Path, Path], tmp_path: Path
) -> None:
    cert, key = certificates
    assert check_tls(None, None) is None
    with pytest.raises(StartError, match="--tls-key: missing"):
        check_tls(cert, None)
    with pytest.raises(StartError, match=r"nothing\.pem: No such file"):
        check_tls(tmp_path / "nothing.pem", key)
    with pytest.raises(StartError, match=r"--tls-cert .*--tls-key"):
        check_tls(key, cert)


@pytest.mark.parametrize("at_once", [False, True])
def test_a_server_sleeps_while_nobody_asks_and_ends_all_the_same(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    monkeypatch.setattr(serving, "_DATE_S", 60.0)
    with listen("127.0.0.1", 0) as listener:
        server = HttpServer(app, listener)
        server.start()
        with socket.create_connection(listener.getsockname(), timeout=5.0) as kept:
            kept.sendall(b"GET /well HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert kept.recv(1 << 16).startswith(b"HTTP/1.1 200")
            server.stop(at_once=at_once)
            assert not server.alive
            with contextlib.suppress(ConnectionResetError):
                assert kept.recv(1 << 16) in (b"", b'"yes"')


def test_an_answer_has_a_date_of_now(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_DATE_S", 0.1)
    with serving_app(app) as port:
        for _ in range(2):
            head, _, _ = ask(
                port, b"GET /well HTTP/1.0\r\nhost: localhost\r\n\r\n"
            ).partition(b"\r\n\r\n")
            (date,) = (
                line[6:] for line in head.split(b"\r\n") if line.startswith(b"date: ")
            )
            assert (
                abs(parsedate_to_datetime(date.decode()).timestamp() - time.time())
                < 2.0
            )
            time.sleep(2.1)
