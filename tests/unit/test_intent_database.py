"""What should be lit, on disk: kept whole, by one process, and refused in one line when it cannot be used."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringlight.controller.circuits import intent
from ringlight.controller.circuits.drift import Policy
from ringlight.controller.circuits.intent import IntentDatabase, Pending
from ringlight.controller.errors import StartError, UnavailableError
from ringlight.fabric.crossconnect import CrossConnect

A = frozenset({CrossConnect(1, 11), CrossConnect(2, 12, None, "two")})
B = frozenset({CrossConnect(1, 12), CrossConnect(2, 11, 3)})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "controller" / "circuits.sqlite"


@pytest.fixture
def database(path: Path) -> Iterator[IntentDatabase]:
    database = IntentDatabase(path)
    yield database
    database.close()


def anew(database: IntentDatabase, path: Path) -> IntentDatabase:
    database.close()
    return IntentDatabase(path)


def names(group: frozenset[CrossConnect]) -> set[str | None]:
    return {xc.name for xc in group}


def test_what_is_saved_is_there_for_the_next_process(
    database: IntentDatabase, path: Path
) -> None:
    assert database.intended() is None
    database.save({"a": A, "b": frozenset()})
    database.save({"a": A | {CrossConnect(2, 12, None, "zwei")}})
    database.set_policy(None, Policy.ALARM)
    database.set_policy("b", Policy.ADOPT)
    database.note("ann", "change", "a", add=["1->11"])
    database = anew(database, path)
    assert database.intended() == {"a": A, "b": frozenset()}
    assert names((database.intended() or {})["a"]) == {None, "two"}
    assert (database.policy("a"), database.policy("b")) == (Policy.ALARM, Policy.ADOPT)
    assert database.own_policies() == {"b": Policy.ADOPT}
    (entry,) = database.audit()
    assert (
        entry
        | {
            "who": "ann",
            "action": "change",
            "switch": "a",
            "detail": {"add": ["1->11"]},
        }
        == entry
    )
    assert entry["at"].endswith("Z")
    database.set_policy("b", None)
    database = anew(database, path)
    assert database.policy("b") is Policy.ALARM
    database.close()


def test_a_change_is_known_until_it_ends(database: IntentDatabase, path: Path) -> None:
    database.save({"a": A, "b": A})
    database.begin("ann", {"a": B})
    database = anew(database, path)
    assert database.intended() == {"a": B, "b": A}
    assert database.pending() == Pending("ann", {"a": A})
    left = CrossConnect(2, 11, 3)
    database.take_back({"a": frozenset({left, CrossConnect(1, 11)})})
    database = anew(database, path)
    assert database.pending() is None
    assert database.intended() == {"a": A, "b": A}
    assert database.unwanted("a") == {left}, "what is wanted is not to be removed"
    database.begin("bob", {"a": B})
    assert database.unwanted("a") == frozenset()
    database.end()
    database = anew(database, path)
    assert (database.pending(), database.intended()) == (None, {"a": B, "b": A})
    database.close()


def test_a_write_that_fails_changes_nothing(
    database: IntentDatabase, path: Path
) -> None:
    database.save({"a": A})

    def interrupted() -> None:
        with database.writing():
            database.begin("ann", {"a": B})
            database.set_policy(None, Policy.ADOPT)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        interrupted()
    (pages,) = database._db.execute("PRAGMA page_count").fetchone()
    database._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(
        UnavailableError, match=f"{path}: cannot be written: database or disk is full"
    ):
        database.begin(
            "ann",
            {
                "a": frozenset(
                    CrossConnect(i, i + 1, None, "x" * 99) for i in range(999)
                )
            },
        )
    for one in (database, anew(database, path)):
        assert (one.intended(), one.pending(), one.policy()) == (
            {"a": A},
            None,
            Policy.MEND,
        )
    one.save({"a": B})
    one.close()


def test_the_audit_log_is_bounded_and_read_in_pages(
    database: IntentDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intent, "AUDIT_ENTRIES", 50)
    for number in range(120):
        database.note("ann", "change", "ab"[number % 2], number=number)
    assert [entry["detail"]["number"] for entry in database.audit(limit=1000)] == list(
        range(119, 69, -1)
    )
    page = database.audit(limit=3)
    assert [
        entry["detail"]["number"]
        for entry in database.audit(before=page[-1]["id"], limit=2)
    ] == [
        116,
        115,
    ]
    assert {entry["switch"] for entry in database.audit("a")} == {"a"}


def test_one_controller_at_a_time_has_it_and_a_killed_one_no_longer(
    database: IntentDatabase, path: Path
) -> None:
    with pytest.raises(StartError, match=f"{path}: another controller has it open"):
        IntentDatabase(path)
    database.close()
    script = (
        "import os, sys, pathlib; from ringlight.controller.circuits.intent import IntentDatabase as D;"
        "from ringlight.fabric.crossconnect import CrossConnect as X; d = D(pathlib.Path(sys.argv[1]));"
        "d.begin('ann', {'a': {X(1, 11)}}); print('begun', flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("begun\n", -9)
    after = IntentDatabase(path)
    assert after.pending() == Pending("ann", {"a": frozenset()})
    assert after.intended() == {"a": {CrossConnect(1, 11)}}
    after.close()


def test_another_schema_and_what_is_no_database_are_named(
    database: IntentDatabase, path: Path
) -> None:
    database.close()
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 7")
    other.close()
    with pytest.raises(
        StartError, match=f"{path}: schema 7; this controller knows schema 1"
    ):
        IntentDatabase(path)
    path.write_text("cross_connects: []\n" * 100)
    with pytest.raises(StartError, match=f"{path}: damaged .file is not a database."):
        IntentDatabase(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(StartError, match=str(path)):
        IntentDatabase(path)


def refusal(path: Path) -> str:
    """Why the file is not taken; empty when it is, and everything in it can be read."""
    try:
        database = IntentDatabase(path)
    except StartError as error:
        return str(error)
    database.intended()
    database.audit(limit=1000)
    database.close()
    return ""


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_file_is_refused_in_one_line_or_can_be_read(
    path: Path, seed: int
) -> None:
    database = IntentDatabase(path)
    with database.writing():
        database.save(dict.fromkeys(("a", "b"), A | B))
        for number in range(200):
            database.note("ann", "change", "a", number=number)
    database.close()
    whole = path.read_bytes()
    rng = random.Random(seed)
    path.write_bytes(whole[: rng.randrange(100, len(whole))])
    cut = refusal(path)
    assert cut.startswith(f"{path}: damaged")
    assert "\n" not in cut
    content = bytearray(whole)
    for _ in range(64):
        content[rng.randrange(len(content))] = rng.randrange(256)
    path.write_bytes(content)
    said = refusal(path)
    assert said == "" or said.startswith(f"{path}: ")
    assert "\n" not in said
