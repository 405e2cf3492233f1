"""Reads files in a worker's directory, which the worker owns: links in it are not followed."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import threading
from pathlib import Path
from typing import Any

#: How much deeper than an event the answer may be that it is told in, and the calls that write that.
_DEEP = 50
_DECODER = json.JSONDecoder(parse_constant=lambda _: None)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def parse_event(line: bytes) -> dict[str, Any] | None:
    """Parse one line of a worker's events. Return None if the line is not an event, because a worker is not
    trusted to write only events.

    NaN and infinity, such as the loss of a training that diverges, become None, because JSON has neither. One
    event that cannot be encoded again would block the events of all workers.
    """
    try:
        event = _DECODER.decode(line.decode())
        try:
            _deep_json(event)
        except UnicodeEncodeError:
            event = json.loads(_ENCODER.encode(event).encode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    return (
        event
        if isinstance(event, dict) and isinstance(event.get("event"), str)
        else None
    )


def _deep_json(value: object) -> bytes:
    """JSON, deep within other JSON. Raises ValueError and RecursionError."""
    for _ in range(_DEEP):
        value = [value]
    return _ENCODER.encode(value).encode()


def read_from(path: Path, offset: int, limit: int = 16 << 20) -> bytes:
    """Return up to ``limit`` bytes of a worker's file from ``offset`` on.

    The worker chooses what the name refers to. A link out of its directory or a pipe is not followed. Raises
    OSError.
    """
    descriptor = os.open(
        path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    )
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        file.seek(offset)
        return file.read(limit)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees all of it or none.

    The directory belongs to the worker, who may have put links there: a new name is made and moved.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644
    )
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    temporary.rename(path)


def make_anew(directory: Path, mode: int) -> None:
    """An empty directory; one that is there is kept under another name."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    if directory.exists():
        numbers = re.compile(re.escape(directory.name) + r"\.(\d+)")
        used = [
            int(m[1])
            for p in directory.parent.iterdir()
            if (m := numbers.fullmatch(p.name))
        ]
        directory.rename(
            directory.with_name(f"{directory.name}.{max(used, default=0) + 1}")
        )
    directory.mkdir(mode=mode)


def make_worker_directory(
    directory: Path, spec: dict[str, Any], uid: int, workload: bytes | None = None
) -> None:
    """A directory with ``spec.json``, and the workload if there is one, that user ``uid`` owns.

    One that is there is kept under another name.
    """
    make_anew(directory, 0o700)
    try:
        write_whole(directory / "spec.json", json.dumps(spec).encode())
        if workload is not None:
            write_whole(directory / "workload", workload)
        os.chown(directory, uid, uid)
    except OSError:
        shutil.rmtree(directory, ignore_errors=True)
        raise
