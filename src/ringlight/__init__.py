"""Ringlight's one top-level package.

Its rooms are folders at the top of the repository, to which the links beside this file lead; an installed
Ringlight has them here.
"""

import sys
from pathlib import Path

#: The folder that holds this package: what another Python needs in PYTHONPATH.
IMPORT_PATH = Path(__file__).resolve().parents[1]


def leave_out_unused() -> None:
    """Have this process, which must be a program of ours, import libraries without what nobody here uses.

    They do without httpx's own command, and Docker over ssh, with which no lab can be built; Mininet's one
    class of distutils comes from Python where it has it, not with all of setuptools; of pyroute2 there are
    the parts that are named, and all only for who asks for something of the whole. This would take a seventh
    of a second of every such process.
    """
    for part in ("httpx._main", "docker.transport.sshconn"):
        sys.modules.setdefault(part, None)  # type: ignore[arg-type]
    setuptools = sys.modules.get("_distutils_hack")
    if setuptools is not None and sys.version_info < (3, 12):
        setuptools.remove_shim()
    if "pyroute2" not in sys.modules:
        _by_its_parts("pyroute2")


def _by_its_parts(name: str) -> None:
    """Have a package, if there is one, be imported when somebody wants what is in none of its parts."""
    # Here, as a worker starts without.
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec(name)
    if spec is None or spec.loader is None:
        return
    package, loader = module_from_spec(spec), spec.loader

    def wanted(attribute: str) -> object:
        if attribute.startswith("__") or PathFinder.find_spec(f"{name}.{attribute}", package.__path__):
            raise AttributeError(attribute)
        del package.__getattr__
        loader.exec_module(package)
        return getattr(package, attribute)

    package.__getattr__ = wanted  # type: ignore[method-assign]
    sys.modules[name] = package
