"""``python -m ringlight.experiments.onn``."""

from ringlight.experiments.onn.command import app

if __name__ == "__main__":
    app(prog_name="python -m ringlight.experiments.onn")
