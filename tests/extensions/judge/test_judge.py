"""Predictions come before outcomes, and the pages show what they were."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ringlight.extensions.judge.contract import (
    WITHIN,
    Claim,
    Comparison,
    Judge,
    Judgement,
    Row,
)
from ringlight.extensions.judge.flow_tables import compared
from ringlight.extensions.judge.judging import (
    PREDICTIONS,
    all_judges,
    judge_all,
    sha256_of,
)
from ringlight.extensions.judge.page import (
    OVERVIEW,
    file_of,
    overview_of,
    page_of,
    pages_of,
    picture_of,
    section_of,
)
from ringlight.extensions.judge.pictures import predictions_of, scatter, write_picture
from ringlight.extensions.judge.reading import (
    DATA,
    OUTCOMES,
    STATED,
    TableError,
    table_reader,
)
from ringlight.extensions.servers import library
from tests.unit.test_cli import one_line, ringlight

DOCS = Path(__file__).resolve().parents[3] / "docs"
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


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Return the results of the quick judges by name."""
    chosen = [all_judges()[name] for name in QUICK]
    judged = judge_all(chosen, tmp_path_factory.mktemp("runs"), print)
    return {item.judge.name: item for item in judged}


@pytest.mark.parametrize("name", QUICK)
def test_the_page_of_quick_judges_is_up_to_date(quick, name):
    item = quick[name]
    assert page_of(item) == (DOCS / file_of(name)).read_text()
    if item.judge.draw is not None:
        assert predictions_of(DOCS / picture_of(name)) == item.sha256


@pytest.mark.parametrize("name", QUICK)
def test_each_claim_that_is_not_within_has_a_reason(quick, name):
    item = quick[name]
    for claim in item.judgement.claims:
        assert (claim.verdict == WITHIN) == (not item.judge.reason(claim)), claim.text
    for start in item.judge.reasons:
        assert any(claim.text.startswith(start) for claim in item.judgement.claims)


def test_each_judge_has_a_page_that_the_overview_links():
    overview = (DOCS / OVERVIEW).read_text()
    for name in all_judges():
        page = (DOCS / file_of(name)).read_text()
        assert page.startswith(f"# Judged by others: {name}\n")
        assert f"`./ringlight judge {name} --pages FOLDER`" in page
        assert f"[{name}]({file_of(name)})" in overview


def test_the_overview_has_each_claim_in_one_table(quick):
    text = overview_of(list(quick.values()), ["by_name"])
    holds, _, rest = text.partition("## Claims that do not hold")
    for item in quick.values():
        for claim in item.judgement.claims:
            table = holds if claim.verdict == WITHIN else rest
            assert f" | {claim.text} | " in table
            assert text.count(f" | {claim.text} | ") == 1
    assert "[by_name](judges-by-name.md)" in text


def test_named_judges_leave_the_overview_out(quick):
    judged = [quick["simai"]]
    assert {*pages_of(judged)} == {"judges-simai.md"}
    assert {*pages_of(judged, [])} == {OVERVIEW, "judges-simai.md"}


def test_the_command_writes_predictions_pages_and_pictures(tmp_path):
    pages = tmp_path / "pages"
    pages.mkdir()
    done = ringlight(
        *("judge", *QUICK, "--json"),
        *("--runs", str(tmp_path / "runs"), "--pages", str(pages)),
    )
    (folder,) = (tmp_path / "runs").iterdir()
    document = json.loads(done.stdout)["judges"]
    written = json.loads((folder / PREDICTIONS).read_text())
    for name in QUICK:
        sha256 = sha256_of([Row(**row) for row in written[name]["rows"]])
        assert document[name]["sha256"] == written[name]["sha256"] == sha256
        page = (folder / file_of(name)).read_text()
        assert sha256 in page
        assert page == (pages / file_of(name)).read_text()
        if all_judges()[name].draw is not None:
            assert predictions_of(pages / picture_of(name)) == sha256


def test_a_folder_of_pages_that_does_not_exist_is_one_line(tmp_path):
    done = ringlight(
        *("judge", "astra_sim", "--runs", str(tmp_path / "runs")),
        *("--pages", str(tmp_path / "none")),
    )
    assert done.returncode == 2
    assert "--pages" in one_line(done)
    assert not (tmp_path / "runs").exists()


def test_a_picture_names_the_predictions_that_it_shows(tmp_path):
    line = Comparison("table", "case", 1.0, 2.0, "ms")
    write_picture(scatter([line], "ms"), tmp_path / "images/one.png", "abc")
    assert predictions_of(tmp_path / "images/one.png") == "abc"


def test_published_rows_in_another_order_are_refused(quick):
    nccl, judge = quick["nccl"], all_judges()["nccl"]
    read = table_reader(OUTCOMES, judge.outcomes)

    def reversed_rows(name):
        return read(name)[::-1]

    with pytest.raises(ValueError, match="is not the published row"):
        judge.compare(nccl.rows, reversed_rows)


def test_large_rings_start_at_128_mib_and_curves_have_all_rows(quick):
    item = quick["nccl"]
    complete = {
        line.table
        for line in item.judgement.comparisons
        if any(
            claim.text.startswith(f"{line.table}, largest") and claim.measured
            for claim in item.judgement.claims
        )
    }
    rows = sum(line.table in complete for line in item.judgement.comparisons)
    texts = [claim.text for claim in item.judgement.claims]
    assert (
        f"whole curves of all tables with stated hardware, {rows} rows: worst" in texts
    )
    assert "rings of A100, H100 and H800 from 128 MiB on, 13 rows: median" in texts


def test_a_model_that_flags_every_cluster_is_outside(quick):
    nccl, judge = quick["nccl"], all_judges()["nccl"]
    rows = [replace(row, value=row.value / 2) for row in nccl.rows]
    judgement = judge.compare(rows, table_reader(OUTCOMES, judge.outcomes))
    verdicts = {claim.text: claim for claim in judgement.claims}
    assert verdicts["misconfigured clusters without a flag"].verdict == WITHIN
    assert verdicts["sound clusters with a flag"].measured > 10


def test_curves_depend_on_launches_as_their_page_states(quick, monkeypatch):
    def median(item):
        return next(
            claim
            for claim in item.claims
            if claim.text.startswith("whole curves of all")
            and claim.text.endswith("median")
        )

    judge = all_judges()["nccl"]
    assert median(quick["nccl"].judgement).verdict == WITHIN
    monkeypatch.setattr(library, "LAUNCH_S", 0.0)
    rows = judge.predict(table_reader(STATED, judge.inputs))
    judgement = judge.compare(rows, table_reader(OUTCOMES, judge.outcomes))
    assert median(judgement).verdict == "outside"


def test_an_unknown_judge_is_one_line(tmp_path):
    done = ringlight("judge", "nobody", "--runs", str(tmp_path))
    assert done.returncode == 2
    assert "there is no judge nobody; there are " in one_line(done)
    assert not list(tmp_path.iterdir())


def test_the_page_shows_predicted_beside_published(tables):
    (item,) = judge_all([_judge("a", 1.05)], tables, print)
    text = section_of(item)
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
