"""Leave the page beside the report of a run folder."""

from __future__ import annotations

from pathlib import Path

from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.report.page import text

#: Name of the page in a run folder; and bytes of the runs in it, of which there is one at least.
BESIDE, MOST_BESIDE = "view.html", 8_000_000


def beside(folder: Path, watched: bool) -> str:
    """Return HTML by which the report of a run folder leads to the page. ``watched``: write the page there,
    too. Raises WriteError."""
    if watched:
        write_beside(folder)
    if (folder / BESIDE).exists():
        return f'<b><a href="{BESIDE}">Watch it again</a></b>: the light of these runs as it moved.'
    return f"<b>Watch it again</b> in the browser: <code>ringlight view {text(folder.name)}</code>."


def write_beside(folder: Path) -> None:
    """Write :data:`BESIDE` into a run folder, with as many of its runs as fit; not where none has begun, and
    not of a trace of jobs, of which nothing is on record that could be watched. Raises WriteError."""
    # It knows the controller's documents, which only this needs.
    from ringlight.experiments.record.folder import experiment_of
    from ringlight.experiments.record.writing import write_whole
    from ringlight.extensions.page.recorded import Recorded
    from ringlight.extensions.page.single_file import single_file

    try:
        if all(plan.computed for plan in experiment_of(folder).plans):
            return
        page = single_file([Recorded(folder)], most_bytes=MOST_BESIDE)
    except ScenarioError:
        # Whoever needs the records says what is wrong with them.
        return
    write_whole(folder / BESIDE, page)
