"""The pages of the repository, with links that hold in the site.

A link to a file that is no page leads to a page that shows this file, under ``code/``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")
_PICTURES = (".png", ".gif", ".svg")
_LANGUAGES = {
    ".py": "python",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".toml": "toml",
    ".json": "json",
    ".xml": "xml",
    ".sh": "bash",
}
#: Where README is the first page of all.
HOME = Path("index.md")
_RENAMED = {Path("README.md"): HOME}


def staged(page: Path) -> Path:
    """Return the place of a page in the site's source, both as paths from their roots."""
    return _RENAMED.get(page, page)


def write_pages(root: Path, out: Path, pages: Iterable[Path]) -> set[Path]:
    """Write pages into the site's source, and their pictures. Return the other files that they link to."""
    known, linked = set(pages), set[Path]()
    for page in known:
        text = (root / page).read_text(encoding="utf-8")
        for target in targets(text, page):
            if target.suffix in _PICTURES and (root / target).is_file():
                copy(root / target, out / target)
            elif target not in known and (root / target).exists():
                linked.add(target)
        _write(out / staged(page), rewritten(text, page, known, linked))
    return linked


def targets(text: str, page: Path) -> Iterator[Path]:
    """Yield the files that a page links to, as paths from the root."""
    for _, link, _ in _LINK.findall(_FENCE.sub("", text)):
        if path := _target(link, page):
            yield path


def _target(link: str, page: Path) -> Path | None:
    """Return the file that a link leads to, as a path from the root; None for none of the repository."""
    name = link.partition("#")[0]
    if not name or "://" in name or name.startswith("mailto:"):
        return None
    return Path(os.path.normpath(page.parent / name))


def rewritten(text: str, page: Path, known: set[Path], linked: set[Path]) -> str:
    """Return a page's text with links as the site has them. ``known``: pages; ``linked``: other files."""
    here = staged(page).parent

    def link(match: re.Match[str]) -> str:
        path = _target(match[2], page)
        _, mark, anchor = match[2].partition("#")
        if path in known:
            place = f"{os.path.relpath(staged(path), here)}{mark}{anchor}"
        elif path in linked:
            place = os.path.relpath(code_page(path), here)
        else:
            place = match[2]
        return f"{match[1]}{place}{match[3]}"

    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [_LINK.sub(link, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(link, text[end:])])


def code_page(path: Path) -> Path:
    """Return the page that shows a file or a folder."""
    return Path("code") / path.parent / f"{path.name}.md"


def write_code(root: Path, out: Path, paths: Iterable[Path]) -> None:
    """Write a page for each file, and for each folder with its files."""
    for path in paths:
        lines = ["---", "orphan: true", "nosearch: true", "---", f"# {path}", ""]
        for file in _files(root / path):
            if file != root / path:
                lines += [f"## {file.relative_to(root / path)}", ""]
            lines += [*listing(file), ""]
        _write(out / code_page(path), "\n".join(lines))


def _files(path: Path) -> Iterator[Path]:
    """Yield a file, or the text files of a folder."""
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*")):
        hidden = any(part.startswith((".", "__pycache__")) for part in file.parts)
        if file.is_file() and file.stat().st_size and not hidden and _is_text(file):
            yield file


def _is_text(file: Path) -> bool:
    try:
        file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    return True


def listing(file: Path) -> list[str]:
    """Return the Markdown lines that show a file's text."""
    text = file.read_text(encoding="utf-8").rstrip("\n")
    fence = "`" * (max(map(len, re.findall("`+", text)), default=2) + 3)
    language = _LANGUAGES.get(file.suffix, "text")
    return [f"{fence}{language}", text, fence]


def toctree(entries: Mapping[str, Path]) -> list[str]:
    """Return the Markdown lines that put pages into the navigation, by their titles there."""
    lines = [f"{title} </{path.with_suffix('')}>" for title, path in entries.items()]
    return ["```{toctree}", ":hidden:", "", *lines, "```", ""]


def write(path: Path, lines: Iterable[str]) -> None:
    """Write a page of these lines."""
    _write(path, "\n".join(lines))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def copy(source: Path, target: Path) -> None:
    """Copy a file, and make the folder that it goes to."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(source.read_bytes())
