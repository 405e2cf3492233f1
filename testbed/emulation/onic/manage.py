"""Word to an O-NIC's agent at its management socket, from the lab that emulates its control network."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Longest wait for an answer, seconds.
ANSWER_S = 2.0


def emulate(manage: Path, faults: Mapping[str, Any]) -> None:
    """Have an agent delay and lose its messages from now on (``emulate``, docs/onic-protocol.md).

    Read back. Raises OSError when it does not answer, refuses, or took it otherwise.
    """
    gpu = manage.parent.name
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_S)
        connection.connect(str(manage))
        with connection.makefile("rwb") as stream:
            stream.write(json.dumps({"op": "emulate", **faults}).encode() + b"\n")
            stream.flush()
            answer = json.loads(stream.readline() or b"{}")
    if answer.get("ok") is not True:
        raise ConnectionError(
            f"agent of O-NIC {gpu}: {answer.get('error', 'it hung up')}"
        )
    for name, value in faults.items():
        if (actual := answer["emulate"].get(name)) != value:
            raise ConnectionError(
                f"agent of O-NIC {gpu}: {name} is {actual}, not {value}"
            )
