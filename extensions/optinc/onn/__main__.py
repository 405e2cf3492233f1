"""``python -m ringlight.extensions.optinc.onn``."""

from ringlight.extensions.optinc.onn.command import app

if __name__ == "__main__":
    app(prog_name="python -m ringlight.extensions.optinc.onn")
