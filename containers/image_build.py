"""Builds the worker image: the base from Debian packages, then the code. See ``containers.image``."""

from __future__ import annotations

import io
import logging
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Sequence
from email import message_from_string
from http import HTTPStatus
from pathlib import Path

import docker

from ringlight.containers.image import (
    DOCKERFILE,
    EXCLUDED_PATHS,
    LABEL,
    PACKAGES,
    ROOT,
    ImageError,
    NoPackageError,
    Progress,
    base_tag,
    code_files,
    docker_client,
    has_image,
    image_present,
    image_tag,
    suite,
)

BUILD_TIMEOUT_S = 600
#: Docker's storage driver where it finds no other, as on a file system that is itself an overlay.
COPIES = "vfs"
APT_SOURCES = Path("/etc/apt")
_IMAGE_NAME = re.compile(
    r"[a-z0-9][a-z0-9._/-]{0,127}:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
)
#: Variable that names an archive of the base's file system, where the machine brings one.
BASE_ARCHIVE = "RINGLIGHT_BASE_ARCHIVE"
#: What mmdebstrap says when it begins something that takes long.
_STAGES = ("I: downloading", "I: extracting", "I: installing")
_PACKAGE_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+")
#: What apt says of a package that it does not know.
_NO_PACKAGE = re.compile(r"E: Unable to locate package (\S+)")

log = logging.getLogger(__name__)


def ensure_image(progress: Progress) -> str:
    """Build the base and the code layer if Docker does not have them. Return the tag of the worker image.

    Raises ImageError.
    """
    if not image_present():
        build_image(progress)
        if not image_present():
            raise ImageError(f"Docker built {image_tag()} but does not have it")
    return image_tag()


def build_image(progress: Progress) -> None:
    """Make the base image if it is missing, and the worker image on it. Raises ImageError."""
    with docker_client(BUILD_TIMEOUT_S) as client:
        if client.info()["Driver"] == COPIES:
            progress(
                f"Docker's storage is {COPIES} here, which copies the image for each layer, in minutes: "
                "in a container, put /var/lib/docker on a volume"
            )
        archive = os.environ.get(BASE_ARCHIVE)
        if archive and not has_image(client, base_tag()):
            if not Path(archive).is_file():
                raise ImageError(f"{archive}, which {BASE_ARCHIVE} names, is no file")
            progress("Importing the base image")
            _import(client, base_tag(), Path(archive))
        if not has_image(client, base_tag()):
            progress(f"Making the base image from {suite()} packages (once)")
            _make_base(client, progress)
        progress("Making the worker image")
        _make_worker(client)


def remove_images(keep: str, age_s: float) -> list[str]:
    """Remove our images that have the name of ``keep``, another tag and more than ``age_s`` seconds. Return
    the removed tags.

    Images of containers, running or stopped, stay because Docker refuses to remove them. Raises ImageError.
    """
    name = keep.partition(":")[0]
    before = time.time() - age_s
    removed = []
    with docker_client(BUILD_TIMEOUT_S) as client:
        ours = client.images(
            name=name,
            filters={"label": [f"{key}={value}" for key, value in LABEL.items()]},
        )
        tags = [
            tag
            for image in ours
            if image["Created"] <= before
            for tag in image["RepoTags"] or ()
        ]
        for tag in tags:
            if tag == keep or not tag.startswith(f"{name}:"):
                continue
            try:
                client.remove_image(tag)
            except docker.errors.APIError as error:
                if error.status_code not in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND):
                    raise
            else:
                removed.append(tag)
    return removed


