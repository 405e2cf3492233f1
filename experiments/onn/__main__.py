"""``python -m experiments.onn``."""

from experiments.onn.command import app

if __name__ == "__main__":
    app(prog_name="python -m experiments.onn")
