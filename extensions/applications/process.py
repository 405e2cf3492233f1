"""The process of applications: its settings, which a file brings to the testbed, and its start."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringlight.testbed.lab import Lab
    from ringlight.testbed.process_start import Process

#: What the fabric file calls them.
APP = "app"


@dataclass(frozen=True)
class Applications:
    """Files of applications of others. ``openflow`` and ``rest``: where they wait for switches and for calls,
    ``host:port``. ``controller``: URL of our REST API, ``token_file``: with the token that it asks for,
    ``cacert``: what its certificate is checked with. ``observe_links``: they discover links between switches.
    """

    files: tuple[str, ...]
    openflow: str
    rest: str
    controller: str
    log: Path
    token_file: Path | None
    cacert: str | None = None
    observe_links: bool = False

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), default=str), encoding="utf-8")

    def start(self, lab: Lab, ready: Path) -> Process:
        """Start the process of the applications and return it. The process writes ``ready`` once the
        applications run. Raises OSError."""
        from ringlight.testbed.process_start import start_process

        ready.unlink(missing_ok=True)
        environment = {**lab.environment(), "RINGLIGHT_REST": self.controller}
        if self.token_file is not None:
            environment["RINGLIGHT_TOKEN"] = self.token_file.read_text(
                encoding="utf-8"
            ).strip()
        if self.cacert is not None:
            environment["RINGLIGHT_CACERT"] = self.cacert
        words = [
            "--openflow",
            self.openflow,
            "--rest",
            self.rest,
            "--ready",
            str(ready),
        ]
        words += ["--observe-links"] if self.observe_links else []
        with self.log.open("ab") as output:
            command = [
                sys.executable,
                "-m",
                "ringlight.extensions.applications.apps",
                *words,
                *self.files,
            ]
            return start_process(command, environment, output)
