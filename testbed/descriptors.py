"""Too few file descriptors: what looks as if a service did not answer, and what helps."""

from __future__ import annotations

import errno
import resource

_LACKING = (errno.EMFILE, errno.ENFILE)
#: What a process of a testbed asks for, and so those that it starts.
_WANTED = 16384
#: How deep an error may lie in others.
_DEPTH = 12


def too_few(error: BaseException | None, depth: int = _DEPTH) -> str | None:
    """Return one line that names the limit and the remedy if no descriptor was left; else None.

    The cause may lie deep in ``error``: in its causes, contexts, reasons and arguments.
    """
    if error is None or not depth:
        return None
    if isinstance(error, OSError) and error.errno in _LACKING:
        return _line(error.errno)
    inside = (
        error.__cause__,
        error.__context__,
        getattr(error, "reason", None),
        *error.args,
    )
    lines = (
        too_few(cause, depth - 1)
        for cause in inside
        if isinstance(cause, BaseException)
    )
    return next((line for line in lines if line is not None), None)


def enlarge() -> None:
    """Let this process have as many as it wants, or as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _line(number: int | None) -> str:
    if number == errno.ENFILE:
        return "this machine has too few file descriptors; raise them with: sysctl fs.file-max=1000000"
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"too few file descriptors: a process may have {soft} (ulimit -n) and has them all; raise the limit "
        "with: ulimit -n 65536"
    )
