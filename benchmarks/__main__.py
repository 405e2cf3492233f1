"""Starts a benchmark: ``python -m benchmarks NAME [PART …] [options]``; without a name, lists them."""

from __future__ import annotations

import ast
import signal
import sys
from pathlib import Path

from benchmarks.harness import start


def programs() -> dict[str, str]:
    """First line of what each benchmark says of itself, by name."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = [
            ast.unparse(node.targets[0])
            for node in tree.body
            if isinstance(node, ast.Assign)
        ]
        if "PARTS" in names:
            found[path.stem] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def main() -> None:
    known = programs()
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in known:
        # Whoever ends it early leaves no lab behind, as with Ctrl-C.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        start(name, sys.argv[2:])
    elif name in ("-h", "--help"):
        print(__doc__ or "")
        print("\n".join(f"  {name:16} {line}" for name, line in known.items()))
    else:
        sys.exit(f"there is no benchmark {name}; there are {', '.join(known)}")


if __name__ == "__main__":
    main()
