"""The same training in one process: what every rank of a job must end with, bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from ringlight.experiments.backends.protocol import BackendError
from ringlight.experiments.record.writing import writing
from ringlight.testbed.lab import Lab
from ringlight.testbed.process_start import start_process

#: Deadline of one such training, seconds.
REFERENCE_S = 120.0
#: What of a job's request decides its outcome.
_DECISIVE = (
    "collective",
    "gradient_bytes",
    "iterations",
    "batch",
    "seed",
    "learning_rate",
)
#: And where devices do its collective what they compute.
_PLACE = "place"


class References:
    """Trains in one process of this machine, once for jobs that must end alike.

    May outlive a lab: what a training ends with does not depend on where it runs, nor on numpy and BLAS there
    (``containers.worker.arithmetic``).
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], dict[str, Any]] = {}

    def outcome_of(
        self, lab: Lab, request: Mapping[str, Any], segments: Sequence[tuple[int, int]]
    ) -> dict[str, Any]:
        """Return the outcome of the training of a ``POST /v1/jobs`` request: ``sha256`` of the parameters.

        If devices do its collective, also ``unlike``, the share of their answers that are not the mean.
        ``segments``: the number of ranks, each from an iteration on; more than one if the job lost GPUs.
        Raises BackendError.
        """
        key = (*segments, json.dumps(_decisive(request)))
        if key not in self._known:
            self._known[key] = _train(lab, request, segments)
        return self._known[key]


def _decisive(request: Mapping[str, Any]) -> dict[str, Any]:
    return {name: request[name] for name in (*_DECISIVE, _PLACE) if name in request}


def _train(
    lab: Lab, request: Mapping[str, Any], segments: Sequence[tuple[int, int]]
) -> dict[str, Any]:
    job, ranks = request["name"], segments[0][0]
    # Where the ranks are has no bearing on it.
    spec = {"job": job, "rank": 0, "world_size": ranks, "peers": ["10.0.0.1"] * ranks}
    path = lab.state_dir / "reference.json"
    with writing(path):
        path.write_text(json.dumps({**spec, **_decisive(request)}), encoding="utf-8")
    words = [f"{ranks}:{first}" for ranks, first in segments]
    command = [
        sys.executable,
        "-m",
        "ringlight.containers.worker.reference",
        str(path),
        *words,
    ]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as wrong:
        process = start_process(command, lab.environment(), output, errors=wrong)
        try:
            code = process.wait(REFERENCE_S)
        except subprocess.TimeoutExpired:
            why = f"took more than {REFERENCE_S:.0f} s"
            raise BackendError(
                f"the one-process reference of job {job} {why}"
            ) from None
        finally:
            process.kill()
            process.wait(10)
        output.seek(0)
        wrong.seek(0)
        if code:
            last = (
                wrong.read().decode(errors="replace").strip().splitlines()
                or ["no message"]
            )[-1]
            raise BackendError(f"the one-process reference of job {job} failed: {last}")
        outcome = json.load(output)
    return {
        "sha256": str(outcome["parameters_sha256"]),
        "unlike": outcome.get("unlike"),
    }
