"""Write the page with its runs into one file that opens without a server."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Sequence
from typing import Any

from ringlight.extensions.page.page_files import PAGE, index_of
from ringlight.extensions.page.recorded import Recorded

#: How a module names another one of the page.
_IMPORT = re.compile(r'(\bfrom |\bimport\(|\bimport )"\./([^"]+)"')
_MODULE = re.compile(r'<script type="module" src="([^"]+)"></script>')
_AHEAD = re.compile(r'<link rel="modulepreload" href="([^"]+)">\n')
_SCRIPT = re.compile(r'<script src="([^"]+)"></script>')
_SHEET = re.compile(r'<link rel="stylesheet"( id="\w+")? href="([^"]+)">')
#: What could end a script that it stands in.
_CLOSES = re.compile(r"<(?=[!/]|script)", re.IGNORECASE)


def single_file(folders: Sequence[Recorded], *, most_bytes: float = math.inf) -> str:
    """Return one HTML file with the recorded runs: always the first, then more until ``most_bytes`` is
    reached.

    The file loads nothing, and runs no script but its own.
    """
    indexes, size = [folder.index() for folder in folders], 0
    for folder, index in zip(folders, indexes, strict=True):
        kept = []
        for known in index["takes"]:
            if size < most_bytes:
                known["take"] = folder.take(known["name"])
                size += len(json.dumps(known["take"], separators=(",", ":")))
                kept.append(known)
        index["left_out"], index["takes"] = len(index["takes"]) - len(kept), kept
    page = _AHEAD.sub("", index_of("file"))
    scripts = [_read(name) for name in _SCRIPT.findall(page)]
    imports = json.dumps(
        {"imports": {_alias(name): _data(name) for name in _modules()}}
    )
    (entry,) = _MODULE.findall(page)
    start = f'import "{_alias(entry)}";'
    inline = [*scripts, imports, start]
    hashes = " ".join(f"'sha256-{_sha256(text)}'" for text in inline)
    policy = (
        f"default-src 'none'; script-src data: {hashes}; style-src 'unsafe-inline'; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )
    page = _SHEET.sub(
        lambda match: f"<style{match[1] or ''}>{_read(match[2])}</style>", page
    )
    page = _SCRIPT.sub(lambda match: f"<script>{_read(match[1])}</script>", page)
    recorded = _data_text(indexes)
    last = f'<script type="importmap">{imports}</script>{recorded}<script type="module">{start}</script>'
    page = _MODULE.sub(lambda _: last, page)
    head = f'<meta charset="utf-8">\n<meta http-equiv="content-security-policy" content="{policy}">'
    return page.replace('<meta charset="utf-8">', head, 1)


def _data_text(documents: Any) -> str:
    text = _CLOSES.sub("\\\\u003c", json.dumps(documents, separators=(",", ":")))
    return f'<script type="application/json" id="recorded">{text}</script>'


def _modules() -> list[str]:
    """Every module of the page; a script that is none is in the page itself."""
    names = (path.relative_to(PAGE).as_posix() for path in sorted(PAGE.rglob("*.js")))
    return [name for name in names if name not in _SCRIPT.findall(index_of("file"))]


def _alias(name: str) -> str:
    return f"page/{name}"


def _read(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")


def _data(name: str) -> str:
    """A module as an address of its own, its imports by what the map calls them."""
    text = _IMPORT.sub(lambda match: f'{match[1]}"{_alias(match[2])}"', _read(name))
    return f"data:text/javascript;base64,{base64.b64encode(text.encode()).decode()}"


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
