"""The worker image, made without a registry: Debian packages below, our code on top.

The base is the host's own suite (Debian or Ubuntu, from the host's package sources) with Python and numpy
in it; its tag is a hash of the recipe. The code layer holds what a worker imports and nothing else; its tag
is a hash of those files, so a changed worker is a new image and an unchanged one is found by name.
"""

from __future__ import annotations

import hashlib
import io
import platform
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import docker
import requests

ROOT = Path(__file__).resolve().parent.parent
LABEL = {"ringlight": "image"}
PACKAGES = ("python3", "python3-numpy")
# Nothing of these is read by a worker.
EXCLUDED_PATHS = (
    "/usr/share/man/*",
    "/usr/share/doc/*",
    "/usr/share/locale/*",
    "/usr/share/info/*",
)
DOCKERFILE = """\
FROM {base}
COPY ringlight /opt/ringlight
RUN python3 -m compileall -q /opt/ringlight
ENV PYTHONPATH=/opt/ringlight PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /opt/ringlight
USER 65534:65534
CMD ["python3", "-m", "containers.worker", "/job"]
"""
BUILD_TIMEOUT_S = 600

Progress = Callable[[str], None]


class ImageError(RuntimeError):
    """The worker image is not there and could not be made; one line."""


def _suite() -> str:
    """Code name of the host's distribution, such as ``bookworm``."""
    release = platform.freedesktop_os_release()
    try:
        return release["VERSION_CODENAME"]
    except KeyError:
        raise ImageError("/etc/os-release names no VERSION_CODENAME; is this Debian or Ubuntu?") from None


def base_tag() -> str:
    recipe = "\n".join([_suite(), platform.machine(), *PACKAGES, *EXCLUDED_PATHS])
    return f"ringlight-base:{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def _code() -> list[Path]:
    """The files a worker imports or reads, sorted."""
    chosen = [ROOT / "fabric/__init__.py", ROOT / "fabric/collectives.py", ROOT / "containers/__init__.py"]
    chosen += (ROOT / "containers/worker").glob("*.py")
    chosen += [p for p in (ROOT / "containers/data").iterdir() if p.is_file()]
    return sorted(chosen)


@cache
def image_tag() -> str:
    """Tag of the worker image that belongs to this source tree and this host."""
    digest = hashlib.sha256((base_tag() + DOCKERFILE).encode())
    for path in _code():
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return f"ringlight-worker:{digest.hexdigest()[:12]}"


def _client(timeout_s: float) -> docker.APIClient:
    try:
        return docker.APIClient(version="auto", timeout=timeout_s)
    except (docker.errors.DockerException, requests.RequestException):
        raise ImageError("Docker is not running or does not answer; run: ringlight doctor") from None


def _has(client: docker.APIClient, tag: str) -> bool:
    try:
        client.inspect_image(tag)
    except docker.errors.ImageNotFound:
        return False
    except (docker.errors.APIError, requests.RequestException) as error:
        raise ImageError(f"Docker did not answer about image {tag}: {type(error).__name__}") from None
    return True


def image_present() -> bool:
    """Whether Docker has the worker image. Raises ImageError when Docker does not answer."""
    client = _client(10)
    try:
        return _has(client, image_tag())
    finally:
        client.close()


def ensure_image(progress: Progress) -> str:
    """The worker image's tag, once Docker has it; makes base and code layer where they are missing.

    Raises ImageError.
    """
    client = _client(BUILD_TIMEOUT_S)
    try:
        if not _has(client, image_tag()):
            if not _has(client, base_tag()):
                progress(f"Making the base image from {_suite()} packages (once)")
                _make_base(client)
            progress("Making the worker image")
            _make_worker(client)
        if not _has(client, image_tag()):
            raise ImageError(f"Docker built {image_tag()} but does not have it")
    finally:
        client.close()
    return image_tag()


def _make_base(client: docker.APIClient) -> None:
    if shutil.which("mmdebstrap") is None:
        raise ImageError("mmdebstrap is not installed; run: apt-get install mmdebstrap")
    with tempfile.TemporaryDirectory(prefix="ringlight-") as scratch:
        archive = Path(scratch) / "base.tar"
        command = [
            "mmdebstrap",
            "--quiet",
            "--variant=minbase",
            f"--include={','.join(PACKAGES)}",
            *(f"--dpkgopt=path-exclude={path}" for path in EXCLUDED_PATHS),
            '--customize-hook=rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*',
            _suite(),
            str(archive),
        ]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=BUILD_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ImageError(f"mmdebstrap took longer than {BUILD_TIMEOUT_S} s") from None
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise ImageError(f"mmdebstrap failed: {last}")
        repository, tag = base_tag().split(":")
        changes = [f'LABEL {key}="{value}"' for key, value in LABEL.items()]
        try:
            client.import_image_from_file(str(archive), repository=repository, tag=tag, changes=changes)
        except (docker.errors.APIError, requests.RequestException) as error:
            raise ImageError(f"Docker did not import the base image: {error}") from None


def _make_worker(client: docker.APIClient) -> None:
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        recipe = DOCKERFILE.format(base=base_tag()).encode()
        entry = tarfile.TarInfo("Dockerfile")
        entry.size = len(recipe)
        archive.addfile(entry, io.BytesIO(recipe))
        for path in _code():
            archive.add(path, f"ringlight/{path.relative_to(ROOT)}", filter=_plain)
    context.seek(0)
    try:
        steps = list(
            client.build(
                fileobj=context,
                custom_context=True,
                tag=image_tag(),
                rm=True,
                forcerm=True,
                labels=LABEL,
                network_mode="none",
                decode=True,
            )
        )
    except (docker.errors.APIError, requests.RequestException) as error:
        raise ImageError(f"Docker did not build the worker image: {error}") from None
    failed = next((step["error"] for step in steps if "error" in step), None)
    if failed:
        raise ImageError(f"Docker did not build the worker image: {failed.strip()}")


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Owned by root and readable by all, whatever the checkout's own modes are."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mode = 0o755 if entry.isdir() else 0o644
    entry.mtime = 0
    return entry
