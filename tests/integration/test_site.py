"""The site of the documentation: built strictly, searched, and looked at in Chromium by axe-core."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest

from docs.site.contents import groups
from tests.browser import CHROMIUM, Browser, browser

ROOT = Path(__file__).resolve().parents[2]
MISSING = [
    name
    for name in ("sphinx", "myst_parser", "axe_core_python")
    if find_spec(name) is None
]
pytestmark = [
    pytest.mark.labs,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {MISSING}"),
]
chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
#: Alone on two processors it takes a fraction of this.
BUILD_S = 280.0
#: The first page, a long one, the gallery and an example, and the reference.
PAGES = (
    "index.html",
    "docs/experiments.html",
    "examples.html",
    "examples/disaggregation.html",
    "reference/python.html",
    "reference/routes.html",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as the command makes it: a warning or a broken link is an error."""
    out = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "docs.site", str(out)]
    made = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=BUILD_S
    )
    assert made.returncode == 0, made.stderr[-4000:]
    return out


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where a server shows the site."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Quiet, directory=str(site))
    ) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


def elsewhere(tab: Browser) -> list[str]:
    """Return what the tab asked of others than this machine."""
    here = ("http://127.0.0.1:", "file:///", "data:", "blob:")
    return [url for url in tab.asked if not url.startswith(here)]


def test_every_page_of_the_navigation_is_in_the_site_and_found_by_its_words(
    site: Path,
) -> None:
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    written = re.fullmatch(r"Search\.setIndex\((.*)\)", text.strip(), re.DOTALL)
    assert written is not None
    index = json.loads(written[1])
    for group in groups(ROOT):
        for _, page in group.pages:
            assert str(page.with_suffix("")) in index["docnames"]
    rest = index["docnames"].index("docs/rest")
    numbers = index["terms"]["curl"]
    assert rest in (numbers if isinstance(numbers, list) else [numbers])


@chromium
@pytest.mark.parametrize("kept", ["served", "opened as files"])
def test_a_reader_searches_without_a_network(
    kept: str, site: Path, address: str, tab: Browser
) -> None:
    start = address if kept == "served" else f"file://{site}/"
    tab.screen(1280)
    tab.asked.clear()
    tab.open(f"{start}docs/metrics.html")
    buttons = "[...document.querySelectorAll('button[aria-label=Search]')]"
    tab.wait(
        f"{buttons}.find(button => button.offsetParent)?.click(), document.activeElement.type == 'search'"
    )
    tab.write("cross-connects")
    tab.key("Enter")
    links = "[...document.querySelectorAll('#search-results li a')].map(a => a.getAttribute('href'))"
    tab.wait(f"{links}.some(link => link.startsWith('docs/rest.html'))")
    assert tab.asked
    assert elsewhere(tab) == []


@chromium
@pytest.mark.parametrize("look", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_axe_finds_nothing_serious(
    width: int, look: str, address: str, tab: Browser
) -> None:
    import axe_core_python

    axe = (Path(axe_core_python.__file__).parent / "axe.min.js").read_text(
        encoding="utf-8"
    )
    tab.screen(width)
    tab.call(
        "Emulation.setEmulatedMedia",
        features=[{"name": "prefers-color-scheme", "value": look}],
    )
    tab.asked.clear()
    wrong = []
    for page in PAGES:
        tab.open(address + page)
        tab.wait(
            f"location.href == {address + page!r} && document.readyState == 'complete'"
        )
        tab.wait(f"document.documentElement.dataset.theme == {look!r}")
        # Buttons take the colours of a theme over 150 ms, and between two themes have little contrast.
        tab.wait("document.getAnimations().length == 0")
        assert tab.run("document.documentElement.scrollWidth") <= width, page
        tab.run(f"{axe}; 0")
        report = tab.run("axe.run(document, {resultTypes: ['violations']})")
        for problem in report["violations"]:
            if problem["impact"] in ("serious", "critical"):
                nodes = [node["html"][:200] for node in problem["nodes"]]
                wrong.append((page, problem["id"], len(nodes), nodes[:3]))
    assert wrong == []
    assert elsewhere(tab) == []
