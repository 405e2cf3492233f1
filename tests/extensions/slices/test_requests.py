"""Requests for slices over HTTP as clients of Kubernetes and people with curl write them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from ringlight.controller.rest.common import add_error_handlers
from ringlight.extensions.slices.routes import (
    KUBERNETES,
    add_no_slices,
    add_slice_routes,
)
from tests.extensions.slices.test_manager import Bench

OURS = "/v1/slices"


class Client:
    """Sends requests to the routes of a bench's slices, or of a lab without cubes, without a socket."""

    def __init__(self, bench: Bench | None) -> None:
        self.app = FastAPI()
        self.app.state.bad_request = []
        add_error_handlers(self.app)
        if bench is None:
            add_no_slices(self.app)
        else:
            add_slice_routes(self.app, bench.slices)

    def send(self, method: str, path: str, body: Any = None) -> httpx.Response:
        async def sent() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://lab"
            ) as client:
                return await client.request(method, path, json=body)

        return asyncio.run(sent())

    def create(
        self, topology: str, metadata: Mapping[str, Any] = {}, **spec: Any
    ) -> httpx.Response:
        body = {
            "metadata": {"name": "blue", **metadata},
            "spec": {"type": "tpu7x", "topology": topology, **spec},
        }
        return self.send("POST", f"{OURS}?wait_s=10", body)


def ready(answer: httpx.Response) -> tuple[str, str]:
    (condition,) = answer.json()["status"]["conditions"]
    return condition["reason"], condition["message"]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "state")
    bench.wait("red", "ACTIVE")
    yield bench
    bench.stop()


@pytest.fixture
def client(bench: Bench) -> Client:
    return Client(bench)


@pytest.mark.parametrize("topology", ["２x４", "2X4", "2x4\n", " 2x4", "2", "2x99999"])
def test_a_text_that_is_no_topology_is_refused(client: Client, topology: str) -> None:
    answer = client.create(topology)
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("spec.topology: ")


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        ("1x2", "topology 1x2: 1 is no multiple of 2, a side of the cubes 2x2"),
        ("0x2", "topology 0x2: a side is at least 1"),
        ("02x4", "topology 02x4: write 2x4"),
        ("4x2", "topology 4x2: write the sides in ascending order, 2x4"),
        ("4x8", "topology 4x8 needs 8 partitions; 2 are free"),
        ("2x2x2", "topology 2x2x2: it has 3 sides, and the cubes 2x2 have 2"),
    ],
)
def test_a_topology_that_these_cubes_cannot_have_is_a_state(
    client: Client, topology: str, message: str
) -> None:
    answer = client.create(topology)
    assert answer.status_code == 201
    assert ready(answer) == ("SliceCreationFailed", message)


def test_a_message_has_the_number_of_its_noun(client: Client) -> None:
    answer = client.create("2x2", partitionIds=["c2", "c3"])
    message = "topology 2x2 needs 1 partition, and 2 are given"
    assert ready(answer) == ("SliceCreationFailed", message)


def test_an_annotation_of_a_twist_is_true_or_false(client: Client) -> None:
    for value in ("True", "yes", "1", ""):
        answer = client.create("2x4", {"annotations": {"ringlight/twisted": value}})
        assert answer.status_code == 422
        assert answer.json()["detail"] == (
            'metadata.annotations: ringlight/twisted is "true" or "false", '
            f'not "{value}"'
        )
    answer = client.create("2x4", {"annotations": {"ringlight/twisted": "false"}})
    assert ready(answer)[0] == "ACTIVE"


def test_what_typed_clients_send_unasked_is_taken(client: Client) -> None:
    # As Go writes a Slice that a program has just made.
    body = {
        "apiVersion": "accelerator.gke.io/v1beta1",
        "kind": "Slice",
        "metadata": {"name": "blue", "creationTimestamp": None},
        "spec": {"type": "tpu7x", "topology": "2x4", "partitionIds": None},
        "status": {},
    }
    answer = client.send("POST", f"{KUBERNETES}?wait_s=10", body)
    assert answer.status_code == 201, answer.text
    assert answer.json()["spec"]["partitionIds"] == ["c2", "c3"]
    body["status"] = {"conditions": []}
    assert client.send("POST", KUBERNETES, body).status_code == 422


@pytest.mark.parametrize(
    ("method", "query"),
    [
        ("GET", "watch=true"),
        ("GET", "labelSelector=a%3Db"),
        ("GET", "fieldSelector=metadata.name%3Dred"),
        ("POST", "dryRun=All"),
    ],
)
def test_a_parameter_without_its_effect_is_refused(
    client: Client, method: str, query: str
) -> None:
    before = client.send("GET", KUBERNETES).json()
    body = {
        "metadata": {"name": "blue"},
        "spec": {"type": "tpu7x", "topology": "2x4"},
    }
    answer = client.send(
        method, f"{KUBERNETES}?{query}", body if method == "POST" else None
    )
    assert answer.status_code == 422
    parameter = query.partition("=")[0]
    assert answer.json()["detail"] == f"{parameter}: there is no such parameter here"
    assert client.send("GET", KUBERNETES).json() == before
    # False and empty change nothing, and clients send them.
    assert client.send("GET", f"{KUBERNETES}?watch=false&dryRun=").status_code == 200


def test_the_cause_of_a_failed_swap_stays_until_the_next_swap(
    bench: Bench, client: Client
) -> None:
    bench.light.away = True
    path, body = f"{OURS}/red/swap?wait_s=10", {"partition": "c0", "spare": "c3"}
    message = "not swapped: optical switch x0 cannot be reached"
    answer = client.send("POST", path, body)
    assert answer.json()["spec"]["partitionIds"] == ["c0", "c1"]
    for _ in range(5):
        bench.slices._step(bench.slices._records["red"])
        assert ready(client.send("GET", f"{OURS}/red")) == ("ACTIVE", message)
    # The slice itself is whole.
    assert bench.slices.complaint is None
    bench.restart()
    restarted = Client(bench)
    assert ready(restarted.send("GET", f"{OURS}/red")) == ("ACTIVE", message)
    bench.lost = frozenset({"g0"})
    lost = f"GPU g0 of partition c0 is lost; {message}"
    assert bench.wait("red", "ACTIVE_DEGRADED") == lost
    bench.light.away = False
    assert ready(restarted.send("POST", path, body)) == ("ACTIVE", "")


def test_a_slice_that_is_deleted_while_it_is_lit_leaves_no_light(
    bench: Bench, client: Client
) -> None:
    before = bench.light.cross_connects()
    client.send(
        "POST",
        OURS,
        {"metadata": {"name": "blue"}, "spec": {"type": "tpu7x", "topology": "2x4"}},
    )
    deleted = client.send("DELETE", f"{OURS}/blue?wait_s=10")
    assert ready(deleted)[0] == "DEACTIVATING"
    assert client.send("GET", f"{OURS}/blue").status_code == 404
    assert bench.light.cross_connects() == before
    assert deleted.json()["spec"]["partitionIds"] == ["c2", "c3"]


@pytest.mark.parametrize("path", [OURS, f"{OURS}/red/gpus", KUBERNETES])
def test_a_lab_without_cubes_answers_that_there_are_none(path: str) -> None:
    client = Client(None)
    for method in ("GET", "POST", "DELETE"):
        answer = client.send(method, path, {})
        assert answer.status_code == 404
        assert answer.json() == {
            "detail": "there are no slices: the fabric has no cubes"
        }
