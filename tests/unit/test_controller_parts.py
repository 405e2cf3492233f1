"""The controller's small parts: store, events, attachment, access, inventory, statistics, requests."""

from __future__ import annotations

import json
import resource
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ringlight.controller.__main__ import _address
from ringlight.controller.bus import EventBus
from ringlight.controller.errors import StartError
from ringlight.controller.inventory import read_inventory, wait_for_inventory
from ringlight.controller.openflow.messages import PortStats
from ringlight.controller.packets.attachment import (
    attachments,
    circuit_pairs,
    lit_circuits,
)
from ringlight.controller.packets.stats import rates
from ringlight.controller.rest.requests import JobRequest, LightRequest
from ringlight.controller.running import read_fabric
from ringlight.controller.store import Store
from ringlight.controller.web.access import is_loopback, read_tokens
from ringlight.fabric.crossconnect import CrossConnect
from ringlight.fabric.parts import Port
from tests.unit.test_controller_rules import FABRIC, PORTS, light


def test_store_replaces_whole_documents(tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    assert store.read("jobs") is None
    store.write("jobs", {"a": 1})
    store.write("jobs", {"b": 2})
    assert store.read("jobs") == {"b": 2}
    assert [p.name for p in (tmp_path / "state").iterdir()] == ["jobs.json"]
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    (tmp_path / "state" / "jobs.json").write_text('{"of": "an older version"}')
    assert store.read("jobs") == {"of": "an older version"}
    (tmp_path / "state" / "jobs.json").write_text("{")
    with pytest.raises(ValueError, match=r"jobs\.json"):
        store.read("jobs")
    store.close()


def test_store_has_the_old_or_the_new_document_wherever_a_write_ends(
    tmp_path: Path,
) -> None:
    store, path = Store(tmp_path), tmp_path / "jobs.json"
    documents = [{"a": 1}, {"b": 2}]
    for document in documents:
        store.write("jobs", document)
    store.close()
    written = path.read_bytes()
    whole = [written.index(b"\n") + 1, len(written)]
    for end in range(whole[0], len(written) + 1):
        path.write_bytes(written[:end])
        assert (
            Store(tmp_path).read("jobs") == documents[sum(end >= w for w in whole) - 1]
        )
        # The next process goes on from there.
        successor = Store(tmp_path)
        successor.write("jobs", {"c": end})
        successor.write("jobs", {"d": end})
        successor.close()
        assert Store(tmp_path).read("jobs") == {"d": end}


def test_store_goes_on_after_a_full_disk(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write("jobs", {"a": 1})
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    # As a disk that has room for a part of it: a short write, then none.
    resource.setrlimit(
        resource.RLIMIT_FSIZE, ((tmp_path / "jobs.json").stat().st_size + 3, limit[1])
    )
    try:
        for _ in range(2):
            with pytest.raises(OSError):
                store.write("jobs", {"b": "x" * 100})
            assert store.read("jobs") == {"a": 1}
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, ignored)
    store.write("jobs", {"c": 3})
    store.write("jobs", {"d": 4})
    assert store.read("jobs") == Store(tmp_path).read("jobs") == {"d": 4}
    store.close()


def test_store_does_not_grow_without_end(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in range(40):
        store.write("jobs", {"number": number, "text": "x" * 100_000})
        assert store.read("jobs")["number"] == number
    assert (tmp_path / "jobs.json").stat().st_size <= 1 << 20
    store.write("jobs", "x" * (2 << 20))
    store.write("jobs", {"small": 1})
    assert store.read("jobs") == {"small": 1}
    assert (tmp_path / "jobs.json").stat().st_size < 100
    store.close()


def test_bus_orders_replays_and_drops_the_oldest() -> None:
    bus = EventBus(keep=3)
    for number in range(5):
        bus.publish("job", number=number)
    woken: list[bool] = []
    late = bus.subscribe(3, lambda: woken.append(bus.closed))
    assert [event["number"] for event in late.take()] == [3, 4]
    assert late.take() == []
    woken.clear()
    for number in range(1500):
        bus.publish("job", number=number)
    assert len(woken) == 1500
    taken = [event["number"] for event in late.take()]
    assert taken == list(range(500, 1500))
    bus.close()
    assert woken[-1], "a listener that waits must learn of the end"
    late.close()


def test_events_of_many_publishers_are_taken_in_order() -> None:
    bus = EventBus()
    listener = bus.subscribe()
    threads = [
        threading.Thread(target=lambda: [bus.publish("job") for _ in range(50)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [event["id"] for event in listener.take()] == list(range(1, 401))


def test_attachments_follow_the_light() -> None:
    ends = attachments(FABRIC, light(PORTS[:6]))
    assert ends[Port("tor0", 1)] == Port("g0", 0)
    assert ends[Port("tor1", 3)] is None
    assert ends[Port("tor0", 6)] == Port("tor1", 5)
    assert circuit_pairs(FABRIC, light(PORTS[:6])) == [
        (Port(f"g{i}", 0), port) for i, port in enumerate(PORTS[:6])
    ]


def test_a_circuit_lit_one_way_only_is_no_duplex_circuit() -> None:
    there = {"ocs0": [CrossConnect(1, 18 + 7)]}
    (circuit,) = lit_circuits(FABRIC, there)
    assert vars(circuit) == {
        "ends": ("g0", "tor0:1"),
        "path": ["g0:0", "ocs0:1", "ocs0:7", "tor0:1"],
        "duplex": False,
        "lost": False,
    }
    assert circuit_pairs(FABRIC, there) == []


def stats(number: int, rx: int, tx: int) -> PortStats:
    return PortStats(number, 0, 0, rx, tx, 0, 0, 0, 0)


def test_rates_are_bits_per_second_and_skip_what_cannot_be_compared() -> None:
    before = {1: stats(1, 1000, 0), 2: stats(2, 500, 500)}
    now = [stats(1, 2000, 125), stats(2, 100, 600), stats(3, 9, 9)]
    assert rates(before, now, 0.5) == {1: (16000.0, 2000.0)}


def test_access(tmp_path: Path) -> None:
    assert is_loopback("127.0.0.1")
    assert is_loopback("localhost")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("192.0.2.1")
    path = tmp_path / "token"
    good = "0123456789abcdef"
    for bad in (
        "short",
        "two words but long enough",
        "",
        f"ann {good}\nbob {good}",
        f"a/b {good}",
    ):
        path.write_text(bad)
        with pytest.raises(StartError, match="token"):
            read_tokens(path)
    path.write_text(f"{good}\n")
    assert read_tokens(path) == {good: "token"}
    path.write_text(f"ann {good}\n  bob {good}0\n")
    assert read_tokens(path) == {good: "ann", f"{good}0": "bob"}
    with pytest.raises(StartError, match="absent"):
        read_tokens(tmp_path / "absent")


def inventory_document() -> dict[str, Any]:
    return {
        "lab": "abcd",
        "packet_switches": {
            f"tor{t}": {"dpid": t + 1, "bridge": "x"} for t in range(3)
        },
        "optical_switches": {"ocs0": {"driver": "scpi"}},
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lab": None}, "lab"),
        ({"packet_switches": {"tor0": {"dpid": 1}}}, "packet_switches.tor1 is missing"),
        ({"optical_switches": {}}, "optical_switches.ocs0 is missing"),
        ({"time_dilation": 0}, "time_dilation"),
    ],
)
def test_inventory_errors_name_file_and_key(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    path = tmp_path / "inventory.json"
    path.write_text(json.dumps(inventory_document()))
    assert read_inventory(path, FABRIC).lab == "abcd"
    path.write_text(json.dumps(inventory_document() | change))
    with pytest.raises(StartError, match=said) as caught:
        read_inventory(path, FABRIC)
    assert "inventory.json" in str(caught.value)


def test_waiting_for_the_inventory_has_an_end(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"no inventory after 0\.05 s"):
        wait_for_inventory(tmp_path / "absent.json", FABRIC, 0.05, lambda: False)
    assert (
        wait_for_inventory(tmp_path / "absent.json", FABRIC, 60, lambda: True) is None
    )


def test_fabric_file_and_address_errors(tmp_path: Path) -> None:
    path = tmp_path / "fabric.json"
    for text, said in (
        ("{", r"fabric\.json: \w"),
        (json.dumps({"servers": {}}), "servers"),
        (json.dumps({"colour": 1}), "fabric.json"),
    ):
        path.write_text(text)
        with pytest.raises(StartError, match=said):
            read_fabric(path)
    assert _address("--rest", "[::1]:80") == ("::1", 80)
    for bad in ("8080", "localhost:", "a:b", "127.0.0.1:70000"):
        with pytest.raises(StartError, match="--rest"):
            _address("--rest", bad)


TRAIN = {
    "name": "red",
    "gpus": 2,
    "gradient_bytes": 9640,
    "compute_s": 0.1,
    "iterations": 2,
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ranks": ["g0"]}, "either ranks"),
        ({"gpus": None}, "either ranks"),
        ({"iterations": None}, "needs iterations"),
        ({"iterations": 0}, "iterations"),
        ({"collective": "star"}, "star"),
        ({"name": "Red!"}, "name"),
        ({"linktest": {"to": [1]}}, "linktest.to has 1 entries for 2 ranks"),
        ({"linktest": {"to": 2}}, "linktest.to: there is no rank 2"),
        ({"linktest": {"to": [None, -1]}}, "linktest.to: there is no rank -1"),
        ({"color": 1}, "color"),
        ({"on_loss": "wait"}, "on_loss"),
        (
            {"workload": "linktest", "on_loss": "swap"},
            "workload linktest keeps no state",
        ),
        (
            {"on_loss": "shrink", "spares": ["g4"]},
            "on_loss shrink has no use for spares",
        ),
        (
            {"checkpoint_every": 2},
            "checkpoint_every: with on_loss fail nothing is kept",
        ),
    ],
)
def test_job_requests_are_strict(change: dict[str, Any], said: str) -> None:
    assert JobRequest.model_validate(TRAIN).worker_settings() == {
        "workload": "train",
        "collective": "ring",
        "gradient_bytes": 9640,
        "compute_s": 0.1,
        "iterations": 2,
    }
    with pytest.raises(ValidationError, match=said):
        JobRequest.model_validate(TRAIN | change)


def test_a_plan_is_for_the_collective_that_a_job_would_get() -> None:
    assert (
        LightRequest.model_validate({"gpus": 2}).collective
        == JobRequest.model_validate(TRAIN).collective
    )
