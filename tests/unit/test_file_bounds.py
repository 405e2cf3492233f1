"""Files that a user names: what is no file, never ends or is too large is told in one line, and not read."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ringlight.controller.errors import StartError
from ringlight.controller.web.access import read_tokens
from ringlight.experiments.language.expand import load
from ringlight.experiments.language.text import (
    SCENARIO_BYTES,
    VALUES_LIMIT,
    ScenarioError,
    parse_yaml,
    read_text,
)
from ringlight.testbed.emulation.optical.alone import read_users
from ringlight.workloads.formats.reading import read_any

ROOT = Path(__file__).resolve().parents[2]
ZERO = Path("/dev/zero")


def test_check_of_a_device_ends_at_once_in_one_line() -> None:
    code = "import sys; sys.argv[0] = 'ringlight'; from ringlight.experiments.cli.app import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "check", str(ZERO)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30)),
    )
    assert done.returncode == 2, done
    assert done.stderr.splitlines() == [
        "ringlight: /dev/zero: cannot be read: it is no regular file"
    ]


def test_a_scenario_is_a_file_or_a_pipe_of_a_stated_size(tmp_path: Path) -> None:
    large = tmp_path / "large.yaml"
    with large.open("wb") as file:
        file.truncate(SCENARIO_BYTES + 1)
    with pytest.raises(
        ScenarioError,
        match=rf"large\.yaml: cannot be read: it has {SCENARIO_BYTES + 1} bytes",
    ):
        load(large)
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    threading.Thread(
        target=lambda: fifo.write_bytes(b"name: x\r\n"), daemon=True
    ).start()
    assert read_text(fifo) == "name: x\n"
    threading.Thread(target=_endless, args=(fifo,), daemon=True).start()
    with pytest.raises(ScenarioError, match="cannot be read: it does not end"):
        load(fifo)


def _endless(fifo: Path) -> None:
    with fifo.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"#" * (1 << 16))
        except BrokenPipeError:
            return


def test_what_aliases_make_of_a_file_is_bounded() -> None:
    lines = ["a0: &a0 [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(
        ScenarioError,
        match=rf"^bomb: its aliases make \d+ values of it, {VALUES_LIMIT} are",
    ):
        parse_yaml("\n".join(lines), "bomb")
    assert parse_yaml("\n".join(lines[:3]), "small")["a2"][0][0] == [0] * 10
    for text in ("a: &a [*a]", "a: &a {b: *a}", "x: &x\n  <<: *x\n"):
        with pytest.raises(ScenarioError, match=r"^own: "):
            parse_yaml(text, "own")
    merged = ["b0: &b0 {k: 1}"]
    merged += [
        f"b{n}: &b{n}\n  <<: [{', '.join([f'*b{n - 1}'] * 10)}]" for n in range(1, 9)
    ]
    # Merged again and again, a key is still one key.
    assert parse_yaml("\n".join(merged), "merge")["b8"] == {"k": 1}


def test_workloads_and_lists_of_names_are_bounded(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^/dev/zero: it is no regular file$"):
        read_any([ZERO])
    trace = tmp_path / "trace.0.et"
    trace.symlink_to(ZERO)
    with pytest.raises(ValueError, match=r"trace\.0\.et: it is no regular file$"):
        read_any([trace])
    with pytest.raises(StartError, match="at most 65536 bytes"):
        read_tokens(ZERO)
    with pytest.raises(ValueError, match="has more than 65536 bytes"):
        read_users(ZERO)
