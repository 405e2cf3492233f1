"""A bug that public clients have, for the acceptance kit's own tests."""

from __future__ import annotations

import pytest

from ringlight.extensions.calient import calient_rest as rest
from ringlight.extensions.calient.calient_rigs import CalientRestRig


def http_200_is_success(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rest, "parse_statuses", lambda value, count: ("",) * count)


MUTANTS = [
    pytest.param(CalientRestRig, http_200_is_success, (29,), id="http-200-is-success")
]
