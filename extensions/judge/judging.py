"""All judges: predictions of all tables first, on disk with their hash, then the outcomes."""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from ringlight.experiments.record.writing import WriteError, write_json
from ringlight.extensions.judge import judges
from ringlight.extensions.judge.contract import Judge, Judgement, Row
from ringlight.extensions.judge.reading import OUTCOMES, STATED, table_reader

#: Significant digits of a written prediction: machines differ in the last bits of a float.
DIGITS = 7
PREDICTIONS = "predictions.json"


@dataclass(frozen=True)
class Judged:
    """A judge, its predictions' SHA-256, its result, and the seconds that predicting took."""

    judge: Judge
    rows: tuple[Row, ...]
    sha256: str
    judgement: Judgement
    predicted_s: float


def all_judges() -> Mapping[str, Judge]:
    """Return the judges by name, in alphabetical order."""
    names = sorted(module.name for module in pkgutil.iter_modules(judges.__path__))
    modules = [importlib.import_module(f"{judges.__name__}.{name}") for name in names]
    objects = [module.JUDGE for module in modules]
    return {
        judge.name: judge for judge in sorted(objects, key=lambda judge: judge.name)
    }


def judge_all(
    chosen: Sequence[Judge],
    folder: Path,
    say: Callable[[str], None],
    processes: int = 1,
) -> list[Judged]:
    """Return the results of judges. All predictions are in ``folder``, with hashes, before an outcome is read.

    ``processes``: how many predict; with several, the judges are those of :func:`all_judges`. Raises
    TableError, and WriteError if the predictions cannot be written or read back.
    """
    predicted = []
    for judge, (rows, elapsed_s) in zip(
        chosen, _predicted(chosen, processes), strict=True
    ):
        predicted.append((judge, rows, elapsed_s))
        say(f"{judge.name}: {len(rows):,} figures predicted in {elapsed_s:.1f} s")
    hashes = write_predictions(
        folder / PREDICTIONS, {judge.name: rows for judge, rows, _ in predicted}
    )
    say(f"predictions written before any outcome is read: {folder / PREDICTIONS}")
    return [
        Judged(
            judge,
            rows,
            hashes[judge.name],
            judge.compare(rows, table_reader(OUTCOMES, judge.outcomes)),
            elapsed_s,
        )
        for judge, rows, elapsed_s in predicted
    ]


def _predicted(
    chosen: Sequence[Judge], processes: int
) -> Iterator[tuple[tuple[Row, ...], float]]:
    """Yield the rows of each judge, and the seconds that predicting took."""
    # A judge that builds labs owns processes of its own.
    alone = not all(judge.by_default for judge in chosen)
    if processes <= 1 or len(chosen) <= 1 or alone:
        yield from map(_predict, chosen)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(_predict_named, [judge.name for judge in chosen])


def _predict_named(name: str) -> tuple[tuple[Row, ...], float]:
    return _predict(all_judges()[name])


def _predict(judge: Judge) -> tuple[tuple[Row, ...], float]:
    started = time.perf_counter()
    rows = tuple(map(_rounded, judge.predict(table_reader(STATED, judge.inputs))))
    return rows, time.perf_counter() - started


def write_predictions(
    path: Path, predicted: Mapping[str, Sequence[Row]]
) -> dict[str, str]:
    """Write predictions by judge, and return the SHA-256 of each judge's rows. Raises WriteError."""
    hashes = {name: sha256_of(rows) for name, rows in predicted.items()}
    document = {
        name: {"sha256": hashes[name], "rows": [asdict(row) for row in rows]}
        for name, rows in predicted.items()
    }
    write_json(path, document, indent=None)
    if json.loads(path.read_text(encoding="utf-8")) != document:
        raise WriteError(f"{path}: the predictions were not written")
    return hashes


def sha256_of(rows: Sequence[Row]) -> str:
    """Return the SHA-256 of predictions: of the JSON of their rows, keys sorted."""
    text = json.dumps([asdict(row) for row in rows], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _rounded(row: Row) -> Row:
    return Row(row.table, row.case, float(f"{row.value:.{DIGITS}g}"), row.unit)


def summary(judged: Iterable[Judged], folder: Path) -> dict[str, object]:
    """Return the result as JSON's values."""
    return {
        "folder": str(folder),
        "judges": {
            item.judge.name: {
                "verdict": item.judgement.verdict,
                "sha256": item.sha256,
                "predicted_s": item.predicted_s,
                "claims": [
                    {**asdict(claim), "verdict": claim.verdict}
                    for claim in item.judgement.claims
                ],
                "comparisons": [asdict(line) for line in item.judgement.comparisons],
            }
            for item in judged
        },
    }
