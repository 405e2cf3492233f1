"""Timelines for Perfetto: what is written is Chrome's trace format, and grows on the disk, not in memory."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    TypeAdapter,
)

from ringlight.workloads.formats.timeline import Span, write


class _Event(BaseModel):
    model_config = ConfigDict(extra="forbid")
    pid: NonNegativeInt
    tid: NonNegativeInt


class About(_Event):
    ph: Literal["M"]
    name: Literal["process_name", "process_sort_index", "thread_name"]
    args: dict[str, str | int]


class Complete(_Event):
    ph: Literal["X"]
    name: str
    cat: str
    ts: NonNegativeFloat
    dur: NonNegativeFloat
    args: dict[Literal["bytes"], int] = Field(default={})


class File(BaseModel):
    model_config = ConfigDict(extra="forbid")
    displayTimeUnit: Literal["ms"]
    traceEvents: list[About | Complete]


SPANS = [
    Span("rank 1", "main", "forward", 0.0, 1.5e-3, "compute"),
    Span("rank 0", "main", "forward", 0.0, 1.25e-3, "compute"),
    Span(
        "rank 0",
        'a "stream"\n',
        'all-reduce "ä" \\',
        1.25e-3,
        2e-3,
        "collective",
        {"bytes": 4096},
    ),
    Span("rank 1", "main", "backward", 1.5e-3, 1.5e-3, "compute"),
]


def loaded(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    found: dict[str, Any] = json.loads(
        gzip.decompress(data) if path.suffix == ".gz" else data
    )
    TypeAdapter(File).validate_python(found)
    return found


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_a_timeline_has_ranks_as_processes_and_streams_as_threads(
    tmp_path: Path, name: str
) -> None:
    assert write(tmp_path / name, iter(SPANS)) == 4
    events = loaded(tmp_path / name)["traceEvents"]
    names = {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in events
        if e["name"] == "thread_name"
    }
    assert names == {(1, 1): "main", (2, 1): "main", (2, 2): 'a "stream"\n'}
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == [
        "rank 1",
        "rank 0",
    ]
    spans = [e for e in events if e["ph"] == "X"]
    assert [(e["pid"], e["tid"], e["ts"], e["dur"]) for e in spans] == [
        (1, 1, 0.0, 1500.0), (2, 1, 0.0, 1250.0), (2, 2, 1250.0, 750.0), (1, 1, 1500.0, 0.0),
    ]  # fmt: skip
    assert spans[2]["name"] == 'all-reduce "ä" \\'
    assert spans[2]["args"] == {"bytes": 4096}
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_timeline_of_nothing_is_one(tmp_path: Path) -> None:
    assert write(tmp_path / "t.json", []) == 0
    assert loaded(tmp_path / "t.json")["traceEvents"] == []


@pytest.mark.parametrize(
    ("begin", "end"),
    [(1.0, 0.5), (float("-inf"), 0.5), (0.0, float("nan")), (0.0, float("inf"))],
)
def test_times_that_are_none_are_refused_and_nothing_is_left(
    tmp_path: Path, begin: float, end: float
) -> None:
    with pytest.raises(ValueError, match=r"rank 3, x: from .* is no time"):
        write(
            tmp_path / "t.json",
            [*SPANS, Span("rank 3", "main", "x", begin, end, "compute")],
        )
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none/t\.json: No such file"):
        write(tmp_path / "none/t.json", SPANS)


def test_many_spans_are_never_in_memory_at_once(tmp_path: Path) -> None:
    def spans() -> Iterator[Span]:
        for k in range(20_000):
            yield Span(
                f"rank {k % 8}",
                "main",
                f"layer {k % 16}",
                k * 1e-6,
                (k + 1) * 1e-6,
                "compute",
                {"bytes": 64},
            )

    tracemalloc.start()
    try:
        assert write(tmp_path / "t.json", spans()) == 20_000
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()
    assert len(loaded(tmp_path / "t.json")["traceEvents"]) == 20_000 + 3 * 8
