"""Serve the page that shows an API's description, from local files: it works without a network."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from fastapi import FastAPI, HTTPException
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, Response

#: The address of the page; its files are below it.
DOCS = "/docs"
_FOLDER = Path(__file__).parent / "swagger"
_KINDS = {
    "swagger-ui.js": "text/javascript; charset=utf-8",
    "swagger-ui.css": "text/css; charset=utf-8",
    "favicon.png": "image/png",
}


def add_api_page(app: FastAPI) -> None:
    """Add :data:`DOCS` and its files to an application that was made with ``docs_url=None``."""

    @app.get(DOCS, include_in_schema=False)
    def api_page() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url=app.openapi_url or "",
            title=app.title,
            swagger_js_url=f"{DOCS}/swagger-ui.js",
            swagger_css_url=f"{DOCS}/swagger-ui.css",
            swagger_favicon_url=f"{DOCS}/favicon.png",
        )

    @app.get(f"{DOCS}/{{name}}", include_in_schema=False)
    def api_page_file(name: str) -> Response:
        if (kind := _KINDS.get(name)) is None:
            raise HTTPException(404, f"there is no path {DOCS}/{name[:80]}")
        return Response(
            _content(name), media_type=kind, headers={"cache-control": "max-age=3600"}
        )


@cache
def _content(name: str) -> bytes:
    return (_FOLDER / name).read_bytes()
