"""Workloads that jobs execute: one file for each, called after its SHA-256."""

from __future__ import annotations

import binascii
import hashlib
import threading
from pathlib import Path
from typing import Any

from ringlight.controller.errors import ConflictError, InvalidError, NotFoundError
from ringlight.workloads.graph import FloatArray, Workload
from ringlight.workloads.packed import unpack
from ringlight.workloads.traffic import sent

#: Memory that one may take, bytes, and how many are kept.
LIMIT_BYTES = 1 << 28
MOST_FILES = 1024


class WorkloadFiles:
    """Those in ``directory``, which is made with the first. Any thread may call."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writing = threading.Lock()

    def put(self, digest: str, packed: str) -> dict[str, Any]:
        """Keep the workload that ``packed`` (Base64) holds; the document of what was read back.

        Raises InvalidError when it is none or not the one that ``digest`` names, ConflictError when there are
        too many.
        """
        try:
            data = binascii.a2b_base64(packed, strict_mode=True)
        except ValueError as error:
            raise InvalidError(f"packed: {error}") from None
        if (found := hashlib.sha256(data).hexdigest()) != digest:
            raise InvalidError(f"workload {digest}: what was sent has SHA-256 {found}")
        _document(digest, data)
        path = self._directory / digest
        with self._writing:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not path.exists() and sum(1 for _ in self._directory.iterdir()) >= MOST_FILES:
                raise ConflictError(f"workload {digest}: {MOST_FILES} are kept already")
            temporary = path.with_suffix(".new")
            temporary.write_bytes(data)
            temporary.replace(path)
        return self.document(digest)

    def document(self, digest: str) -> dict[str, Any]:
        """Its name, ranks and operations. Raises NotFoundError."""
        return _document(digest, self.read(digest))

    def traffic(self, digest: str) -> FloatArray:
        """Bytes [ranks, ranks] that it sends in an iteration, row = sender. Raises NotFoundError."""
        return sent(_unpacked(digest, self.read(digest)))

    def read(self, digest: str) -> bytes:
        """The packed workload. Raises NotFoundError."""
        try:
            return (self._directory / digest).read_bytes()
        except FileNotFoundError:
            raise NotFoundError(f"there is no workload {digest}") from None


def _unpacked(digest: str, data: bytes) -> Workload:
    try:
        return unpack(data, LIMIT_BYTES)
    except ValueError as error:
        raise InvalidError(f"workload {digest}: {error}") from None


def _document(digest: str, data: bytes) -> dict[str, Any]:
    workload = _unpacked(digest, data)
    return {
        "sha256": digest,
        "name": workload.name,
        "ranks": workload.ranks,
        "operations": workload.operations,
        "bytes": len(data),
    }
