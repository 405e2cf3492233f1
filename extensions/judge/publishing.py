"""The pages of the judges and their pictures, in a folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ringlight.experiments.record.writing import write_whole
from ringlight.extensions.judge.judging import Judged
from ringlight.extensions.judge.page import pages_of, picture_of
from ringlight.extensions.judge.pictures import write_picture


def write_pages(
    judged: Sequence[Judged], folder: Path, named: Iterable[str] | None
) -> None:
    """Write the pages of judges and their pictures to a folder that exists. Raises WriteError.

    ``named``: judges that run by name only, for the overview; None leaves the overview out.
    """
    for file, text in pages_of(judged, named).items():
        write_whole(folder / file, text)
    for item in judged:
        if item.judge.draw is not None:
            figure = item.judge.draw(item.judgement.comparisons)
            write_picture(figure, folder / picture_of(item.judge.name), item.sha256)
