"""Session with a switch over TL1 and TCP: log in, send commands, and match replies to them.

Every command has a ctag of its own, and what answers it is told by that. Reports may come at any time; they
are logged and passed over. A listing may come in pages, ended by ``>`` but the last, or each ended by ``;``,
as public clients of Calient switches saw it: so the pages of one listing are taken until the next command is
answered, and whoever knows how many rows the last listing has, says so.

A reading is repeated once on a new connection if the old one turns out to be gone. A write is never repeated,
save where the switch answers that nobody is logged in: that one it has not carried out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ringlight.controller.optical.connection import Connection, ask_again
from ringlight.controller.optical.deadline import Deadline
from ringlight.controller.optical.errors import (
    AuthFailed,
    DeadlineExceeded,
    Indeterminate,
    OpticalError,
    PermissionDenied,
    ProtocolError,
    Refused,
    Unreachable,
)
from ringlight.controller.optical.inventory import Credentials
from ringlight.extensions.tl1.tl1_grammar import (
    Command,
    MessageFramer,
    Reply,
    Report,
    Tl1Error,
    format_command,
    quoted,
)

log = logging.getLogger(__name__)

#: Longest wait for the answer to a question, seconds.
REPLY_S = 10.0
#: Longest that logging out may take where the switch does not even take bytes, seconds.
LOG_OUT_S = 0.05
#: Longest wait for another page that the switch may or may not send, seconds.
PAGE_S = 1.0
#: Codes of GR-831: nobody is logged in; this user may not do that. A switch's own codes are not known.
NOT_LOGGED_IN = ("PLNA",)
NOT_ALLOWED = ("PICC", "PIUC", "PIUI", "PIFC")


class Denied(Refused):
    """The switch denied a command, or carried out only a part of it. ``code``: first word of its answer."""

    def __init__(self, verb: str, reply: Reply) -> None:
        super().__init__(f"{verb}: {reply.outcome}: {reply.complaint[:200]}")
        self.code = reply.complaint.split()[0].upper()
        self.outcome = reply.outcome


class Tl1Client:
    """Client with one connection.

    Not for several threads. ``redact``: function that masks secrets in log texts.
    """

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        credentials: Credentials | None,
        redact: Callable[[str], str] = lambda text: text,
    ) -> None:
        self.name = name
        self._connection = Connection(host, port)
        self._credentials = credentials
        self._redact = redact
        self._framer = MessageFramer()
        self._ctag = 0

    def close(self) -> None:
        """Log out, as far as that goes without waiting, and hang up."""
        if self._connection.is_open and self._credentials is not None:
            try:
                bye = Command(
                    "CANC-USER",
                    quoted(self._credentials.username),
                    ("",),
                    self._next_ctag(),
                )
                self._send(bye, Deadline(LOG_OUT_S))
            except (OpticalError, Tl1Error) as error:
                log.debug("%s: hung up without logging out: %s", self.name, error)
        self._connection.close()

    def ask(
        self, commands: Sequence[Command], deadline: Deadline, rows_of_last: int = 0
    ) -> list[tuple[str, ...]]:
        """Return the rows of the answer to each of these questions.

        ``rows_of_last``: number of rows that the last answer should have, if known. Raises Unreachable,
        DeadlineExceeded, AuthFailed, PermissionDenied, ProtocolError (also for a denied question).
        """
        return ask_again(
            self._connection.is_open,
            lambda: self._ask(commands, deadline, rows_of_last),
        )

    def tell(self, command: Command, deadline: Deadline) -> None:
        """Have a command carried out.

        Raises Denied, PermissionDenied or AuthFailed if the switch rejected it, Unreachable or
        DeadlineExceeded if nothing was sent, Indeterminate if its outcome is unknown.
        """
        for again in (False, True):
            self._take_in()
            self._connect(deadline)
            try:
                self._answer(command, deadline)
                return
            except Denied as error:
                if (
                    error.code not in NOT_LOGGED_IN
                    or self._credentials is None
                    or again
                ):
                    raise
                self._connection.close()
            except (AuthFailed, PermissionDenied):
                raise
            except OpticalError as error:
                self._connection.close()
                raise Indeterminate(
                    f"no end of {command.verb} seen: {error}"
                ) from error

    # One exchange

    def _ask(
        self, commands: Sequence[Command], deadline: Deadline, rows_of_last: int
    ) -> list[tuple[str, ...]]:
        self._connect(deadline)
        try:
            pages: dict[str, list[str]] = {}
            for command in commands:
                ctag = self._answer(command, deadline.within(REPLY_S), pages)
            while len(pages[ctag]) < rows_of_last:
                try:
                    deadline.check()
                    self._collect(self._receive(deadline.within(PAGE_S)), pages)
                except DeadlineExceeded:
                    break
        except Denied as error:
            self._connection.close()
            if error.code in NOT_LOGGED_IN:
                # Logged out meanwhile; as good as a connection that is gone.
                raise Unreachable(str(error)) from None
            raise ProtocolError(f"a reading was denied: {error}") from None
        except OpticalError:
            # Later bytes on this connection would be read by nobody.
            self._connection.close()
            raise
        return [tuple(rows) for rows in pages.values()]

    def _answer(
        self,
        command: Command,
        limit: Deadline,
        pages: dict[str, list[str]] | None = None,
    ) -> str:
        """Send a command and wait for the end of its answer. Return its ctag.

        ``pages``: rows so far by ctag, to which new rows are added. Raises Denied, PermissionDenied, and the
        errors of `_receive`.
        """
        ctag = self._next_ctag()
        pages = {} if pages is None else pages
        pages[ctag] = []
        sent = Command(command.verb, command.aid, command.blocks, ctag)
        self._send(sent, limit)
        while True:
            for reply in self._collect(self._receive(limit), pages):
                if reply.ctag != ctag:
                    continue
                if reply.outcome != "COMPLD":
                    if reply.complaint.split()[0].upper() in NOT_ALLOWED:
                        raise PermissionDenied(
                            f"{command.verb}: {reply.complaint[:200]}"
                        )
                    raise Denied(command.verb, reply)
                if not reply.more:
                    return ctag

    def _collect(
        self, messages: Sequence[Reply | Report], pages: dict[str, list[str]]
    ) -> list[Reply]:
        """Return the replies among the messages, after adding their rows to their pages."""
        replies = []
        for message in messages:
            if isinstance(message, Report):
                summary = " ".join((message.verb, *message.rows[:4]))
                log.info(
                    "%s: report %s: %s",
                    self.name,
                    message.severity,
                    self._redact(summary[:200]),
                )
                continue
            if message.ctag in pages:
                if message.outcome == "COMPLD":
                    pages[message.ctag].extend(message.rows)
            else:
                log.info(
                    "%s: a reply to nothing asked, ctag %s",
                    self.name,
                    self._redact(message.ctag[:20]),
                )
            replies.append(message)
        return replies

    def _next_ctag(self) -> str:
        self._ctag = self._ctag % 999_999 + 1
        return str(self._ctag)

    # The connection

    def _connect(self, deadline: Deadline) -> None:
        if self._connection.open(deadline):
            self._framer = MessageFramer()
            if self._credentials is not None:
                self._log_in(self._credentials, deadline)

    def _log_in(self, credentials: Credentials, deadline: Deadline) -> None:
        try:
            login = Command(
                "ACT-USER",
                quoted(credentials.username),
                ("", quoted(credentials.password)),
            )
            self._answer(login, deadline)
        except (Denied, PermissionDenied) as error:
            # Public clients take this for a login; the switch knows the connection, not who made it.
            if "already logged in" in str(error).lower():
                return
            self._connection.close()
            raise AuthFailed(
                f"the switch denied the login of {credentials.username}: {error}"
            ) from None
        except Tl1Error as error:
            self._connection.close()
            raise AuthFailed(
                f"the login of {credentials.username} cannot be said in TL1: {error}"
            ) from None
        except OpticalError:
            self._connection.close()
            raise

    def _take_in(self) -> None:
        """Process the reports that have arrived since; close the connection if the switch has closed it."""
        while self._connection.is_open and not self._connection.is_quiet():
            try:
                self._collect(self._receive(Deadline(LOG_OUT_S)), {})
            except OpticalError:
                self._connection.close()

    def _send(self, command: Command, limit: Deadline) -> None:
        shown = (
            "ACT-USER"
            if command.verb == "ACT-USER"
            else f"{command.verb} {command.aid[:100]}"
        )
        log.debug("%s: %s", self.name, self._redact(shown))
        self._connection.send(format_command(command), limit, command.verb)

    def _receive(self, limit: Deadline) -> list[Reply | Report]:
        """Return the next replies and reports. Raises DeadlineExceeded, Unreachable, ProtocolError."""
        data = self._connection.receive(limit, "the last command")
        if not data:
            raise Unreachable("the switch closed the connection")
        try:
            return self._framer.feed(data)
        except Tl1Error as error:
            raise ProtocolError(str(error), error.raw) from None
