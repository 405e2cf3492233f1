"""The worker image: made from Debian packages, and enough for a worker with no privileges at all."""

from __future__ import annotations

import io
import json
import os
import secrets
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from ringlight.containers.image import base_tag, code_files, image_present, image_tag
from ringlight.containers.image_build import ensure_image
from ringlight.containers.worker.reference import train_in_one_process
from ringlight.containers.worker.spec import read_spec
from ringlight.testbed import lab
from ringlight.testbed.emulation import clean
from ringlight.testbed.lab import Lab
from ringlight.testbed.setup import remove_old_images

pytestmark = pytest.mark.root

NOBODY = 65534
GRADIENT_BYTES = 100_004


@pytest.fixture(scope="module")
def image() -> str:
    return ensure_image(lambda _: None)


class Bench:
    """Containers of one test: the least that works, removed at its end."""

    def __init__(
        self, client: docker.DockerClient, image: str, directory: Path
    ) -> None:
        self.client, self.image, self.directory = client, image, directory
        self.label = {"ringlight.lab": secrets.token_hex(2)}
        self.containers: list[Any] = []

    def job(self, rank: int, world_size: int, **values: Any) -> Path:
        path = self.directory / str(rank)
        path.mkdir()
        spec = {
            "job": "image", "rank": rank, "world_size": world_size, "seed": 3, "iterations": 8,
            "peers": [f"127.0.0.{each + 1}" for each in range(world_size)],
            "gradient_bytes": GRADIENT_BYTES, "learning_rate": 0.2,
        } | values  # fmt: skip
        (path / "spec.json").write_text(json.dumps(spec))
        (path / "go").write_text(json.dumps({"at": time.monotonic()}))
        os.chown(path, NOBODY, NOBODY)
        return path

    def run(
        self, job: Path, command: list[str] | None = None, network: str = "none"
    ) -> Any:
        container = self.client.containers.run(
            self.image,
            command,
            detach=True,
            network_mode=network,
            read_only=True,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            mem_limit="256m",
            pids_limit=32,
            labels=self.label,
            volumes={str(job): {"bind": "/job", "mode": "rw"}},
        )
        self.containers.append(container)
        return container


@pytest.fixture
def bench(image: str, tmp_path: Path) -> Iterator[Bench]:
    client = docker.from_env(timeout=60)
    made = Bench(client, image, tmp_path)
    try:
        yield made
    finally:
        for container in client.containers.list(
            all=True, filters={"label": f"ringlight.lab={made.label['ringlight.lab']}"}
        ):
            container.remove(force=True)
        client.close()


def done_event(job: Path) -> dict[str, Any]:
    events = [
        json.loads(line) for line in (job / "events.jsonl").read_text().splitlines()
    ]
    assert events[-1]["event"] == "done", events[-1]
    return dict(events[-1])


def test_image_is_found_by_its_content(image: str) -> None:
    assert image == image_tag()
    assert image_present()
    started = time.monotonic()
    image_present()
    assert time.monotonic() - started < 3


def test_two_workers_agree_with_one_process_of_the_host(bench: Bench) -> None:
    jobs = [bench.job(rank, 2) for rank in range(2)]
    first = bench.run(jobs[0])
    second = bench.run(jobs[1], network=f"container:{first.id}")
    for container in (first, second):
        assert container.wait(timeout=60)["StatusCode"] == 0, container.logs()
    expected = train_in_one_process(read_spec(jobs[0] / "spec.json"))
    for job in jobs:
        done = done_event(job)
        assert {key: done[key] for key in expected} == expected
        assert done["loss_last"] < done["loss_first"]


def test_worker_has_no_privileges_and_only_its_own_directory(bench: Bench) -> None:
    program = (
        "import json, os\n"
        "def writable(path):\n"
        "    try:\n"
        "        open(os.path.join(path, 'probe'), 'w').close()\n"
        "    except OSError:\n"
        "        return False\n"
        "    return True\n"
        "status = dict(l.split(':', 1) for l in open('/proc/self/status'))\n"
        "print(json.dumps({'uid': os.getuid(), 'capabilities': status['CapEff'].strip(),\n"
        "    'writable': [p for p in ('/', '/tmp', '/opt/ringlight', '/job') if writable(p)],\n"
        "    'ours': sorted(os.listdir('/opt/ringlight/ringlight')),\n"
        "    'fabric': sorted(os.listdir('/opt/ringlight/ringlight/fabric'))}))\n"
    )
    container = bench.run(bench.job(0, 1), ["python3", "-c", program])
    assert container.wait(timeout=60)["StatusCode"] == 0, container.logs()
    seen = json.loads(container.logs())
    assert seen["uid"] == NOBODY
    assert int(seen["capabilities"], 16) == 0
    assert seen["writable"] == ["/job"]
    names = [Path(name).relative_to("ringlight").parts for name in code_files()]
    assert {"containers", "fabric", "workloads"} <= {parts[0] for parts in names}
    assert {name for name in seen["ours"] if name != "__pycache__"} == {
        parts[0] for parts in names
    }
    of_fabric = {
        parts[1] for parts in names if parts[0] == "fabric" and len(parts) == 2
    }
    assert {name for name in seen["fabric"] if name.endswith(".py")} == of_fabric


def test_terminated_worker_ends_at_once(bench: Bench) -> None:
    job = bench.job(0, 1, compute_s=30)
    container = bench.run(job)
    deadline = time.monotonic() + 30
    events = job / "events.jsonl"
    while not (events.exists() and "started" in events.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    container.stop(timeout=10)
    assert container.wait(timeout=10)["StatusCode"] == 143


def test_base_belongs_to_the_host(image: str) -> None:
    client = docker.from_env(timeout=60)
    try:
        layers = client.images.get(image).attrs["RootFS"]["Layers"]
        base = client.images.get(base_tag()).attrs["RootFS"]["Layers"]
    finally:
        client.close()
    assert layers[: len(base)] == base


def test_old_images_that_nothing_needs_go_when_a_new_one_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clean, "STATE_ROOT", tmp_path)
    monkeypatch.setattr(lab, "STATE_ROOT", tmp_path)
    client = docker.APIClient(version="auto", timeout=60)
    repository = f"ringlight-test-{secrets.token_hex(3)}"
    old, used, new, foreign, copy = (
        f"{repository}{end}" for end in (":old", ":used", ":new", ":else", "-copy:old")
    )
    content = io.BytesIO()
    tarfile.open(fileobj=content, mode="w").close()
    stopped = None

    def make(name: str, *changes: str) -> None:
        tag = name.partition(":")[2]
        client.import_image_from_data(
            content.getvalue(), repository=repository, tag=tag, changes=changes
        )

    def there() -> set[str]:
        return {
            tag
            for image in client.images()
            for tag in image["RepoTags"] or ()
            if repository in tag
        }

    def remove(**more: float) -> list[str]:
        said: list[str] = []
        remove_old_images(new, said.append, **more)
        return said

    try:
        for name in (old, used, new):
            make(name, "LABEL ringlight=image", "CMD true")
        make(foreign)
        client.tag(old, *copy.split(":"))
        stopped = client.create_container(used)
        assert remove() == [], "none of them is old"
        with Lab("abc").hold():
            assert remove(age_s=0) == [], "a lab lives, and may yet start workers"
        assert there() == {old, used, new, foreign, copy}
        assert remove(age_s=0) == [f"Removed the old image {old}"]
        assert there() == {used, new, foreign, copy}
    finally:
        if stopped is not None:
            client.remove_container(stopped, force=True)
        for name in there():
            client.remove_image(name)
        client.close()
