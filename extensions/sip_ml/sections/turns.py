"""Light that follows the phases of jobs."""

from __future__ import annotations

from ringlight.experiments.report.columns import ARM, figures
from ringlight.experiments.report.page import quiet, tag
from ringlight.experiments.report.sections import section
from ringlight.experiments.report.view import Draw, View
from ringlight.experiments.report.words import count


@section("turns", "Light that follows phases", needs=("phase_turns",))
def phases(view: View, draw: Draw) -> str:
    """Return HTML that shows how often light was set for a phase, and how much of its dark time was
    hidden."""
    jobs = view.having("phase_turns")
    if not jobs:
        return ""
    table = figures(
        jobs,
        [
            ARM,
            ("turns", lambda subject: count(subject.number("phase_turns"))),
            ("moved", lambda subject: count(subject.number("phase_turns_moved"))),
            ("set", "light_set"),
            ("hidden", "light_hidden"),
            ("waited for", "light_waited"),
            ("iteration", "iteration"),
        ],
    )
    return (
        "<p>A phase is a stretch in which some ranks send over the same circuits; in an iteration it has a "
        "turn. Circuits are set for a turn once everybody has ended the turns before it in which its ranks "
        "were, so none is taken while bytes are on it. The ranks may compute meanwhile."
        f"{view.says('phases')}</p>"
        + table
        + quiet(
            "Turns of an iteration, all ranks together; seconds of an iteration, means over ranks: while "
            f"circuits of a rank were set, and what of it was hidden or waited for {tag(view.label)}."
        )
    )
