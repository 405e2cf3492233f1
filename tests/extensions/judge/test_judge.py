"""Predictions come before outcomes, and the page says what they were."""

import json
import sys
from pathlib import Path

import pytest

from ringlight.extensions.judge.contract import Claim, Comparison, Judge, Judgement, Row
from ringlight.extensions.judge.flow_tables import compared
from ringlight.extensions.judge.judging import (
    PREDICTIONS,
    all_judges,
    judge_all,
    sha256_of,
)
from ringlight.extensions.judge.page import page_of, section_of
from ringlight.extensions.judge.reading import (
    DATA,
    OUTCOMES,
    STATED,
    TableError,
    table_reader,
)
from tests.unit.test_cli import one_line, ringlight

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/judges.md"
EMULATED_PAGE = ROOT / "docs/judges-emulated.md"
#: Judges that take less than a second.
QUICK = ("astra_sim", "nccl", "simai")


def _judge(name: str, value: float) -> Judge:
    """Return a judge that reads a table of its own before and after."""

    def predict(read):
        read("stated.csv")
        return [Row("table", "case", value, "s")]

    def compare(rows, read):
        (published,) = (float(row["s"]) for row in read("outcome.csv"))
        line = Comparison("table", "case", rows[0].value, published, "s", 10)
        return Judgement(
            (line,), (Claim("every case", abs(line.difference_percent), 10),)
        )

    files = (("stated.csv",), ("outcome.csv",))
    return Judge(name, name, "nowhere", *files, {}, predict, compare)


@pytest.fixture
def tables(tmp_path, monkeypatch):
    for folder, name in (("stated", "stated.csv"), ("outcomes", "outcome.csv")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text("s\n1.0\n")
    module = "ringlight.extensions.judge.judging"
    monkeypatch.setattr(f"{module}.STATED", tmp_path / "stated")
    monkeypatch.setattr(f"{module}.OUTCOMES", tmp_path / "outcomes")
    return tmp_path


def test_no_outcome_is_opened_before_all_predictions_are_on_disk(tables):
    opened = []
    watching = True

    def watch(event, arguments):
        if watching and event == "open" and str(arguments[0]).endswith("outcome.csv"):
            document = json.loads((tables / PREDICTIONS).read_text())
            opened.append({name: part["sha256"] for name, part in document.items()})

    sys.addaudithook(watch)
    judged = judge_all([_judge("a", 1.05), _judge("b", 2)], tables, print)
    watching = False
    assert opened == [{item.judge.name: item.sha256 for item in judged}] * 2
    assert [item.judgement.verdict for item in judged] == ["within", "outside"]


def test_outcomes_that_nobody_can_read_leave_the_predictions(tables):
    (tables / "outcomes/outcome.csv").unlink()
    with pytest.raises(TableError, match=r"outcome\.csv: cannot be read"):
        judge_all([_judge("a", 1)], tables, print)
    assert json.loads((tables / PREDICTIONS).read_text())["a"]["rows"][0]["value"] == 1


def test_a_judge_predicts_without_outcomes_and_reads_only_its_tables():
    for name in QUICK:
        judge = all_judges()[name]
        assert not {*judge.inputs} & {*judge.outcomes}
        with pytest.raises(TableError, match="does not list"):
            judge.predict(table_reader(STATED, ()))
    for judge in all_judges().values():
        assert all((STATED / table).is_file() for table in judge.inputs)
        assert all((OUTCOMES / table).is_file() for table in judge.outcomes)


def test_predictions_open_no_file_of_outcomes():
    opened, watching = [], True

    def watch(event, arguments):
        if watching and event == "open" and str(DATA) in str(arguments[0]):
            opened.append(Path(str(arguments[0])))

    sys.addaudithook(watch)
    for name in QUICK:
        judge = all_judges()[name]
        judge.predict(table_reader(STATED, judge.inputs))
    watching = False
    read = {path.relative_to(STATED).as_posix() for path in opened}
    assert read == {table for name in QUICK for table in all_judges()[name].inputs}


def test_a_changed_prediction_has_another_hash():
    rows = [Row("table", "case", 1.0, "s")]
    assert sha256_of(rows) != sha256_of([Row("table", "case", 1.000001, "s")])


def test_claims_that_data_cannot_decide_are_not_within():
    undecided = Claim("every case", None, 10)
    assert Judgement((), (undecided,)).verdict == "cannot be said"
    assert Judgement((), ()).verdict == "cannot be said"
    assert Judgement((), (undecided, Claim("all", 11, 10))).verdict == "outside"


@pytest.mark.parametrize("name", QUICK)
def test_the_page_of_quick_judges_is_up_to_date(tmp_path, name):
    (item,) = judge_all([all_judges()[name]], tmp_path, print)
    assert section_of(item) in PAGE.read_text()


def test_the_page_has_a_section_for_each_judge():
    for name, judge in all_judges().items():
        page = PAGE if judge.by_default else EMULATED_PAGE
        assert f"\n## {name}\n" in page.read_text()


def test_the_command_writes_predictions_and_page(tmp_path):
    done = ringlight("judge", *QUICK, "--runs", str(tmp_path), "--json")
    (folder,) = tmp_path.iterdir()
    document = json.loads(done.stdout)["judges"]
    written = json.loads((folder / PREDICTIONS).read_text())
    for name in QUICK:
        assert document[name]["sha256"] == written[name]["sha256"]
        assert written[name]["sha256"] in (folder / "judges.md").read_text()


def test_an_unknown_judge_is_one_line(tmp_path):
    done = ringlight("judge", "nobody", "--runs", str(tmp_path))
    assert done.returncode == 2
    assert "there is no judge nobody; there are " in one_line(done)
    assert not list(tmp_path.iterdir())


def test_the_page_shows_predicted_beside_published(tables):
    text = page_of(judge_all([_judge("a", 1.05)], tables, print))
    assert "| case | 1.05 | 1 | +5.00 % |" in text


def test_a_prediction_matches_one_published_flow():
    rows = [Row("flows", "g0 g1 1000 0.000000001", 2.0, "ms")]
    published = {"src_host": "0", "dst_host": "1", "size_bytes": "1000"}
    outcomes = [{**published, "start_ms": "0.000001", "fct_ms": "2.0"}] * 2
    judgement = compared(rows, outcomes, {"median": 5})
    missing = next(claim for claim in judgement.claims if claim.unit == "flows")
    assert (missing.measured, missing.verdict) == (1, "outside")
    with pytest.raises(ValueError, match="no published flow has a prediction"):
        compared([Row("flows", "g5 g6 1000 0.0", 2.0, "ms")], outcomes, {"median": 5})


def test_sizes_that_are_no_evidence_are_listed_without_a_claim():
    sizes = (1000, 20_000)
    rows = [Row("flows", f"g0 g1 {size} 0.0", 2.0, "ms") for size in sizes]
    outcomes = [
        {
            "src_host": "0",
            "dst_host": "1",
            "size_bytes": str(size),
            "start_ms": "0",
            "fct_ms": time_ms,
        }
        for size, time_ms in zip(sizes, ("1.0", "2.0"), strict=True)
    ]
    judgement = compared(rows, outcomes, {"median": 5}, above_bytes=10_000)
    medians = [line for line in judgement.comparisons if line.table == "median"]
    assert [line.reach_percent for line in medians] == [None, 5]
    assert judgement.verdict == "within"
