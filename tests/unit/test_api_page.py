"""The page that shows the API's description comes from our own files, so that it works without a network."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI

from ringlight.controller import web
from ringlight.controller.web.api_page import add_api_page
from ringlight.testbed.emulation.optical.rest import create_app
from tests.unit.test_controller_access import call

PINNED = {
    "swagger-ui.js": "e6a898692f2d768e807c3ba4626068a69a2c5dd960dd6c76f3e4d3a3de180af2",
    "swagger-ui.css": "5ed08757e53da3e026d6cbecc61fe5d43585c9560b302d534ad56692519a273d",
    "favicon.png": "3ed612f41e050ca5e7000cad6f1cbe7e7da39f65fca99c02e99e6591056e5837",
}


def plain() -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None, title="plain")
    add_api_page(app)
    return app


def switch() -> FastAPI:
    unused: Any = SimpleNamespace(device=None, faults=None)
    return create_app(unused)


@pytest.mark.parametrize("make", [plain, switch])
def test_everything_that_the_page_asks_for_is_served_here(make: Any) -> None:
    app = make()
    status, body = call(app, "GET", "/docs")
    assert status == 200
    addresses = re.findall(r'(?:src|href)="([^"]+)"', body.decode())
    assert {address.rpartition("/")[2] for address in addresses} == set(PINNED)
    assert "//" not in "".join(addresses), "the page fetches something from elsewhere"
    for address in addresses:
        status, content = call(app, "GET", address)
        assert status == 200
        assert (
            hashlib.sha256(content).hexdigest() == PINNED[address.rpartition("/")[2]]
        ), address


def test_other_files_are_not_served() -> None:
    for name in ("README.md", "..%2fapi_page.py", "api_page.py"):
        assert call(plain(), "GET", f"/docs/{name}")[0] == 404


def test_the_licences_lie_beside_the_files() -> None:
    folder = Path(web.__path__[0]) / "swagger"
    assert {"LICENSE.txt", "NOTICE.txt", "LICENSE-bundled.txt"} <= {
        path.name for path in folder.iterdir()
    }
