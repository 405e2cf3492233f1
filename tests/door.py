"""Extensions of a test in place of those that are installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ringlight.fabric import extension
from ringlight.fabric.extension import InstalledExtension


@contextmanager
def door(
    *installed: InstalledExtension, readers: tuple[Any, ...] = ()
) -> Iterator[None]:
    """Have exactly these extensions installed for the ``with`` block.

    ``readers``: cached functions that have read a field, and read it anew in the block and after it.
    """
    cached = (extension.entries, *readers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extension, "extensions", lambda: installed)
        for function in cached:
            function.cache_clear()
        try:
            yield
        finally:
            for function in cached:
                function.cache_clear()
