"""Find what the light of a job may follow while its graph is executed, by the word of the key ``light``.

The words are those of extensions: ``"module:object"`` among the values of ``Extension.worker`` names a
:class:`Following`. Light that follows nothing is set once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Protocol

from ringlight.fabric.extension import ExtensionError, extensions
from ringlight.workloads.graph import Workload


class Progress(Protocol):
    """A rank's way through the stages of its graph, iteration after iteration.

    ``ended``: how many stages it has ended since it began.
    """

    ended: int

    def end(self, operation: int) -> int:
        """Record that an operation has ended. Return how many stages have ended with it."""


class Following(Protocol):
    """Divides a graph into stages, for each of which light is set. ``word``: the value of ``light``."""

    word: str

    def progress(self, workload: Workload, rank: int) -> Progress | None:
        """Return the way of a rank, of which its worker tells; None if it has no stages.

        Raises ValueError for a workload that cannot be divided.
        """

    def check(self, run: Any, job: Any, plane: Any) -> None:
        """Raise ValueError, ``key: what is wrong``, for a job whose light cannot follow it on its plane.

        ``run``: an ``experiments.language.draft.Draft`` that has the job.
        """


@cache
def followings() -> Mapping[str, Following]:
    """Return what light may follow, by word. Raises ExtensionError as ``fabric.extension.entries``."""
    by_word: dict[str, Following] = {}
    for item in extensions():
        for value in item.extension.worker:
            if ":" not in value:
                continue
            following: Following = item.load(value)
            if by_word.setdefault(following.word, following) is not following:
                name = item.extension.name
                raise ExtensionError(
                    f"extension {name}: worker: there is a light {following.word} already"
                )
    return by_word
