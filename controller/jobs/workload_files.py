"""Workloads that jobs execute: one file for each, named by its SHA-256."""

from __future__ import annotations

import threading
from pathlib import Path

from typing_extensions import TypedDict

from ringlight.controller.errors import ConflictError, InvalidError, NotFoundError
from ringlight.workloads.graph import Workload
from ringlight.workloads.packed import MAGIC, unpack

#: A packed workload, bytes; the memory that one may take, bytes; and how many are kept.
PACKED_BYTES = 96 << 20
LIMIT_BYTES = 1 << 28
MOST_FILES = 1024


class WorkloadDocument(TypedDict):
    """A workload that jobs may execute. ``operations``: of all ranks; ``bytes``: as packed."""

    sha256: str
    name: str
    ranks: int
    operations: int
    bytes: int


class WorkloadFiles:
    """Workload files in ``directory``, which is made with the first. Any thread may call."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._writing = threading.Lock()

    def put(self, digest: str, part: Path, sha256: str) -> WorkloadDocument:
        """Keep the packed workload in the file ``part``, whose SHA-256 is ``sha256``. Return its document.

        ``part`` lies in :attr:`directory` and is moved. Raises InvalidError if the file is not a packed
        workload or not the one that ``digest`` names, ConflictError if too many are kept.
        """
        if sha256 != digest:
            raise InvalidError(f"workload {digest}: what was sent has SHA-256 {sha256}")
        with part.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise InvalidError(f"workload {digest}: this is no packed workload")
        document = _document(digest, part.read_bytes())
        path = self.directory / digest
        with self._writing:
            kept = sum(
                1 for path in self.directory.iterdir() if not path.name.startswith(".")
            )
            if not path.exists() and kept >= MOST_FILES:
                raise ConflictError(f"workload {digest}: {MOST_FILES} are kept already")
            part.replace(path)
        return document

    def document(self, digest: str) -> WorkloadDocument:
        """Return name, ranks and operations of a workload. Raises NotFoundError."""
        return _document(digest, self.read(digest))

    def workload(self, digest: str) -> Workload:
        """Return a workload. Raises NotFoundError, InvalidError."""
        return _unpacked(digest, self.read(digest))

    def read(self, digest: str) -> bytes:
        """Return the packed workload. Raises NotFoundError."""
        try:
            return (self.directory / digest).read_bytes()
        except FileNotFoundError:
            raise NotFoundError(f"there is no workload {digest}") from None


def _unpacked(digest: str, data: bytes) -> Workload:
    try:
        return unpack(data, LIMIT_BYTES)
    except ValueError as error:
        raise InvalidError(f"workload {digest}: {error}") from None


def _document(digest: str, data: bytes) -> WorkloadDocument:
    workload = _unpacked(digest, data)
    return {
        "sha256": digest,
        "name": workload.name,
        "ranks": workload.ranks,
        "operations": workload.operations,
        "bytes": len(data),
    }
