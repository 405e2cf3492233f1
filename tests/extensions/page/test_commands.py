"""The page at a lab's controller, and the command and flag that tell where it is."""

from __future__ import annotations

import pytest

from ringlight.controller.rest.app import create_app
from ringlight.controller.service import Controller
from ringlight.experiments.cli import options
from tests.unit.test_cli import BUNDLED, one_line, ringlight
from tests.unit.test_controller_access import call
from tests.unit.test_controller_access import controller as controller


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nosuch"], "nosuch: there is no such run folder"),
        (["runs/nosuch"], "runs/nosuch: there is no such run folder"),
        (["zz9z"], "lab zz9z is not up"),
        (["nosuch", "other"], "nosuch: there is no such run folder"),
        (["nosuch", "--html", "f.html"], "nosuch: there is no such run folder"),
        (["nosuch", "--arm", "a"], "nosuch: there is no such run folder"),
        (["--html", "f.html"], "--html: of which run folder?"),
        (["--arm", "a"], "--arm: of which run folder?"),
    ],
)
def test_what_is_neither_a_run_nor_a_lab_is_one_line(
    words: list[str], said: str
) -> None:
    assert said in one_line(ringlight("view", *words))


def test_a_lab_tells_where_its_page_is(capsys: pytest.CaptureFixture[str]) -> None:
    lab = options.OpenLab(rest="127.0.0.1:9", flags=("view",))
    lab.announce_pages()
    assert (
        capsys.readouterr().err
        == "ringlight: watch the light at http://127.0.0.1:9/view/\n"
    )


def test_the_flag_has_no_effect_on_labs_of_other_machines_and_is_refused() -> None:
    pytest.importorskip("ringlight.extensions.hosts")
    done = ringlight("run", str(BUNDLED), "--dask", "tls://h:1", "--view")
    assert "--view: without effect on labs of other machines (--dask)" in one_line(done)


def test_the_page_of_a_lab_asks_for_no_token_and_its_api_does(
    controller: Controller,
) -> None:
    application = create_app(controller, {"secret": "lab"})
    status, body = call(application, "GET", "/view/", {})
    assert (status, b"<html" in body) == (200, True)
    assert call(application, "GET", "/v1/fabric", {})[0] == 401
    assert (
        call(application, "GET", "/view/", {"origin": "http://evil.example"})[0] == 403
    )
