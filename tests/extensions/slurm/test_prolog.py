"""Claims of the prolog and the epilog, by a server that answers as the controller does."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ringlight.extensions.slurm import epilog, prolog, rest
from ringlight.extensions.slurm.partitions import Partition, SlurmError
from ringlight.extensions.slurm.site import Site

JOB = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_PARTITION": "gpus",
    "SLURM_JOB_NODELIST": "g[0,3]",
}


class Controller(ThreadingHTTPServer):
    """Claims by name, and the calls so far. ``state``: of the next claim."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.claims: dict[str, dict[str, Any]] = {}
        self.state, self.reason = "ACTIVE", None
        self.calls: list[str] = []
        self.refusal: str | None = None

    def answer(self, method: str, name: str, body: Any) -> tuple[int, Any]:
        self.calls.append(f"{method} {name}".strip())
        if method == "POST" and self.refusal is not None:
            return 409, {"detail": self.refusal}
        if method == "GET":
            return 200, list(self.claims.values())
        if method == "DELETE":
            gone = self.claims.pop(name, None)
            return (404, {"detail": "no claim"}) if gone is None else (200, gone)
        taken = {
            gpu: claim["name"]
            for claim in self.claims.values()
            for gpu in claim["gpus"]
        }
        for gpu in body["gpus"]:
            if gpu in taken:
                return 409, {
                    "detail": f"gpus[0]: GPU {gpu} is reserved by claim {taken[gpu]}"
                }
        if body["name"] in self.claims:
            return 409, {"detail": f"there is a claim {body['name']}"}
        claim = {"name": body["name"], "gpus": body["gpus"], "state": self.state}
        self.claims[body["name"]] = claim
        return 201, {**claim, "reason": self.reason}


class _Handler(BaseHTTPRequestHandler):
    server: Controller

    def _serve(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(length) or b"null")
        name = self.path.removeprefix("/v1/claims").strip("/")
        status, document = self.server.answer(self.command, name, body)
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_DELETE = _serve

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def controller() -> Iterator[Controller]:
    with Controller() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join(5)


