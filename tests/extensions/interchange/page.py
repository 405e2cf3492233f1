"""The commands of docs/interchange.md with their outputs.

.venv/bin/python -m tests.extensions.interchange.page      # runs them, and writes the outputs into the page
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/interchange.md"
BLOCK = re.compile(r"^```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def answered(block: str) -> str:
    """Return the commands of a block, each with what it prints on both streams."""
    commands = [line for line in block.splitlines() if line.startswith("$ ")]
    shown = ""
    for command in commands:
        words = command.removeprefix("$ ")
        program = f"{sys.executable} -m ringlight.experiments.cli.app"
        done = subprocess.run(
            ["sh", "-c", words.replace("./ringlight", program)],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=120, check=False,
        )  # fmt: skip
        shown += f"{command}\n{done.stdout}"
    return shown


def renewed(page: str) -> str:
    """Return a page with the outputs of its commands as they are now."""
    (ROOT / "build").mkdir(exist_ok=True)
    return BLOCK.sub(lambda block: f"```text\n{answered(block[1])}```", page)


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
