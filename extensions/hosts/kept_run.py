"""``python -m ringlight.extensions.hosts.kept_run STATE``: does what is to go on without its worker.

That is a run of a lab over several hosts, or a lab that stands. A Dask worker of the lab's first host starts
it and waits for its end.
"""

from __future__ import annotations

import pickle
import signal
import sys
from pathlib import Path
from typing import Any

from ringlight.experiments.backends.protocol import BackendError
from ringlight.extensions.hosts.backend import MADE, ORDER
from ringlight.fabric.text import visible
from ringlight.testbed.lab import Lab, LabError


def main() -> int:
    state = Path(sys.argv[1])
    ended: list[int] = []

    def on_signal(number: int, _frame: Any) -> None:
        ended.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, on_signal)
    work = pickle.loads((state / ORDER).read_bytes())
    with Lab(state.name).hold():
        try:
            made = work(state, lambda: bool(ended))
        except (BackendError, LabError, OSError) as error:
            sys.stderr.write(f"{visible(str(error))}\n")
            return 1
        whole = state / f"{MADE}.new"
        whole.write_bytes(pickle.dumps(made))
        whole.rename(state / MADE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
