"""Texts that UTF-8 cannot encode: refused or replaced at every door that takes JSON or YAML."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.controller.server_agent import AgentClient
from ringlight.controller.store import Store
from ringlight.experiments.cli.common import echo, say, table
from ringlight.experiments.language.text import ScenarioError, parse_yaml, read_sets
from ringlight.experiments.record.folder import read_json
from ringlight.experiments.record.lines import read_records
from ringlight.experiments.runner.progress import Reporter
from ringlight.fabric.text import (
    HalfCharacterError,
    cleaned,
    is_text,
    parse_json,
    visible,
)

HALF = r'["a", {"b": "\ud800"}]'

documents = st.recursive(
    st.text(st.characters(categories=None)) | st.integers(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text(st.characters(categories=None)), inner)
    ),
)


@given(documents)
def test_what_is_parsed_can_be_encoded_and_what_can_be_is_parsed(document: Any) -> None:
    for text in (json.dumps(document), json.dumps(document, ensure_ascii=False)):
        for form in (text, text.encode("utf-8", "surrogatepass")):
            try:
                found = parse_json(form)
            except HalfCharacterError:
                assert not is_text(json.dumps(document, ensure_ascii=False))
            else:
                # Two halves that stand side by side are a character to JSON.
                assert is_text(json.dumps(found, ensure_ascii=False))
    clean = cleaned(document)
    assert is_text(json.dumps(clean, ensure_ascii=False))
    if is_text(json.dumps(document, ensure_ascii=False)):
        assert clean == document


def test_the_place_is_named() -> None:
    with pytest.raises(
        HalfCharacterError,
        match=r"1\.b: half of a character, which UTF-8 cannot encode: line 1",
    ):
        parse_json(HALF)


def test_scenario_files_and_settings_have_none() -> None:
    with pytest.raises(ScenarioError, match=r"x\.yaml: line 2: .*haracter"):
        parse_yaml('name: a\ndescription: "\\ud800"\n', "x.yaml")
    with pytest.raises(ScenarioError, match=r"line 1: .*haracter"):
        parse_yaml('"\\udfff": a\n', "x.yaml")
    with pytest.raises(
        ValueError, match=r"--set jobs\.red\.command: .*half of a character"
    ):
        # As an argument comes that is not UTF-8.
        read_sets(["jobs.red.command=\udcff"])


def test_files_of_runs_have_none(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(HALF)
    for read in (read_json, read_records):
        with pytest.raises(ValueError, match=r"x\.json"):
            read(path)


def test_what_the_agent_says_and_what_was_stored_can_be_read_back(
    tmp_path: Path,
) -> None:
    client = AgentClient("http://127.0.0.1:1")
    client._client = httpx.Client(
        base_url="http://agent",
        transport=httpx.MockTransport(lambda _: httpx.Response(200, content=HALF)),
    )
    assert client._call("GET", "/v1/hosts", timeout_s=1.0) == ["a", {"b": "\ufffd"}]
    store = Store(tmp_path)
    store.write("jobs", json.loads(HALF))
    assert store.read("jobs") == ["a", {"b": "\ufffd"}]
    store.close()


ESCAPED = "a\x1b]0;owned\x07\x9b2J\u202eb"


def test_what_controls_a_terminal_is_made_visible(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = "a\\x1b]0;owned\\x07\\x9b2J\\u202eb"
    assert visible(ESCAPED) == shown
    assert visible("één\n\ttwo \U0001f600") == "één\n\ttwo \U0001f600"
    echo(ESCAPED)
    say(ESCAPED)
    table([ESCAPED], [[ESCAPED]])
    Reporter().say(ESCAPED)
    said = capsys.readouterr()
    assert said.out.count(shown) == 3
    assert said.err.count(shown) == 2
    for text in (said.out, said.err):
        assert not set(text) & set("\x1b\x07\x9b\u202e")


def test_commands_print_by_what_makes_controls_visible() -> None:
    """Prompts and help are click's; a prompt on another host, and the suite, pass on what commands say."""
    folder = Path(__file__).resolve().parents[2] / "experiments"
    wrong = re.compile(
        r"\b(typer\.(echo|secho)|print)\(|std(out|err)\.write\((?!f?\"[^\"]*\{visible)"
    )
    # The trainer may import no command, and makes its own lines visible.
    known = {"cli/common.py", "cli/machine.py"}
    found = {
        str(path.relative_to(folder))
        for path in folder.rglob("*.py")
        if any(
            wrong.search(line) and "console.print" not in line
            for line in path.read_text().splitlines()
        )
    }
    assert found <= known | {"__init__.py"}
