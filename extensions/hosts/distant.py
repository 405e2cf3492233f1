"""The prompt of a lab that is on hosts: a program of the lab's first host carries out what is typed here."""

from __future__ import annotations

import codecs
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from ringlight.experiments.cli.common import fail

if TYPE_CHECKING:
    from ringlight.extensions.hosts.cluster import Cluster, Host

Answer = TypeVar("Answer")

_PROMPT = "ringlight> "
#: Between two questions for what it has said, seconds.
_EVERY_S = 0.1


def converse(cluster: Cluster, host: str, lab: str, lines: Iterable[str] | None) -> int:
    """Carry out lines on a host, or prompt for them if ``lines`` is None. Return the exit code of the host's
    prompt.

    Raises LabError.
    """
    from ringlight.extensions.hosts.sessions import (
        begin_session,
        end_session,
        tell_session,
    )

    (there,) = (candidate for candidate in cluster.hosts if candidate.name == host)
    command = [
        sys.executable,
        "-m",
        "ringlight.experiments.cli.app",
        "shell",
        lab,
        "--file",
        "-",
    ]
    session = _asked(cluster, there, begin_session, command)
    heard = _Heard(cluster, there, session)
    try:
        if lines is not None:
            text = "".join(f"{line.rstrip()}\n" for line in lines)
            _asked(cluster, there, tell_session, session, text, True)
            for output in heard.more(None):
                typer.echo(output, nl=False)
        else:
            _ask(heard)
        return heard.code or 0
    finally:
        _asked(cluster, there, end_session, session)


def lab_among(cluster: Cluster, lab_id: str | None) -> tuple[str, str]:
    """Return the first host and the id of the lab with an id, or of the only one that stands on hosts.

    Raises UserError.
    """
    from ringlight.extensions.hosts.standing import standing_here

    there = cluster.ask(standing_here)
    labs = {
        str(facts["lab"]): name
        for name, labs_of_host in there.items()
        for facts in labs_of_host
    }
    if lab_id is None and len(labs) == 1:
        (lab_id,) = labs
    if lab_id not in labs:
        fail(
            f"lab {lab_id or ''} does not stand on these hosts; there is {', '.join(labs) or 'none'}"
        )
    return labs[lab_id], lab_id


def _ask(heard: _Heard) -> None:
    """Ask for commands until the prompt ends, or the input does."""
    # What is typed can be edited then, and is remembered.
    with suppress(ImportError):
        import readline  # noqa: F401

    from ringlight.extensions.hosts.sessions import tell_session

    while heard.code is None:
        try:
            line = input(_PROMPT)
        except EOFError:
            typer.echo()
            return
        mark = f"# {secrets.token_hex(8)}"
        _asked(
            heard.cluster,
            heard.host,
            tell_session,
            heard.session,
            f"{line}\n{mark}\n",
            False,
        )
        echo = f"{_PROMPT}{line.rstrip()}\n"
        for output in heard.more(f"{_PROMPT}{mark}\n"):
            typer.echo(output.removeprefix(echo), nl=False)
            echo = ""


class _Heard:
    """Output of the program on the host. ``code``: the program's exit code, None until it has ended."""

    def __init__(self, cluster: Cluster, host: Host, session: str) -> None:
        self.cluster, self.host, self.session = cluster, host, session
        self.code: int | None = None
        self._known = 0
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def more(self, until: str | None) -> Iterator[str]:
        """Yield new output in whole lines, until the text ``until`` arrives or the program ends.

        ``until`` itself is left out. With None only the program's end stops the iteration.
        """
        from ringlight.extensions.hosts.sessions import hear_session

        rest = ""
        while True:
            data, self.code = _asked(
                self.cluster, self.host, hear_session, self.session, self._known
            )
            self._known += len(data)
            rest += self._decode(data)
            if until is not None and until in rest:
                yield rest.partition(until)[0]
                return
            # The line that is awaited may be half there.
            whole, end, rest = rest.rpartition("\n")
            if whole or end:
                yield whole + end
            if self.code is not None:
                yield rest
                return
            if not data:
                time.sleep(_EVERY_S)


def _asked(
    cluster: Cluster, host: Host, function: Callable[..., Answer], *arguments: Any
) -> Answer:
    (reply,) = cluster.ask(function, *arguments, hosts=[host]).values()
    return reply
