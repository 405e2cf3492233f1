"""The base image comes from the host's own package sources; what mmdebstrap says when it makes one."""

from __future__ import annotations

import re
import stat
import threading
from contextlib import nullcontext
from pathlib import Path
from socketserver import BaseRequestHandler, UnixStreamServer

import pytest

from ringlight.containers import image_build
from ringlight.containers.image import ImageError, image_present
from ringlight.containers.image_build import build_from_packages, host_sources


def test_host_sources_are_its_own_suites_only(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(
        "# deb http://old.test/debian bookworm main\n"
        'deb [arch=amd64 signed-by="/k.gpg"] http://a.test/debian bookworm main contrib\n'
        "deb-src http://a.test/debian bookworm main\n"
        "deb http://vendor.test/linux bookworm stable\n"
        "deb http://a.test/other noble main\n"
    )
    (tmp_path / "sources.list.d/more.sources").write_text(
        "# a comment\nTypes: deb deb-src\nURIs: http://b.test/debian\nSuites: bookworm-security trixie\n"
        "Components: main\nSigned-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n\n"
        "Types: deb\nURIs: http://c.test\nSuites: bookworm\nComponents: main\nEnabled: no\n"
    )
    assert host_sources(tmp_path, "bookworm") == (
        "Types: deb\nUris: http://a.test/debian\nSuites: bookworm\nComponents: main\n"
        "Architectures: amd64\nSigned-By: /k.gpg\n"
        "\n"
        "Types: deb\nUris: http://b.test/debian\nSuites: bookworm-security\nComponents: main\n"
        "Signed-By: \n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n"
    )
    assert host_sources(tmp_path, "jammy") == ""


def test_lines_that_apt_itself_would_refuse_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_bytes(
        b"# caf\xe9\ndeb\ndeb [arch=amd64 http://a.test bookworm main\ndeb [trusted=yes]\n"
        b"deb http://b.test bookworm main\n"
    )
    (tmp_path / "sources.list.d/more.sources").write_bytes(
        b"# caf\xe9\n http://c.test\n\n more\nTypes: deb\n"
    )
    found = host_sources(tmp_path, "bookworm")
    assert (
        found == "Types: deb\nUris: http://b.test\nSuites: bookworm\nComponents: main\n"
    )


class Daemon(BaseRequestHandler):
    """Answers as Docker of images: one is there, one is not, another is no name."""

    def handle(self) -> None:
        name = self.request.recv(1 << 16).split()[1].decode().split("/")[2]
        status = {
            "there": "200 OK",
            "none": "404 Not Found",
            "No": "400 Bad Request",
        }.get(name, "500 Oops")
        self.request.sendall(f"HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n".encode())


def test_a_name_that_is_none_is_an_image_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    with UnixStreamServer(f"{tmp_path}/docker.sock", Daemon) as daemon:
        threading.Thread(target=daemon.serve_forever, daemon=True).start()
        assert [image_present(name) for name in ("there", "none", "No")] == [
            True,
            False,
            False,
        ]
        with pytest.raises(ImageError, match="Docker answered 500 about image other"):
            image_present("other")
        daemon.shutdown()


@pytest.mark.parametrize(
    ("name", "package", "said"),
    [
        ("My Image", "openmpi-bin", "'My Image' is no name of an image"),
        ("-x", "openmpi-bin", "'-x' is no name of an image"),
        (
            "own",
            "--variant=custom",
            "'--variant=custom' is no name of a Debian package",
        ),
        ("own", "a,b", "'a,b' is no name of a Debian package"),
    ],
)
def test_an_image_of_packages_has_names_that_are_names(
    name: str, package: str, said: str
) -> None:
    with pytest.raises(ImageError, match=re.escape(said)):
        build_from_packages(name, [package], lambda _: None)


def test_a_package_that_does_not_exist_is_named_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No second attempt, which takes minutes, and not apt's command line for an error."""
    program = tmp_path / "mmdebstrap"
    program.write_text(
        f"#!/bin/sh\necho again >> {tmp_path}/calls\necho 'E: setup failed: E: apt-get -o x failed' >&2\n"
        "echo 'E: Unable to locate package nosuch' >&2\nexit 1\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(image_build, "host_sources", lambda *_: "Types: deb\n")
    monkeypatch.setattr(image_build, "suite", lambda: "bookworm")
    monkeypatch.setattr(image_build, "docker_client", lambda _: nullcontext(None))
    with pytest.raises(
        ImageError,
        match=r"^there is no Debian package nosuch in the sources of bookworm$",
    ):
        build_from_packages("mine", ["nosuch"], lambda _: None)
    assert (tmp_path / "calls").read_text() == "again\n"


SAID = """\
I: running apt-get update...
I: downloading packages with apt...
I: installing remaining packages inside the chroot...
E: Unable to locate package no-such-package
E: setup failed: E: apt-get -o Dir::Bin::dpkg=env --yes install no-such-package failed
I: main() received signal PIPE: waiting for setup...
E: mmdebstrap failed to run
"""


@pytest.mark.parametrize(
    ("script", "limit_s", "error"),
    [
        (
            f"cat >&2 <<'END'\n{SAID}END\nexit 25",
            60.0,
            "there is no Debian package no-such-package in the sources of ",
        ),
        (
            "echo I: installing things... >&2; exec sleep 60",
            0.3,
            "mmdebstrap took longer than 0.3 s",
        ),
    ],
)
def test_mmdebstrap_is_told_of_by_its_stages_and_ended_when_late(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    limit_s: float,
    error: str,
) -> None:
    """The script says what mmdebstrap 1.3.5 said of a package that there is not."""
    program = tmp_path / "mmdebstrap"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(image_build, "BUILD_TIMEOUT_S", limit_s)
    said: list[str] = []
    with pytest.raises(ImageError, match=f"^{error}"):
        image_build._mmdebstrap(tmp_path / "root.tar", ["python3"], [], said.append)
    assert said
    assert all(line.startswith(("  downloading", "  installing")) for line in said)
