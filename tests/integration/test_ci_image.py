"""``containers/ci/run``: a new image takes the place of the older ones of its variant, and of no others."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.root

ROOT = Path(__file__).resolve().parents[2]
LABEL = "ringlight.ci"


def docker(*arguments: str, empty: bool = False) -> str:
    """``empty``: an archive of nothing is the input."""
    done = subprocess.run(
        ["docker", *arguments],
        input=bytes(10_240) if empty else b"",
        capture_output=True,
        timeout=60,
        check=True,
    )
    return done.stdout.decode().strip()


@pytest.fixture
def release() -> Iterator[str]:
    """A release of no distribution; what was made for it is removed."""
    name = f"test{secrets.token_hex(4)}"
    yield name
    for kind in ("full", "fresh"):
        for container in docker(
            "ps", "-aq", "--filter", f"label={LABEL}={name}-{kind}"
        ).split():
            docker("rm", "-f", container)
    for image in images(name):
        docker("image", "rm", image)


def images(release: str) -> set[str]:
    found = docker(
        "image", "ls", "--format", "{{.Repository}}:{{.Tag}}", "ringlight-ci"
    )
    return {image for image in found.split() if release in image}


def make(tag: str, variant: str | None) -> str:
    image = f"ringlight-ci:{tag}"
    labels = "ringlight=ci" + (f" {LABEL}={variant}" if variant else "")
    docker("import", "--change", f"LABEL {labels}", "-", image, empty=True)
    return image


def test_a_new_image_takes_the_place_of_its_variants_older_ones(
    release: str, tmp_path: Path
) -> None:
    other = {
        make(f"{release}-b", f"{release}-fresh"),
        make(f"{release}x-c", f"{release}x-full"),
    }
    unknown, used = make(f"{release}-d", None), make(f"{release}-e", f"{release}-full")
    docker("create", "--label", f"{LABEL}={release}-full", used, "true")
    old = make(f"{release}-a", f"{release}-full")
    # Debian's packages would take minutes: an image of nothing, in which no command can be run.
    maker = tmp_path / "mmdebstrap"
    maker.write_text(
        '#!/bin/sh\nfor last; do :; done\nhead -c 10240 /dev/zero > "$last"\n'
    )
    maker.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "RINGLIGHT_CI_SUITE": release}
    environment.pop("RINGLIGHT_CI_FRESH", None)
    done = subprocess.run(
        [ROOT / "containers/ci/run", "true"],
        env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    left = images(release)
    assert old not in left, done.stderr
    assert left > other | {unknown, used}
    (new,) = left - other - {unknown, used}
    assert f"Making {new}" in done.stderr
    assert f"Removed the older {old}" in done.stderr
    assert f"Kept the older {used}" in done.stderr
