"""``containers/run``: what it asks of Docker, and what it prints where Docker is not as it must be."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from ringlight.containers.image import EXCLUDED_PATHS, PACKAGES
from ringlight.testbed import programs

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "containers/run"
RECIPE = (ROOT / "containers/machine/Dockerfile").read_text()
#: A Docker that has every image and prints what it is to run.
WORKING = """
case $1 in
  info) echo '[name=seccomp,profile=default]' ;;
  run) shift; for word; do echo "$word"; done ;;
esac
"""


def started(
    folder: Path, *words: str, docker: str | None = WORKING, home: str = "."
) -> subprocess.CompletedProcess[str]:
    """The program in an empty folder, with this Docker; with none if it is None."""
    commands, place = folder / "commands", folder / "place"
    for made in (commands, place):
        made.mkdir(exist_ok=True)
    for name in "cat cksum cp dirname find id mkdir mktemp rm sed sort tail tar tee tr xargs".split():  # noqa: SIM905
        (commands / name).unlink(missing_ok=True)
        (commands / name).symlink_to(
            next(
                path
                for path in (Path("/usr/bin", name), Path("/bin", name))
                if path.exists()
            )
        )
    if docker is not None:
        (commands / "docker").write_text(f"#!/bin/sh\n{docker}")
        (commands / "docker").chmod(0o755)
    return subprocess.run(
        ["/bin/sh", PROGRAM, *words], cwd=place / home, env={"PATH": str(commands)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("docker", "line"),
    [
        (None, "Docker is not installed"),
        ("echo 'Cannot connect to the Docker daemon' >&2; exit 1", "does not answer: start it"),
        ("echo 'dial unix: connect: permission denied' >&2; exit 1", "you may not use Docker"),
        ("echo '[name=seccomp name=rootless]'", "a rootless Docker may not"),
        (
            'case $1 in image) exit 1;; pull) echo "no such host" >&2; exit 1;; esac',
            "cannot pull debian:bookworm-slim (no such host)",
        ),
        (
            'case $1 in image) [ "$3" = debian:bookworm-slim ];; build) echo broken; exit 1;; esac',
            "Docker could not make ringlight-machine:",
        ),
    ],
)  # fmt: skip
def test_what_lacks_is_one_line(tmp_path: Path, docker: str | None, line: str) -> None:
    done = started(tmp_path, docker=docker)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ringlight: ")
    assert line in last
    assert not list(tmp_path.glob("place/*"))


def test_a_folder_that_would_hide_the_containers_own_is_refused(tmp_path: Path) -> None:
    done = started(tmp_path, home="/usr")
    assert (done.returncode, "would hide" in done.stderr) == (1, True)


def test_the_command_runs_in_the_current_folder_and_the_demo_is_the_first(
    tmp_path: Path,
) -> None:
    def command(*words: str) -> list[str]:
        done = started(tmp_path, *words)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        here = str(tmp_path / "place")
        assert f"{here}:{here}" in lines
        assert lines[lines.index("--workdir") + 1] == here
        (image,) = [line for line in lines if line.startswith("ringlight-machine:")]
        return lines[lines.index(image) + 1 :]

    assert command() == ["ringlight", "demo"]
    assert command("run", "a b.yaml") == ["ringlight", "run", "a b.yaml"]
    assert command("--", "bash", "-c", "true") == ["bash", "-c", "true"]
    assert command("--base", "debian:trixie-slim", "doctor") == ["ringlight", "doctor"]


def test_each_flag_is_explained_on_the_page_and_none_is_for_everything(
    tmp_path: Path,
) -> None:
    lines = started(tmp_path).stdout.splitlines()
    assert "--privileged" not in lines
    page = (ROOT / "docs/docker.md").read_text()
    asked = [lines[at + 1] for at, line in enumerate(lines) if line == "--cap-add"]
    asked += [
        lines[at + 1] for at, line in enumerate(lines) if line == "--security-opt"
    ]
    asked += [
        "/dev/net/tun",
        "--userns host",
        "--cgroupns private",
        "--tmpfs /run:exec",
    ]
    assert len(asked) == len(set(asked)) == 14
    rows = re.findall(r"^\| `([^`]+)` \| .{20,} \|$", page, re.MULTILINE)
    assert [what for what in asked if not any(what in row for row in rows)] == []


def test_the_image_has_what_labs_need_and_the_base_of_the_worker_image() -> None:
    words = set(RECIPE.split())
    needed = {package for _, package in programs.OF_LABS + programs.OF_DOCKER}
    assert needed - words == set()
    assert f"--include={','.join(PACKAGES)}" in words
    for path in EXCLUDED_PATHS:
        assert f"--dpkgopt='path-exclude={path}'" in words


#: A Docker that has the base, and fails to build after it has written down what it was asked.
BUILDING = """
case $1 in
  info) echo '[]' ;;
  image) [ "$3" = debian:bookworm-slim ] ;;
  build) for word; do echo "$word"; done > words; exit 1 ;;
esac
"""


def test_the_packages_of_extensions_are_in_the_image(tmp_path: Path) -> None:
    started(tmp_path, docker=BUILDING)
    words = (tmp_path / "place/words").read_text().splitlines()
    (given,) = [word for word in words if word.startswith("PACKAGES=")]
    lists = sorted(ROOT.glob("extensions/*/packages.txt"))
    lines = [line for one in lists for line in one.read_text().splitlines()]
    needed = [line.split()[0] for line in lines]
    assert given.removeprefix("PACKAGES=").split() == needed
    (installed,) = re.findall(r"apt-get install .*?(?=&&)", RECIPE, re.DOTALL)
    assert installed.split()[-2:] == ["${PACKAGES}", "\\"]


#: A Docker with three images, each made of the one before, which goes only after those made of it.
FAMILY = """
test -e family || echo 'base middle top' > family
read -r images < family || images=
case "$1 $2" in
  'info --format') echo '[]' ;;
  'image ls') for image in $images; do echo "$image"; done ;;
  'image rm')
    case $images in
      *"$4") echo "${images%"$4"}" > family ;;
      *) echo "$4 has dependent child images" >&2; exit 1 ;;
    esac ;;
esac
"""


def test_images_are_removed_with_those_made_of_them(tmp_path: Path) -> None:
    done = started(tmp_path, "--remove", docker=FAMILY)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "place/family").read_text().strip() == ""


def test_an_image_that_stays_is_named(tmp_path: Path) -> None:
    stays = "case \"$1 $2\" in 'image ls') echo one;; 'image rm') echo 'is in use' >&2; exit 1;; esac"
    done = started(tmp_path, "--remove", docker=stays)
    assert done.returncode == 1
    assert done.stderr == "ringlight: an image cannot be removed: is in use\n"
