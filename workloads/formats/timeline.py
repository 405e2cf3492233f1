"""Timelines out, in Chrome's trace format: what Perfetto (ui.perfetto.dev) opens.

A process is a rank or a GPU, a thread one of its streams, times are in microseconds.
"""

from __future__ import annotations

import gzip
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, NamedTuple

from ringlight.workloads.formats.files import replacing

_MICROS = 1e6


class Span(NamedTuple):
    """Something that was executed; seconds from the same zero for all. ``args``: what else there is."""

    process: str
    thread: str
    name: str
    begin_s: float
    end_s: float
    kind: str
    args: Mapping[str, Any] = MappingProxyType({})


def write(path: Path, spans: Iterable[Span]) -> int:
    """Write a timeline as it comes, never holding it in memory. Return how many spans it has.

    A path that ends with ``.gz`` is compressed, which Perfetto opens as well. Raises ValueError for a span
    that ends before it begins or has no finite times, and when it cannot be written; nothing is left then.
    """
    count = 0
    with (
        replacing(path) as part,
        part.open("wb") as raw,
        _text(raw, path.suffix == ".gz") as file,
    ):
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        separator = ""
        for event in _events(spans):
            file.write(separator + event)
            separator = ",\n"
            count += event.startswith('{"ph":"X"')
        file.write("\n]}\n")
    return count


def _text(raw: IO[bytes], compressed: bool) -> IO[str]:
    if compressed:
        raw = gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=4, mtime=0)  # type: ignore[assignment]
    return io.TextIOWrapper(raw, encoding="utf-8", write_through=False)


def _events(spans: Iterable[Span]) -> Iterator[str]:
    """Yield lines of the spans; the names of a process or thread come before its first."""
    threads: dict[str, tuple[int, dict[str, int]]] = {}
    for span in spans:
        if not (-math.inf < span.begin_s <= span.end_s < math.inf):
            raise ValueError(
                f"{span.process}, {span.name}: from {span.begin_s} s to {span.end_s} s is no time"
            )
        if span.process not in threads:
            threads[span.process] = len(threads) + 1, {}
            number = len(threads)
            yield _about("process_name", number, 0, f'"name":{_quoted(span.process)}')
            yield _about("process_sort_index", number, 0, f'"sort_index":{number}')
        process, mine = threads[span.process]
        if span.thread not in mine:
            mine[span.thread] = len(mine) + 1
            yield _about(
                "thread_name",
                process,
                mine[span.thread],
                f'"name":{_quoted(span.thread)}',
            )
        begin = span.begin_s * _MICROS
        fields = (
            f'"ph":"X","pid":{process},"tid":{mine[span.thread]}',
            f'"ts":{begin:.3f},"dur":{span.end_s * _MICROS - begin:.3f}',
            f'"name":{_quoted(span.name)},"cat":{_quoted(span.kind)}',
            *(
                [f'"args":{json.dumps(span.args, separators=(",", ":"))}']
                if span.args
                else ()
            ),
        )
        yield f"{{{','.join(fields)}}}"


def _about(what: str, pid: int, tid: int, arguments: str) -> str:
    """Return an event with the name of a process or a thread, or its place.

    Places are in the order in which they come.
    """
    return (
        f'{{"ph":"M","pid":{pid},"tid":{tid},"name":"{what}","args":{{{arguments}}}}}'
    )


@lru_cache(1 << 14)
def _quoted(text: str) -> str:
    return json.dumps(text)
