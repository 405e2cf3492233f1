"""Python packages that labs need, beyond those that simulations need."""

from __future__ import annotations

from importlib.util import find_spec

from ringlight.testbed.lab import LabError

#: Modules of the extra ``emulate`` without which no lab comes up.
_OF_LABS = (
    "docker",
    "mininet",
    "os_ken",
    "pyroute2",
    "fastapi",
    "uvicorn",
    "prometheus_client",
)


def check_packages() -> None:
    """Raise LabError, naming the first package that labs need and that is not installed."""
    for module in _OF_LABS:
        if not _is_there(module):
            raise LabError(
                f"labs need the package {module.replace('_', '-')}; "
                "install it with: pip install 'ringlight[emulate]'"
            )


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        # It was hidden from the search.
        return False
