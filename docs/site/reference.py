"""The pages of the reference: what scripts import, what an extension may add, and the routes of the REST API."""

from __future__ import annotations

import inspect
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ringlight
from docs.site import routes
from docs.site.pages import write
from ringlight.fabric.extension import entries

#: Titles and pages that are made here.
PAGES = {
    "Python API": Path("reference/python.md"),
    "Extension": Path("reference/extension.md"),
    "REST routes": Path("reference/routes.md"),
    "REST documents": Path("reference/documents.md"),
}


def write_reference(out: Path) -> None:
    """Write the pages into the site's source."""
    description = openapi()
    made = (
        _python(),
        _extension(),
        routes.routes(description),
        routes.documents(description),
    )
    for page, lines in zip(PAGES.values(), made, strict=True):
        write(out / page, lines)
    (out / "reference/openapi.json").write_text(json.dumps(description, indent=1))


def _directive(name: str, argument: str, *options: str) -> list[str]:
    inner = [f".. {name}:: {argument}", *(f"   {option}" for option in options)]
    return ["```{eval-rst}", *inner, "```", ""]


def _python() -> Iterator[str]:
    """Yield the lines of the page of all names that scripts import."""
    yield from ["# Python API", "", *_directive("automodule", "ringlight", ":no-members:")]
    names = {name: getattr(ringlight, name) for name in ringlight.__all__}
    kinds: dict[str, list[str]] = {"Functions": [], "Classes": [], "Errors": []}
    for name, value in names.items():
        if inspect.isclass(value):
            kinds["Errors" if issubclass(value, Exception) else "Classes"].append(name)
        elif callable(value):
            kinds["Functions"].append(name)
    for title, of_kind in kinds.items():
        yield from [f"## {title}", ""]
        for name in of_kind:
            kind = "autofunction" if title == "Functions" else "autoclass"
            yield from _directive(kind, f"ringlight.{name}")
    yield from ["## Methods that extensions add", ""]
    for method, (item, value) in entries("methods").items():
        module, _, name = value.partition(":")
        yield from [f"`{method}`, of the extension {item.extension.name}:", ""]
        yield from _directive("autofunction", f"{item.package}.{module}.{name}")


def _extension() -> Iterator[str]:
    yield from ["# Extension", ""]
    module = "ringlight.fabric.extension"
    yield from _directive("automodule", module, ":no-members:")
    yield from _directive("autoclass", f"{module}.Extension(name, **additions)")


def openapi() -> dict[str, Any]:
    """Return the description of the REST API that a controller of a fabric without light serves."""
    from ringlight.controller.inventory import Inventory
    from ringlight.controller.openflow.plane import OpenFlowPlane
    from ringlight.controller.rest.app import create_app
    from ringlight.controller.service import Controller
    from ringlight.fabric.building import build_fabric
    from ringlight.fabric.schema import FabricSpec

    spec = ringlight.leaf_spine(1, 2, "40 Gbit/s")
    fabric = build_fabric(FabricSpec.model_validate(spec))
    inventory = Inventory.model_validate({"lab": "site", "optical_switches": {}})
    with tempfile.TemporaryDirectory(prefix="ringlight-site-") as state:
        # Never started: it opens no socket.
        plane = OpenFlowPlane("127.0.0.1", 0)
        app = create_app(Controller(fabric, inventory, Path(state), plane))
        return app.openapi()
