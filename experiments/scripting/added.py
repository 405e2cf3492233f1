"""Methods that extensions add to the objects of scripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from ringlight.fabric.extension import loaders


@cache
def _methods() -> Mapping[str, Callable[[], Any]]:
    return loaders("methods")


class AddedMethods:
    """Base of a class to which extensions add methods, ``Extension.methods`` by ``CLASS.METHOD``."""

    def __getattr__(self, name: str) -> Any:
        """Return a method of an extension. Raises AttributeError if none has it."""
        load = _methods().get(f"{type(self).__name__}.{name}")
        if load is None:
            raise AttributeError(
                f"{type(self).__name__} has no {name}", name=name, obj=self
            )
        return partial(load(), self)

    def __dir__(self) -> list[str]:
        mine = f"{type(self).__name__}."
        added = (
            name.removeprefix(mine) for name in _methods() if name.startswith(mine)
        )
        return sorted({*super().__dir__(), *added})