def build_from_packages(name: str, packages: Sequence[str], progress: Progress) -> str:
    """Build an image of the host's own suite with Python, numpy and the given Debian packages. Return its
    full name.

    An existing image of that name is replaced. Raises ImageError.
    """
    repository, _, tag = name.partition(":")
    whole = f"{repository}:{tag or 'latest'}"
    if not _IMAGE_NAME.fullmatch(whole):
        raise ImageError(
            f"{name!r:.80} is no name of an image, such as my-mpi or my-mpi:1"
        )
    if bad := next(
        (package for package in packages if not _PACKAGE_NAME.fullmatch(package)), None
    ):
        raise ImageError(f"{bad!r:.80} is no name of a Debian package")
    if shutil.which("mmdebstrap") is None:
        raise ImageError("mmdebstrap is not installed; run: ringlight setup")
    with docker_client(BUILD_TIMEOUT_S) as client:
        progress(
            f"Making image {whole} from {suite()} packages; this takes a minute or more"
        )
        _import_packages(client, whole, [*PACKAGES, *packages], progress)
        if not has_image(client, whole):
            raise ImageError(f"Docker imported {whole} but does not have it")
    return whole


def _make_base(client: docker.APIClient, progress: Progress) -> None:
    if shutil.which("mmdebstrap") is None:
        progress("mmdebstrap is not installed: taking the base from a registry instead")
        _build(
            client,
            base_tag(),
            {"Dockerfile": (ROOT / "containers/Dockerfile").read_bytes()},
            None,
        )
        return
    _import_packages(client, base_tag(), PACKAGES, progress)


def _import_packages(
    client: docker.APIClient, name: str, packages: Sequence[str], progress: Progress
) -> None:
    with tempfile.TemporaryDirectory(prefix="ringlight-") as scratch:
        archive = Path(scratch) / "base.tar"
        sources = Path(scratch) / "host.sources"
        sources.write_text(host_sources(APT_SOURCES, suite()))
        try:
            mirrors = [str(sources)] if sources.stat().st_size else []
            _mmdebstrap(archive, packages, mirrors, progress)
        except ImageError as error:
            if not sources.stat().st_size or isinstance(error, NoPackageError):
                raise
            # Some other source of the host may be broken; the distribution's own default may still serve.
            log.warning("with the host's package sources: %s", error)
            progress(
                "The host's package sources failed; trying the distribution's default"
            )
            archive.unlink(missing_ok=True)
            _mmdebstrap(archive, packages, [], progress)
        _import(client, name, archive)


def _import(client: docker.APIClient, name: str, archive: Path) -> None:
    """Make an image of a root file system."""
    repository, tag = name.split(":")
    changes = [f'LABEL {key}="{value}"' for key, value in LABEL.items()]
    client.import_image_from_file(
        str(archive), repository=repository, tag=tag, changes=changes
    )


def _mmdebstrap(
    archive: Path, packages: Sequence[str], mirrors: list[str], progress: Progress
) -> None:
    """Make a root file system of these packages. Raises ImageError with apt's own first complaint."""
    command = [
        "mmdebstrap",
        "--variant=minbase",
        f"--include={','.join(packages)}",
        *(f"--dpkgopt=path-exclude={path}" for path in EXCLUDED_PATHS),
        # The result is a tar file: nothing is lost when the machine stops in between.
        "--dpkgopt=force-unsafe-io",
        '--customize-hook=rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/* "$1"/var/log/*',
        suite(),
        str(archive),
        *mirrors,
    ]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    late = threading.Timer(BUILD_TIMEOUT_S, process.terminate)
    late.start()
    lines = []
    try:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line.strip())
            if line.startswith(_STAGES):
                progress(f"  {lines[-1].removeprefix('I: ')}")
        process.wait()
        ended_in_time = late.is_alive()
    finally:
        late.cancel()
        with process:
            process.terminate()
    if not ended_in_time:
        raise ImageError(f"mmdebstrap took longer than {BUILD_TIMEOUT_S} s")
    if process.returncode:
        for line in lines:
            if match := _NO_PACKAGE.match(line):
                raise NoPackageError(
                    f"there is no Debian package {match[1]} in the sources of {suite()}"
                )
        # The first error is the cause; the last says only that there was one.
        cause = next(
            (line for line in lines if line.startswith("E: ")),
            (lines or ["no message"])[-1],
        )
        raise ImageError(f"mmdebstrap failed: {cause}")


