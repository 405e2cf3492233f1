"""Calls of Slurm's own commands."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from ringlight.extensions.slurm.partitions import SlurmError

#: Longest wait for a command, seconds. Without a slurmctld ``scontrol`` itself gives up after 9 s.
DEADLINE_S = 12.0


#: What Slurm's commands write if slurmctld does not answer them, and if it closes their connection.
_SILENT = ("Unable to contact slurm controller", "timed out")
_DROPPED = "Zero Bytes were transmitted or received"


class SlurmSilentError(SlurmError):
    """Slurm's controller does not answer; the call may be repeated."""


class SlurmDroppedError(SlurmSilentError):
    """Slurm's controller closed the connection without an answer, as it may while it is reconfigured."""


def slurm(
    *words: str,
    deadline_s: float = DEADLINE_S,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a command of Slurm and return its output. ``environment``: by default this process's.

    Raises SlurmError with the last line that it wrote, SlurmSilentError if slurmctld did not answer.
    """
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=deadline_s,
            check=False,
            env=environment,
        )
    except FileNotFoundError:
        raise SlurmError(
            f"{words[0]} is not installed: apt-get install slurm-client"
        ) from None
    except subprocess.TimeoutExpired:
        raise SlurmSilentError(
            f"{' '.join(words)}: not done after {deadline_s:g} s"
        ) from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        reason = lines[-1] if lines else f"exit code {done.returncode}"
        raise _kind(reason)(f"{words[0]}: {reason}")
    return done.stdout


def _kind(reason: str) -> type[SlurmError]:
    """Return the error that a line of one of Slurm's commands stands for."""
    if _DROPPED in reason:
        return SlurmDroppedError
    is_silent = any(text in reason for text in _SILENT)
    return SlurmSilentError if is_silent else SlurmError
