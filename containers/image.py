"""The worker image, made without a registry: Debian packages below, our code on top.

The base is the host's own suite (Debian or Ubuntu, from the host's package sources) with Python and numpy
in it; its tag is a hash of the recipe. The code layer holds what a worker imports; its tag is a hash of those
files, so a changed worker is a new image and an unchanged one is found by name.

``containers.image_build`` makes it; this module only names and finds it, without Docker's client where it
can, so that a start-up check costs milliseconds.
"""

from __future__ import annotations

import hashlib
import http.client
import importlib.util
import os
import platform
import socket
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import ringlight
from ringlight.fabric.extension import extensions

if TYPE_CHECKING:
    import docker

ROOT = Path(__file__).resolve().parent.parent
LABEL = {"ringlight": "image"}
#: A name of the worker image that stays when its code changes, and with it the tag.
OWN_IMAGE = "ringlight-worker"
#: Modules of ``workloads`` that a worker imports.
WORKLOADS = (
    "__init__",
    "following",
    "graph",
    "graph_checks",
    "graph_writer",
    "job_settings",
    "packed",
    "splits",
)
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
COPY ringlight /opt/ringlight/ringlight
RUN python3 -m compileall -q /opt/ringlight
ENV PYTHONPATH=/opt/ringlight PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /opt/ringlight
USER 65534:65534
CMD ["python3", "-m", "ringlight.containers.worker", "/job"]
"""
PRESENCE_TIMEOUT_S = 10.0
#: Docker's answers about an image that it has not, and about a name that none can have.
_NOT_THERE = (404, 400)
_SOCKET_SCHEME = "unix://"
_DEFAULT_HOST = "unix:///var/run/docker.sock"

Progress = Callable[[str], None]


class ImageError(RuntimeError):
    """The worker image is not there and could not be made; one line."""


class NoPackageError(ImageError):
    """A Debian package that the sources do not have: no other attempt will find it."""


def suite() -> str:
    """Return the code name of the host's distribution, such as ``bookworm``. Raises ImageError if it has
    none.
    """
    try:
        return platform.freedesktop_os_release()["VERSION_CODENAME"]
    except (KeyError, OSError):
        raise ImageError(
            "/etc/os-release names no VERSION_CODENAME; is this Debian or Ubuntu?"
        ) from None


def base_tag() -> str:
    """Return the tag of the image below the worker's code. Raises ImageError."""
    recipe = "\n".join([suite(), platform.machine(), *PACKAGES, *EXCLUDED_PATHS])
    return f"ringlight-base:{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def code_files() -> dict[str, Path]:
    """Return the files that a worker imports or reads, by their names below a folder in PYTHONPATH,
    sorted.
    """
    modules = (
        "__init__",
        "algorithms",
        "alltoall",
        "collectives",
        "extension",
        "gathers",
        "kinds",
        "schedules",
        "steps",
        "text",
        "verify",
        "planes/__init__",
        "whole_numbers/__init__",
        "whole_numbers/blocks",
        "whole_numbers/means",
        "whole_numbers/sums",
    )
    chosen = [ROOT / "fabric" / f"{name}.py" for name in modules] + [
        ROOT / "containers/__init__.py"
    ]
    chosen += [ROOT / "workloads" / f"{name}.py" for name in WORKLOADS]
    chosen += (ROOT / "containers/worker").glob("*.py")
    chosen += [p for p in (ROOT / "containers/data").iterdir() if p.is_file()]
    rooms = {f"ringlight/{path.relative_to(ROOT)}": path for path in sorted(chosen)}
    return (
        {"ringlight/__init__.py": Path(ringlight.__file__)}
        | rooms
        | _files_of_extensions()
    )


def _files_of_extensions() -> dict[str, Path]:
    """Return the modules of extensions that a worker may import, by the same names.

    Of those that such an extension requires, only the package's own module if they have none for workers.
    """
    files: dict[str, Path] = {}
    needed = set[str]()
    for item in reversed(extensions()):
        # Each comes after those that it requires.
        if not item.extension.worker and item.extension.name not in needed:
            continue
        needed.update(item.extension.requires)
        parts = item.package.split(".")
        packages = [".".join(parts[: n + 1]) for n in range(len(parts))]
        modules = [value.partition(":")[0] for value in item.extension.worker]
        for name in (*packages, *(f"{item.package}.{module}" for module in modules)):
            spec = importlib.util.find_spec(name)
            if spec is None or spec.origin is None:
                raise ImageError(
                    f"extension {item.extension.name}: there is no module {name}"
                )
            folder = name.replace(".", "/")
            files[
                f"{folder}/__init__.py"
                if spec.submodule_search_locations
                else f"{folder}.py"
            ] = Path(spec.origin)
    return files


@cache
def image_tag() -> str:
    """Return the tag of the worker image of this source tree on this host. Raises ImageError."""
    digest = hashlib.sha256((base_tag() + DOCKERFILE).encode())
    for name, path in code_files().items():
        digest.update(name.encode() + b"\0" + path.read_bytes())
    return f"{OWN_IMAGE}:{digest.hexdigest()[:12]}"


class _SocketConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("docker", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def image_present(name: str | None = None) -> bool:
    """Return whether Docker has the worker image, or the image ``name`` if it is given.

    Raises ImageError if Docker does not answer.
    """
    tag = image_tag() if name is None else name
    host = os.environ.get("DOCKER_HOST") or _DEFAULT_HOST
    if not host.startswith(_SOCKET_SCHEME):
        # A daemon elsewhere: Docker's own client knows how to reach it.
        with docker_client(PRESENCE_TIMEOUT_S) as client:
            return has_image(client, tag)
    connection = _SocketConnection(
        host.removeprefix(_SOCKET_SCHEME), PRESENCE_TIMEOUT_S
    )
    try:
        connection.request("GET", f"/images/{urllib.parse.quote(tag, safe='/:@')}/json")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException):
        raise ImageError(
            "Docker is not running or does not answer; run: ringlight doctor"
        ) from None
    finally:
        connection.close()
    if status not in (200, *_NOT_THERE):
        raise ImageError(f"Docker answered {status} about image {tag}")
    return status == 200


@contextmanager
def docker_client(timeout_s: float) -> Iterator[docker.APIClient]:
    """Yield Docker's own client. Its errors, also those raised in the block, become ImageError."""
    # A quarter of a second, which a start-up check has no use for.
    import docker
    import requests

    try:
        client = docker.APIClient(version="auto", timeout=timeout_s)
    except (docker.errors.DockerException, requests.RequestException) as error:
        if "Permission denied" in str(error):
            raise ImageError("you may not use Docker here; root may") from None
        raise ImageError(
            "Docker is not running or does not answer; run: ringlight doctor"
        ) from None
    try:
        yield client
    except (docker.errors.APIError, requests.RequestException) as error:
        raise ImageError(f"Docker: {error}") from None
    finally:
        client.close()


def has_image(client: docker.APIClient, tag: str) -> bool:
    """Return whether Docker has an image with the name ``tag``."""
    import docker

    try:
        client.inspect_image(tag)
    except docker.errors.APIError as error:
        if error.status_code in _NOT_THERE:
            return False
        raise
    return True
