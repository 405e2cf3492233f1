"""The page of jobs through Slurm says what there is."""

from ringlight.containers.image import ROOT
from ringlight.experiments.analysis.metrics import table
from ringlight.experiments.record import lines

PAGE = ROOT / "docs" / "slurm-experiment.md"


def test_the_page_lists_every_metric() -> None:
    """To bring it up to date, put what ``table`` gives in place of its last table."""
    assert PAGE.read_text().endswith(f"\n{table('ringlight.extensions.slurm')}")


def test_the_page_lists_every_kind_of_record() -> None:
    records = lines.table("ringlight.extensions.slurm.experiment_records")
    assert f"\n{records}\n" in PAGE.read_text()
