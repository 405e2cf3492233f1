"""Extras of the installed package, by what they install."""

from __future__ import annotations

import re
from importlib import metadata

#: Packages whose modules have another name than their distribution.
_DISTRIBUTIONS = {"google": "protobuf", "distutils": "setuptools"}


def missing_in(error: BaseException) -> ModuleNotFoundError | None:
    """Return the missing module that led to an error; None if none did."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ModuleNotFoundError):
        cause = cause.__cause__ or cause.__context__
    return cause


def advice(error: ModuleNotFoundError) -> str | None:
    """Return a line that names the extra which a missing package belongs to; None if there is none."""
    module = (error.name or "").partition(".")[0]
    package = _DISTRIBUTIONS.get(module, module.replace("_", "-")).lower()
    for required in metadata.requires("ringlight") or ():
        match = re.match(r"([\w.-]+)[^;]*;.*extra == ['\"]([\w-]+)['\"]", required)
        if match is not None and match[1].lower() == package and match[2] != "dev":
            return f"{module} is not installed; install it with: pip install 'ringlight[{match[2]}]'"
    return None
