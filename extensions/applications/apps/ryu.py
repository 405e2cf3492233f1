"""Redirect imports of ``ryu`` to os-ken, its maintained fork.

``ryu.x.y`` is the very module ``os_ken.x.y``, so that classes of either name are the same. os-ken has dropped
the web server that Ryu's applications have their routes in, and ``rest_topology``; ours are in their place,
under both names.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

#: Modules that os-ken has dropped and we bring, by os-ken's name.
BROUGHT = {
    "os_ken.app.rest_topology": "ringlight.extensions.applications.apps.rest_topology",
    "os_ken.app.wsgi": "ringlight.extensions.applications.apps.wsgi",
}
#: Names of ``ryu.app.wsgi`` that are for WebSockets.
_WEB_SOCKETS = r"ryu\.app\.wsgi\.(websocket|WebSocket\w*|rpc_public)"
#: Modules with classes that have Ryu's name in theirs (``RyuApp``, ``RyuException``).
_RENAMED = ("os_ken.base.app_manager", "os_ken.exception")


#: Applications that files asked for with ``require_app``, or by asking ``ryu.topology.api`` and its like.
required: list[str] = []


class Dropped(ImportError):
    """An application imports what os-ken has no longer; one line that names it."""


class _Alias(MetaPathFinder, Loader):
    """Finds and loads ``ryu…`` and what is :data:`BROUGHT`."""

    def __init__(self) -> None:
        self._own: dict[str, ModuleSpec | None] = {}

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname in BROUGHT:
            return ModuleSpec(fullname, self)
        if fullname != "ryu" and not fullname.startswith("ryu."):
            return None
        spec = importlib.util.find_spec(real_name(fullname))
        if spec is None:
            raise Dropped(f"{fullname}: os-ken has dropped it", name=fullname)
        return ModuleSpec(
            fullname, self, is_package=spec.submodule_search_locations is not None
        )

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        real = real_name(spec.name)
        module = importlib.import_module(BROUGHT.get(real, real))
        self._own[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # It has run under its own name; the import system has only replaced what it says of itself.
        assert module.__spec__ is not None
        module.__spec__ = self._own.pop(module.__spec__.name)


def real_name(name: str) -> str:
    """Return ``os_ken.x.y`` for ``ryu.x.y``; other names unchanged."""
    return re.sub(r"^ryu(?=$|\.)", "os_ken", name)


def install() -> None:
    """Make imports of ``ryu`` load os-ken in this process, even where Ryu is installed."""
    if any(isinstance(finder, _Alias) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Alias())
    for name in _RENAMED:
        module = importlib.import_module(name)
        for its in [word for word in vars(module) if word.startswith("OSKen")]:
            setattr(module, its.replace("OSKen", "Ryu", 1), getattr(module, its))
    # os-ken's own looks for the file that asks among the callers, and finds the import system.
    importlib.import_module("os_ken.base.app_manager").require_app = _require_app  # type: ignore[attr-defined]


def _require_app(app_name: str, api_style: bool = False) -> None:
    """Register an application that must be loaded, too."""
    required.append(real_name(app_name))


def lacking(error: ImportError) -> str | None:
    """Return why Ryu's name that an import asked for is not here; None if it was not one of Ryu's."""
    name = _dropped_name(error)
    if name is not None and re.fullmatch(_WEB_SOCKETS, name):
        return f"{name}: WebSockets are left out"
    return None if name is None else f"{name}, which os-ken has dropped"


def _dropped_name(error: ImportError) -> str | None:
    """Return the name ``ryu.x.y`` of an import that os-ken no longer has; None for any
    other failed import.
    """
    match = re.match(r"cannot import name '(\w+)' from '([\w.]+)'", str(error))
    modules = {ours: theirs for theirs, ours in BROUGHT.items()}
    name = (
        f"{modules.get(match[2], match[2])}.{match[1]}" if match else error.name or ""
    )
    alias = re.sub(r"^os_ken(?=\.)", "ryu", name)
    return alias if alias.startswith("ryu.") else None
