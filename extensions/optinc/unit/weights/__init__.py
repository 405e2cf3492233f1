"""Trained weights: the file, the note next to it, and those that come with the program.

A file is numpy's ``npz`` with w1, b1, w2 .. in float32. Its note, JSON, says what made it, and has the file's
sha256, so that weights and note cannot be mixed up.
"""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import asdict, dataclass
from importlib import resources
from zipfile import BadZipFile

import numpy as np

from ringlight.extensions.optinc.unit.network import Network


@dataclass(frozen=True)
class Note:
    """Description of a file of weights.

    case                     of ``structure.CASES``
    method, seed, command    how it was trained; ``command`` makes it again
    torch                    its version; another version, processor or number of threads gives other bits
    inputs, wrong, worst     of the check: combinations, wrong answers, and the largest distance of an output
                             from its goal, in levels
    wall_s, processor_s      seconds that training took, without the check
    sha256                   of the file
    """

    case: str
    method: str
    seed: int
    command: str
    torch: str
    inputs: int
    wrong: int
    worst: float
    wall_s: float
    processor_s: float
    sha256: str

    def to_json(self) -> str:
        """Return the note as the JSON text that is kept next to the file."""
        return json.dumps(asdict(self), indent=2) + "\n"


def pack(network: Network) -> bytes:
    """Return the file of a network; the same network gives the same bytes."""
    arrays = {f"w{number}": weight for number, weight in enumerate(network.weights, 1)}
    arrays |= {
        f"b{number}": bias for number, bias in enumerate(network.biases or (), 1)
    }
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays)
    return file.getvalue()


def unpack(file: bytes) -> Network:
    """Return the network of a file. Raises ValueError for bytes that are not such a file."""
    try:
        with np.load(io.BytesIO(file)) as arrays:
            count = sum(name.startswith("w") for name in arrays)
            weights = tuple(arrays[f"w{number}"] for number in range(1, count + 1))
            biases = (
                tuple(arrays[f"b{number}"] for number in range(1, count + 1))
                if "b1" in arrays
                else None
            )
        return Network(weights, biases)
    except (BadZipFile, EOFError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no weights of a network: {error}") from None


def note_of(file: bytes, text: str | bytes) -> Note:
    """Return the note of a file, from its JSON.

    Raises ValueError for another form, or the note of another file.
    """
    try:
        note = Note(**json.loads(text))
    except (TypeError, ValueError) as error:
        raise ValueError(f"the note beside it: {error}") from None
    if (digest := hashlib.sha256(file).hexdigest()) != note.sha256:
        raise ValueError(
            f"the note beside it is of another file: sha256 {note.sha256}, this is {digest}"
        )
    return note


def trained(case: str) -> tuple[Network, Note]:
    """Return the weights of a case that come with the program, and their note.

    These files are part of the program as its code is; nothing else is read in ``fabric``. Raises ValueError
    if there are none for the case.
    """
    place = resources.files(__name__)
    if not (place / f"{case}.npz").is_file():
        raise ValueError(f"{case}: there are no trained weights of this case")
    file = (place / f"{case}.npz").read_bytes()
    return unpack(file), note_of(file, (place / f"{case}.json").read_bytes())