@pytest.fixture(autouse=True)
def running(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Numbers of jobs that Slurm runs."""
    numbers: set[str] = set()

    def squeue(*words: str, **_: object) -> str:
        assert words[0] == "squeue"
        (number,) = (
            w.removeprefix("--jobs=") for w in words if w.startswith("--jobs=")
        )
        return f"{number}\n" if number in numbers else ""

    monkeypatch.setattr(prolog, "slurm", squeue)
    monkeypatch.setattr(prolog, "EPILOG_S", 0.1)
    monkeypatch.setattr(rest, "AGAIN_S", 0.01)
    return numbers


def site(controller: Controller, mode: Any = "lead") -> Site:
    url = f"http://127.0.0.1:{controller.server_address[1]}"
    gpus = tuple(f"g{n}" for n in range(6))
    return Site(url, (Partition("gpus", mode, gpus),), {})


def claimed(controller: Controller, environment: Mapping[str, str] = JOB) -> Any:
    return prolog.claim(site(controller), environment)


def test_a_job_claims_its_gpus_and_its_end_releases_them(
    controller: Controller,
) -> None:
    assert claimed(controller)["gpus"] == ["g0", "g3"]
    assert list(controller.claims) == ["slurm-7"]
    epilog.leave(site(controller), JOB)
    assert not controller.claims
    # An epilog runs after a refused prolog, too.
    epilog.leave(site(controller), JOB)


def test_a_job_of_a_partition_that_follows_claims_nothing(
    controller: Controller,
) -> None:
    follows = site(controller, "follow")
    assert prolog.claim(follows, JOB) is None
    epilog.leave(follows, JOB)
    assert prolog.claim(site(controller), JOB | {"SLURM_JOB_PARTITION": "x"}) is None
    assert not controller.calls


@pytest.mark.parametrize("state", ["FAILED", "ACTIVE_DEGRADED"])
def test_light_that_cannot_be_had_is_refused_and_nothing_is_kept(
    controller: Controller, state: str
) -> None:
    controller.state, controller.reason = state, "ocs0: denied"  # type: ignore[assignment]
    with pytest.raises(SlurmError, match="ocs0: denied"):
        claimed(controller)
    assert not controller.claims


def test_a_job_of_one_gpu_starts_without_light_but_not_without_a_claim(
    controller: Controller,
) -> None:
    one = JOB | {"SLURM_JOB_NODELIST": "g3"}
    controller.state = "ACTIVE_DEGRADED"
    assert claimed(controller, one)["gpus"] == ["g3"]
    controller.claims.clear()
    # A failed claim has no GPUs.
    controller.state, controller.reason = "FAILED", "internal error"  # type: ignore[assignment]
    with pytest.raises(SlurmError, match="internal error"):
        claimed(controller, one)


def test_the_claim_of_an_ended_job_is_released_if_its_epilog_does_not(
    controller: Controller,
) -> None:
    controller.claims["slurm-6"] = {
        "name": "slurm-6",
        "gpus": ["g3"],
        "state": "ACTIVE",
    }
    assert claimed(controller)["state"] == "ACTIVE"
    assert list(controller.claims) == ["slurm-7"]


def test_a_claim_that_is_released_between_the_refusal_and_the_look_refuses_nothing(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = controller.answer

    def released_meanwhile(method: str, name: str, body: Any) -> tuple[int, Any]:
        answered = answer(method, name, body)
        if method == "POST":
            controller.claims.pop("slurm-6", None)
        return answered

    controller.claims["slurm-6"] = {
        "name": "slurm-6",
        "gpus": ["g3"],
        "state": "ACTIVE",
    }
    monkeypatch.setattr(controller, "answer", released_meanwhile)
    assert claimed(controller)["state"] == "ACTIVE"


def test_a_refusal_for_another_reason_than_a_claim_stands(
    controller: Controller,
) -> None:
    controller.refusal = "GPU g3 is lost"
    with pytest.raises(SlurmError, match="GPU g3 is lost"):
        claimed(controller)
    assert controller.calls.count("POST") == 2


def test_an_earlier_claim_of_the_same_job_is_released(controller: Controller) -> None:
    controller.claims["slurm-7"] = {
        "name": "slurm-7",
        "gpus": ["g5"],
        "state": "ACTIVE",
    }
    assert claimed(controller)["gpus"] == ["g0", "g3"]


@pytest.mark.parametrize("name", ["slurm-6", "mine", "slurm-x"])
def test_a_claim_that_is_in_use_is_left_alone(
    controller: Controller, running: set[str], name: str
) -> None:
    running.add("6")
    controller.claims[name] = {"name": name, "gpus": ["g3"], "state": "ACTIVE"}
    with pytest.raises(SlurmError, match=f"GPU g3 is reserved by claim {name}"):
        claimed(controller)
    assert list(controller.claims) == [name]


def test_a_controller_that_does_not_answer_is_named(controller: Controller) -> None:
    gone = Site("http://127.0.0.1:1", site(controller).partitions, {})
    with pytest.raises(SlurmError, match="no controller answers at http"):
        rest.call(gone, "GET", "/v1/claims", patience_s=0.05)


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """The site of a controller that accepts connections and never answers, as one that was stopped."""
    monkeypatch.setattr(prolog, "CLAIM_S", 0.4)
    monkeypatch.setattr(prolog, "RESTART_S", 0.2)
    gpus = tuple(f"g{n}" for n in range(6))
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        yield Site(url, (Partition("gpus", "lead", gpus),), {})


def test_a_controller_that_stands_still_is_waited_for_once_and_named(
    frozen: Site,
) -> None:
    for ask, longest_s in ((prolog.claim, 0.4), (epilog.leave, 0.2)):
        began = time.monotonic()
        with pytest.raises(SlurmError, match=r"no controller answers at http.*: timed"):
            ask(frozen, JOB)
        assert longest_s <= time.monotonic() - began < 3 * longest_s + 1.0


def prologs(
    place: Site, folder: Path, monkeypatch: pytest.MonkeyPatch, runs: int
) -> list[str]:
    """Run the prolog of a job so often, each time with the comment of the time before.

    Return the commands that change the job.
    """
    commands: list[str] = []
    comment = "AdminComment=(null)"

    def slurm(*words: str) -> str:
        nonlocal comment
        if words == ("scontrol", "--oneliner", "show", "job", "7"):
            return f"JobId=7 Restarts=9 {comment} Power="
        commands.append(" ".join(words[1:]))
        if words[1] == "update":
            comment = words[3]
        return ""

    monkeypatch.setattr(prolog, "slurm", slurm)
    place.write(folder)
    for name, value in (JOB | {"SLURM_CONF": f"{folder}/slurm.conf"}).items():
        monkeypatch.setenv(name, value)
    for _ in range(runs):
        assert prolog.main() == 1
    return commands


def test_a_job_is_held_after_every_third_refusal(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    controller.state, controller.reason = "FAILED", "ocs0: denied"  # type: ignore[assignment]
    commands = prologs(site(controller), tmp_path, monkeypatch, 4)
    update = "update JobId=7 AdminComment=ringlight: refusal"
    assert commands == [
        f"{update} 1 of 3: ocs0: denied",
        f"{update} 2 of 3: ocs0: denied",
        f"{update} 3 of 3: ocs0: denied",
        "requeuehold 7",
        f"{update} 1 of 3: ocs0: denied",
    ]


def test_a_job_is_never_held_for_a_silent_controller(
    frozen: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands = prologs(frozen, tmp_path, monkeypatch, 4)
    assert len(commands) == 4
    silent = "update JobId=7 AdminComment=ringlight: no controller answers at http"
    assert all(command.startswith(silent) for command in commands)


def _openssl(folder: Path, words: str) -> None:
    subprocess.run(
        ["openssl", *words.split()],
        cwd=folder, check=True, capture_output=True, timeout=30,
    )  # fmt: skip


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_a_certificate_names_the_address_unless_it_is_the_labs_own(
    controller: Controller, tmp_path: Path
) -> None:
    new = "-nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256 -subj"
    _openssl(tmp_path, f"req -x509 {new} /CN=authority -keyout a.key -out a.pem")
    _openssl(tmp_path, f"req {new} /CN=elsewhere -keyout key.pem -out b.csr")
    sign = "x509 -req -in b.csr -CA a.pem -CAkey a.key -CAcreateserial -out cert.pem"
    _openssl(tmp_path, sign)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    controller.socket = context.wrap_socket(controller.socket, server_side=True)
    url = f"https://127.0.0.1:{controller.server_address[1]}"
    plain = site(controller)

    def claims(cacert: str, own: bool) -> Any:
        there = replace(
            plain, url=url, cacert=str(tmp_path / cacert), own_certificate=own
        )
        return rest.call(there, "GET", "/v1/claims")

    # The lab's own, though an authority has signed it.
    assert claims("cert.pem", True) == []
    # Of an authority, any other machine could have one as well.
    with pytest.raises(SlurmError, match="certificate verify failed"):
        claims("a.pem", False)


@pytest.mark.parametrize("url", ["http://127.0.0.1:80x", "http://[::1"])
def test_an_address_that_is_none_is_one_line(controller: Controller, url: str) -> None:
    wrong = Site(url, site(controller).partitions, {})
    with pytest.raises(SlurmError, match=r"^http"):
        rest.call(wrong, "GET", "/v1/claims")


def test_a_script_without_a_job_is_refused(controller: Controller) -> None:
    with pytest.raises(SlurmError, match="SLURM_JOB_ID: not set"):
        claimed(controller, {})
