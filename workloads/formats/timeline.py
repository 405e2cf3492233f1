"""Timelines out, in Chrome's trace format: what Perfetto (ui.perfetto.dev) opens.

A process is a rank, a thread one of its streams, times are in microseconds.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, NamedTuple

_MICROS = 1e6


class Span(NamedTuple):
    """One operation that was executed; seconds from the same zero for all ranks."""

    rank: int
    stream: str
    name: str
    begin_s: float
    end_s: float
    kind: str
    bytes: int = 0


def write(path: Path, spans: Iterable[Span]) -> int:
    """Writes a timeline as it comes, never holding it in memory; how many spans it has.

    A path that ends with ``.gz`` is compressed, which Perfetto opens as well. Raises ValueError for a span
    that ends before it begins or has no finite times, and when it cannot be written; nothing is left then.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}")
    count = 0
    try:
        with part.open("wb") as raw, _text(raw, path.suffix == ".gz") as file:
            file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
            separator = ""
            for event in _events(spans):
                file.write(separator + event)
                separator = ",\n"
                count += event.startswith('{"ph":"X"')
            file.write("\n]}\n")
        part.replace(path)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    finally:
        with suppress(OSError):
            part.unlink()
    return count


def _text(raw: IO[bytes], compressed: bool) -> IO[str]:
    if compressed:
        raw = gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=4, mtime=0)  # type: ignore[assignment]
    return io.TextIOWrapper(raw, encoding="utf-8", write_through=False)


def _events(spans: Iterable[Span]) -> Iterator[str]:
    """Each span as one line, and before the first of a rank or a stream what that is called."""
    threads: dict[int, dict[str, int]] = {}
    for span in spans:
        if not (0 <= span.begin_s <= span.end_s < math.inf):
            raise ValueError(
                f"rank {span.rank}, {span.name}: from {span.begin_s} s to {span.end_s} s is no time"
            )
        rank = span.rank
        if rank not in threads:
            threads[rank] = {}
            yield _about("process_name", rank, 0, f'"name":"rank {rank}"')
            yield _about("process_sort_index", rank, 0, f'"sort_index":{rank}')
        mine = threads[rank]
        if span.stream not in mine:
            mine[span.stream] = len(mine) + 1
            yield _about("thread_name", rank, mine[span.stream], f'"name":{_quoted(span.stream)}')
        begin = span.begin_s * _MICROS
        fields = (
            f'"ph":"X","pid":{rank},"tid":{mine[span.stream]}',
            f'"ts":{begin:.3f},"dur":{span.end_s * _MICROS - begin:.3f}',
            f'"name":{_quoted(span.name)},"cat":{_quoted(span.kind)}',
            *([f'"args":{{"bytes":{span.bytes}}}'] if span.bytes else ()),
        )
        yield f"{{{','.join(fields)}}}"


def _about(what: str, pid: int, tid: int, said: str) -> str:
    """What a process or a thread is called, or where it stands."""
    return f'{{"ph":"M","pid":{pid},"tid":{tid},"name":"{what}","args":{{{said}}}}}'


@lru_cache(1 << 14)
def _quoted(text: str) -> str:
    return json.dumps(text)
