"""Store on disk what should be lit, and the log of who changed what and when.

One SQLite database, which one controller at a time has open. Before a change writes to any switch, the new
and the old intended cross-connects are committed together. Once the change is done, or undone, the old ones
are deleted. A start after a crash therefore knows that a change was in progress, who requested it, and its
state before and after.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import sqlite3
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from ringlight.controller.circuits.drift import Policy
from ringlight.controller.errors import StartError, UnavailableError
from ringlight.fabric.crossconnect import CrossConnect
from ringlight.fabric.topology import CrossConnects

log = logging.getLogger(__name__)

#: Version of the tables below.
SCHEMA = 1
#: Entries of the audit log that are kept.
AUDIT_ENTRIES = 10_000
#: Folder whose contents a crash of the machine deletes.
_VOLATILE = Path("/run")
#: ``wavelength`` is -1 for every colour. ``wanted`` 0: made by us, to be removed. ``before`` is JSON.
_TABLES = """
CREATE TABLE switch (name TEXT PRIMARY KEY);
CREATE TABLE cross_connect (
    switch TEXT NOT NULL REFERENCES switch, ingress INTEGER NOT NULL, egress INTEGER NOT NULL,
    wavelength INTEGER NOT NULL, name TEXT, wanted INTEGER NOT NULL,
    PRIMARY KEY (switch, ingress, egress, wavelength)) WITHOUT ROWID;
CREATE TABLE pending (id INTEGER PRIMARY KEY CHECK (id = 1), who TEXT NOT NULL, before TEXT NOT NULL);
CREATE TABLE policy (switch TEXT PRIMARY KEY, policy TEXT NOT NULL);
CREATE TABLE audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, who TEXT NOT NULL, action TEXT NOT NULL,
    switch TEXT, outcome TEXT NOT NULL, detail TEXT NOT NULL);