def host_sources(directory: Path, codename: str) -> str:
    """Return the host's package sources for its own suite as deb822 text, empty if there are none.

    Reads ``sources.list``, ``sources.list.d/*.list`` and ``*.sources`` in ``directory``. Other vendors'
    suites and components are left out: the base needs only ``main`` of the distribution.
    """
    stanzas: list[dict[str, str]] = []
    one_line = [
        directory / "sources.list",
        *sorted((directory / "sources.list.d").glob("*.list")),
    ]
    for path in one_line:
        stanzas += _one_line_stanzas(_text_of(path)) if path.is_file() else []
    for path in sorted((directory / "sources.list.d").glob("*.sources")):
        stanzas += _deb822_stanzas(_text_of(path))
    texts = []
    for stanza in stanzas:
        suites = [
            s
            for s in stanza.get("suites", "").split()
            if s == codename or s.startswith(f"{codename}-")
        ]
        binary = "deb" in stanza.get("types", "").split()
        on = stanza.get("enabled", "yes").lower() not in ("no", "false", "0")
        if suites and binary and on and "main" in stanza.get("components", "").split():
            fields = stanza | {
                "types": "deb",
                "suites": " ".join(suites),
                "components": "main",
            }
            texts.append(
                "".join(f"{name.title()}: {value}\n" for name, value in fields.items())
            )
    return "\n".join(texts)


def _text_of(path: Path) -> str:
    """Return the text of a file whose comments may have any encoding."""
    return path.read_text(encoding="utf-8", errors="replace")


def _deb822_stanzas(text: str) -> list[dict[str, str]]:
    """Return the fields of each stanza by name, in small letters. Stanzas are written like the headers of a
    mail.
    """
    content = "".join(
        line for line in text.splitlines(keepends=True) if not line.startswith("#")
    )
    stanzas = (
        message_from_string(part.lstrip("\n")) for part in re.split(r"\n\s*\n", content)
    )
    return [
        {name.lower(): value.rstrip() for name, value in stanza.items()}
        for stanza in stanzas
    ]


def _one_line_stanzas(text: str) -> list[dict[str, str]]:
    stanzas = []
    for line in text.splitlines():
        words = line.split("#")[0].replace("[", " [ ").replace("]", " ] ").split()
        if not words or words[0] != "deb" or ("[" in words and "]" not in words):
            continue
        options: dict[str, str] = {}
        if words[1:2] == ["["]:
            close = words.index("]")
            pairs = (word.split("=", 1) for word in words[2:close] if "=" in word)
            names = {
                "arch": "architectures",
                "signed-by": "signed-by",
                "trusted": "trusted",
            }
            options = {
                names[key]: value.strip('"') for key, value in pairs if key in names
            }
            words = [words[0], *words[close + 1 :]]
        if len(words) >= 4:
            components = " ".join(words[3:])
            stanza = {
                "types": "deb",
                "uris": words[1],
                "suites": words[2],
                "components": components,
            }
            stanzas.append(stanza | options)
    return stanzas


def _make_worker(client: docker.APIClient) -> None:
    files = {name: path.read_bytes() for name, path in code_files().items()}
    recipe = DOCKERFILE.format(base=base_tag()).encode()
    _build(client, image_tag(), {"Dockerfile": recipe} | files, "none")


def _build(
    client: docker.APIClient, tag: str, files: dict[str, bytes], network: str | None
) -> None:
    """``docker build`` of these files; owned by root and readable by all, whatever the checkout's modes."""
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    context.seek(0)
    steps = client.build(
        fileobj=context,
        custom_context=True,
        tag=tag,
        rm=True,
        forcerm=True,
        labels=LABEL,
        network_mode=network,
        decode=True,
    )
    failed = next((step["error"] for step in steps if "error" in step), None)
    if failed:
        raise ImageError(f"Docker did not build {tag}: {failed.strip()}")
