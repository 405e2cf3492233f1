"""Have the controller of a lab serve the page, beside its API."""

from __future__ import annotations

from fastapi import FastAPI

from ringlight.controller.service import Controller
from ringlight.extensions.page.middleware import Page
from ringlight.extensions.page.page_files import PAGE


def add(controller: Controller) -> None:
    """Serve the page's files, which are the same for everybody and say nothing of the lab."""
    controller.app_parts.append(_add_page)


def _add_page(app: FastAPI) -> None:
    app.add_middleware(Page, directory=PAGE)
