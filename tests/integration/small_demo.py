"""``python -m tests.integration.small_demo``: the command line, whose ``demo`` runs the small scenario."""

from pathlib import Path

from ringlight.experiments.cli import app
from ringlight.experiments.cli import experiments as commands

commands.BUNDLED = Path(__file__).parents[1] / "data" / "mini.yaml"

if __name__ == "__main__":
    app.main()
