"""What is there twice: runs made once more, and links measured by every lab of a folder gone on in."""

from __future__ import annotations

from dataclasses import replace

from ringlight.experiments.analysis.result import analyse
from ringlight.experiments.record.lab_records import ProcessorLoad
from ringlight.experiments.record.runs import AGAIN, runs_of
from ringlight.experiments.runner.progress import Reporter
from ringlight.experiments.runner.repeats import Repeats
from tests.simulated import experiment, late, records_of, with_links, with_workers


def test_a_repetition_counts_only_once_that_was_decided() -> None:
    """The command was killed after the second run and before it said which of the two counts."""
    found = experiment()
    first = records_of(found)
    second = [replace(record, run="base" + AGAIN) for record in first]
    assert [run.name for run in runs_of([*first, *second], found.plans)] == ["base"]


def test_a_run_in_which_others_had_the_processors_is_made_once_more() -> None:
    found = experiment()
    (plan,) = found.plans
    records = [*with_workers(records_of(found))]
    end = max(record.t for record in records)
    first = [
        *late(records, 0.5),
        ProcessorLoad(t=end, run="base", busy=0.5, stolen=0.0, others=0.3),
    ]
    second = [replace(record, run="base" + AGAIN) for record in records]
    repeats = Repeats(Reporter())
    why = repeats.why(plan, first)
    assert why
    settled = repeats.settled(plan, why, first, second)
    assert (settled.counts, settled.set_aside) == ("base" + AGAIN, "base")
    assert settled.second["completion_s"] == {
        "red": runs_of(records, found.plans)[0].jobs["red"].jct_s
    }
    assert [run.name for run in runs_of([*first, *second, settled], found.plans)] == [
        "base" + AGAIN
    ]


def test_links_that_two_labs_measured_are_one_figure_with_its_spread() -> None:
    found = experiment()
    records = with_links(with_links(records_of(found), ratio=0.9))
    rows = [
        row
        for row in analyse(found, records, "measured").rows
        if row.metric == "link_rate_share"
    ]
    assert [(row.repeat, row.value) for row in rows if row.repeat] == [
        (1, 1.0),
        (2, 0.9),
    ]
    (whole,) = [row for row in rows if row.repeat is None]
    assert whole.value == 0.95
    assert whole.spread is not None