"""

#: Intended cross-connects of every switch of a group.
_Sets = dict[str, frozenset[CrossConnect]]


@dataclass(frozen=True)
class Pending:
    """A change that was begun and not ended: whose, and what its switches were to carry before."""

    who: str
    before: CrossConnects


class AuditEntry(TypedDict):
    """Entry of the audit log.

    ``at``: time, UTC. ``who``: the name of a REST token, `job X`, `reconciler`, or `outside` for a change
    from outside the controller.
    """

    id: int
    at: str
    who: str
    action: str
    switch: str | None
    outcome: str
    detail: dict[str, Any]


class IntentDatabase:
    """Database of the intended cross-connects by switch, the policies, and the audit log. Safe from any
    thread.

    Reads come from memory, except reads of the log. Raises StartError naming the file if the file is not such
    a database, is damaged, has another version, or is open in another controller. Writes raise
    UnavailableError if the disk does not take them; then nothing has changed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._depth = 0
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._db = sqlite3.connect(
                path, timeout=0.5, isolation_level=None, check_same_thread=False
            )
            try:
                self._open()
                self._read()
            except BaseException:
                self._db.close()
                raise
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                raise StartError(f"{path}: another controller has it open") from error
            raise StartError(f"{path}: {error}") from error
        except (sqlite3.DatabaseError, ValueError, KeyError, TypeError) as error:
            raise StartError(
                f"{path}: damaged ({error}); without it the controller starts from the fabric's circuits"
            ) from error
        except OSError as error:
            raise StartError(f"{path}: {error.strerror}") from error

    def _open(self) -> None:
        db = self._db
        # Held for as long as the process lives, so that there is one writer.
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA journal_mode = WAL")
        # Against a crash of the machine alone; a disk takes milliseconds for it.
        self._syncs = not self._path.resolve().is_relative_to(_VOLATILE)
        db.execute(f"PRAGMA synchronous = {'FULL' if self._syncs else 'OFF'}")
        db.execute("BEGIN IMMEDIATE")
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version == 0 and db.execute(
            "SELECT count(*) FROM sqlite_master"
        ).fetchone() == (0,):
            for statement in _TABLES.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {SCHEMA}")
        elif version != SCHEMA:
            raise StartError(
                f"{self._path}: schema {version}; this controller knows schema {SCHEMA}"
            )
        else:
            (check_result,) = db.execute("PRAGMA quick_check(1)").fetchone()
            if check_result != "ok":
                raise sqlite3.DatabaseError(" ".join(str(check_result).split()))
        db.execute("COMMIT")

    def _read(self) -> None:
        sets: dict[int, dict[str, set[CrossConnect]]] = {
            is_intended: {
                name: set() for (name,) in self._db.execute("SELECT name FROM switch")
            }
            for is_intended in (0, 1)
        }
        rows = self._db.execute(
            "SELECT switch, ingress, egress, wavelength, name, wanted FROM cross_connect"
        )
        for switch, ingress, egress, wavelength, name, is_intended in rows:
            colour = None if wavelength < 0 else wavelength
            sets[is_intended][switch].add(CrossConnect(ingress, egress, colour, name))
        self._intended: _Sets = {
            name: frozenset(group) for name, group in sets[1].items()
        }
        self._withdrawn: _Sets = {
            name: frozenset(group) for name, group in sets[0].items() if group
        }
        self._policies = {
            switch: Policy(policy)
            for switch, policy in self._db.execute("SELECT switch, policy FROM policy")
        }
        row = self._db.execute("SELECT who, before FROM pending").fetchone()
        self._pending = None if row is None else Pending(row[0], _from_json(row[1]))

    def close(self) -> None:
        """May be called again."""
        with self._lock:
            self._db.close()

    # Intent

    def intended(self) -> _Sets | None:
        """Return the wanted cross-connects by switch; None if nothing was ever saved."""
        with self._lock:
            return dict(self._intended) or None

    def unwanted(self, switch: str) -> frozenset[CrossConnect]:
        """Return the cross-connects that the controller made on a switch and must remove when possible."""
        with self._lock:
            return self._withdrawn.get(switch, frozenset())

    def pending(self) -> Pending | None:
        with self._lock:
            return self._pending

    def save(self, intended: CrossConnects) -> None:
        """Save what these switches should carry, which is no longer unwanted; others are unchanged."""
        with self.writing() as db:
            for switch, group in intended.items():
                group = frozenset(group)
                old = {xc: xc.name for xc in self._intended.get(switch, ())}
                if switch not in self._intended:
                    db.execute("INSERT INTO switch VALUES (?)", (switch,))
                same = {xc for xc in group if xc in old and old[xc] == xc.name}
                self._delete(switch, old.keys() - same, is_intended=1)
                db.executemany(
                    "INSERT OR REPLACE INTO cross_connect VALUES (?, ?, ?, ?, ?, 1)",
                    [(*_key(switch, xc), xc.name) for xc in group - same],
                )
                self._intended = {**self._intended, switch: group}
                self._put_unwanted(
                    switch, self._withdrawn.get(switch, frozenset()) - group
                )

    def begin(self, who: str, intended: CrossConnects) -> None:
        """Save the cross-connects that a change intends, and the present ones, before the change begins."""
        before = {name: self._intended.get(name, frozenset()) for name in intended}
        with self.writing() as db:
            self.save(intended)
            db.execute(
                "INSERT OR REPLACE INTO pending VALUES (1, ?, ?)",
                (who, _to_json(before)),
            )
            self._pending = Pending(who, before)

    def end(self) -> None:
        """Record that the change in progress is done."""
        with self.writing() as db:
            db.execute("DELETE FROM pending")
            self._pending = None

    def take_back(self, left: CrossConnects) -> None:
        """Restore the intent from before the change in progress.

        ``left``: cross-connects that the change made and could not remove again.
        """
        with self.writing():
            if self._pending is not None:
                self.save(self._pending.before)
            self.end()
            for switch, group in left.items():
                extra = frozenset(group) - self._intended.get(switch, frozenset())
                self._db.executemany(
                    "INSERT OR REPLACE INTO cross_connect VALUES (?, ?, ?, ?, ?, 0)",
                    [(*_key(switch, xc), xc.name) for xc in extra],
                )
                self._withdrawn = {
                    **self._withdrawn,
                    switch: self._withdrawn.get(switch, frozenset()) | extra,
                }

    def gone(self, switch: str, group: Collection[CrossConnect]) -> None:
        """Forget unwanted cross-connects that the switch no longer has."""
        with self.writing():
            self._put_unwanted(
                switch, self._withdrawn.get(switch, frozenset()) - frozenset(group)
            )

    def _put_unwanted(self, switch: str, left: frozenset[CrossConnect]) -> None:
        """Keeps of the unwanted only these."""
        old = self._withdrawn.get(switch, frozenset())
        self._delete(switch, old - left, is_intended=0)
        self._withdrawn = {**self._withdrawn, switch: left}

    def _delete(
        self, switch: str, group: Collection[CrossConnect], is_intended: int
    ) -> None:
        self._db.executemany(
            "DELETE FROM cross_connect"
            " WHERE switch = ? AND ingress = ? AND egress = ? AND wavelength = ? AND wanted = ?",
            [(*_key(switch, xc), is_intended) for xc in group],
        )

    # Policies

    def policy(self, switch: str | None = None) -> Policy:
        """Return the policy of a switch, or (None) the policy of all switches without their own."""
        with self._lock:
            general = self._policies.get("", Policy.MEND)
            return general if switch is None else self._policies.get(switch, general)

    def own_policies(self) -> dict[str, Policy]:
        """Return the policies of the switches that have their own, by switch."""
        with self._lock:
            return {name: policy for name, policy in self._policies.items() if name}

    def set_policy(self, switch: str | None, policy: Policy | None) -> None:
        """Set the policy of one switch, or (``switch`` None) the default; ``policy`` None removes it."""
        name = switch or ""
        with self.writing() as db:
            db.execute("DELETE FROM policy WHERE switch = ?", (name,))
            kept = {key: value for key, value in self._policies.items() if key != name}
            if policy is not None:
                db.execute("INSERT INTO policy VALUES (?, ?)", (name, policy.value))
                kept[name] = policy
            self._policies = kept

    # The audit log

    def note(
        self,
        who: str,
        action: str,
        switch: str | None = None,
        outcome: str = "done",
        **detail: Any,
    ) -> None:
        """Add an entry to the audit log, with the time in UTC, and remove the oldest entries.

        The newest entries may be lost if the machine crashes.
        """
        time_text = (
            datetime.datetime.now(datetime.UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z")
        )
        with self.writing(lasting=False) as db:
            row = db.execute(
                "INSERT INTO audit (at, who, action, switch, outcome, detail) VALUES (?, ?, ?, ?, ?, ?)",
                (time_text, who, action, switch, outcome, json.dumps(detail)),
            )
            db.execute(
                "DELETE FROM audit WHERE id <= ?",
                ((row.lastrowid or 0) - AUDIT_ENTRIES,),
            )

    def try_note(self, *words: Any, **detail: Any) -> None:
        """Like :meth:`note`, for what is done already: a failure of the disk is only logged."""
        try:
            self.note(*words, **detail)
        except UnavailableError as error:
            log.error("not in the audit log: %s: %s", error, words)

    def audit(
        self, switch: str | None = None, before: int | None = None, limit: int = 100
    ) -> list[AuditEntry]:
        """Return at most ``limit`` entries of the audit log, newest first.

        ``switch``: only entries about this switch. ``before``: only entries with a smaller id.
        """
        where, values = ["1"], list[Any]()
        if switch is not None:
            where.append("switch = ?")
            values.append(switch)
        if before is not None:
            where.append("id < ?")
            values.append(before)
        with self._lock:
            rows = self._db.execute(
                "SELECT id, at, who, action, switch, outcome, detail FROM audit"
                f" WHERE {' AND '.join(where)} ORDER BY id DESC LIMIT ?",
                (*values, limit),
            ).fetchall()
        return [
            {
                "id": number,
                "at": time_text,
                "who": who,
                "action": action,
                "switch": where_,
                "outcome": outcome,
                "detail": json.loads(detail),
            }
            for number, time_text, who, action, where_, outcome, detail in rows
        ]

    # Writing

    @contextlib.contextmanager
    def writing(self, *, lasting: bool = True) -> Iterator[sqlite3.Connection]:
        """Yield the database, and commit everything that is written in the block at once.

        ``lasting``: the commit waits for the disk, so that it also survives a crash of the machine. Raises
        UnavailableError if the database cannot be written; then nothing was.
        """
        with self._lock:
            if self._depth:
                self._depth += 1
                try:
                    yield self._db
                finally:
                    self._depth -= 1
                return
            kept = (self._intended, self._withdrawn, self._policies, self._pending)
            self._depth = 1
            try:
                if self._syncs:
                    self._db.execute(
                        f"PRAGMA synchronous = {'FULL' if lasting else 'NORMAL'}"
                    )
                self._db.execute("BEGIN IMMEDIATE")
                yield self._db
                self._db.execute("COMMIT")
            except BaseException as error:
                self._intended, self._withdrawn, self._policies, self._pending = kept
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise UnavailableError(
                        f"{self._path}: cannot be written: {error}"
                    ) from error
                raise
            finally:
                self._depth = 0


def _key(switch: str, xc: CrossConnect) -> tuple[str, int, int, int]:
    return switch, xc.ingress, xc.egress, -1 if xc.wavelength is None else xc.wavelength


def _to_json(sets: CrossConnects) -> str:
    return json.dumps(
        {
            switch: [
                [xc.ingress, xc.egress, xc.wavelength, xc.name] for xc in sorted(group)
            ]
            for switch, group in sets.items()
        }
    )


def _from_json(text: str) -> _Sets:
    return {
        switch: frozenset(CrossConnect(*entry) for entry in group)
        for switch, group in json.loads(text).items()
    }


@contextlib.contextmanager
def on_disk() -> Iterator[None]:
    """Yield around a database write after light has changed.

    A failing disk is logged and is not an error.
    """
    try:
        yield
    except UnavailableError as error:
        log.error("%s", error)
