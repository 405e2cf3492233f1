"""What a file's errors say about the right way, beside what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringlight.experiments.language.expand import parse
from ringlight.experiments.language.text import ScenarioError
from tests.simulated import TWO_SWITCHES
from tests.workload_jobs import refusal


def refused(event: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        parse(f"{TWO_SWITCHES}events: [{{{event}}}]\n", "two.yaml")
    return str(caught.value).removeprefix("two.yaml: ")


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (
            "when: {at: 1 s}, do: cut, target: 'link t0:4 t1:4', back_after: 1 s",
            "events.1.back_after: only do: kill has this key; end it with an event do: restore",
        ),
        (
            "when: {at: 1 s}, do: lose, target: gpu g0, back_after: 1 s",
            "events.1.back_after: only do: kill has this key; end it with an event do: restore",
        ),
        (
            "when: {at: 1 s}, do: regroup, back_after: 1 s",
            "events.1.back_after: only do: kill has this key",
        ),
        (
            "when: {at: 1 s}, do: cut, target: 't0:4 t1:4'",
            "events.1.target: 't0:4 t1:4' is no target; cut takes link PORT PORT; write link t0:4 t1:4",
        ),
        (
            "when: {at: 1 s}, do: restore, target: g0",
            "events.1.target: 'g0' is no target; restore takes link PORT PORT, gpu GPU, nic GPU",
        ),
    ],
)
def test_an_event_says_what_it_takes(event: str, said: str) -> None:
    assert refused(event) == said


def test_an_unknown_key_lists_the_keys_if_none_is_near(tmp_path: Path) -> None:
    said = refusal(tmp_path, "{collective: all-reduce, size: 4 MB, quux: 2}")
    keys = "iterations, light, collective, algorithm, size, split"
    assert said == f"jobs.llm.workload.quux: unknown key; there are {keys}"


def test_an_algorithm_of_a_file_has_its_own_key(tmp_path: Path) -> None:
    said = refusal(tmp_path, "{collective: all-reduce, algorithm: a.xml, size: 4 MB}")
    assert said == (
        "jobs.llm.workload: algorithm: a.xml is a file; write collective: {file: a.xml}"
    )
