"""Writes the site; see ``docs.site``."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from docs.site.contents import Group, groups, pages
from docs.site.links import broken
from docs.site.pages import HOME, staged, toctree, write, write_code, write_pages

ROOT = Path(__file__).resolve().parents[2]
#: A file that every site has.
_MARK = "searchindex.js"


def main(arguments: Sequence[str]) -> int:
    """Run the command line. Return 0 if the site is whole, else 1."""
    parser = argparse.ArgumentParser(prog="python -m docs.site", description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "build/site")
    out = parser.parse_args(arguments).out
    if out.exists() and not (out / _MARK).exists():
        return _fail(f"{out} is there and is no site; name another folder")
    try:
        import myst_parser  # noqa: F401
        from sphinx.cmd.build import build_main
    except ImportError as error:
        return _fail(f"{error.name} is not installed: pip install 'ringlight[docs]'")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ringlight-site-") as folder:
        source, made = Path(folder, "source"), Path(folder, "site")
        print("docs.site: draws the examples and reads the API", flush=True)
        write_source(source)
        print("docs.site: makes the pages", flush=True)
        # Strict: a warning is an error.
        options = ["-q", "-W", "--keep-going", "-j", "auto", "-b", "html"]
        places = ["-c", str(ROOT / "docs/site"), "-d", f"{folder}/trees"]
        if build_main([*options, *places, str(source), str(made)]):
            return _fail("a page is wrong; see the lines above")
        if wrong := list(broken(made)):
            return _fail("\n".join(wrong))
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(made, out)
    count = sum(1 for _ in out.rglob("*.html"))
    print(f"docs.site: {out}/index.html, {count} pages in {time.monotonic() - began:.0f} s")
    return 0


def _fail(text: str) -> int:
    print(f"docs.site: {text}", file=sys.stderr)
    return 1


def write_source(source: Path) -> None:
    """Write what Sphinx reads: pages, navigation, gallery and reference."""
    from docs.site import gallery, reference

    linked = write_pages(ROOT, source, pages(ROOT))
    write_code(ROOT, source, linked)
    reference.write_reference(source)
    gallery.write_gallery(source)
    tops = {}
    for group in groups(ROOT):
        entries = {title: staged(page) for title, page in group.pages}
        if group.title == "Reference":
            entries = {**reference.PAGES, **entries}
        tops[group.title] = Path(f"{group.slug}.md")
        write(source / tops[group.title], _group_page(group, entries))
        if group.title == "Start":
            tops["Examples"] = gallery.INDEX
    home = source / HOME
    write(home, [home.read_text(encoding="utf-8"), "", *toctree(tops)])


def _group_page(group: Group, entries: Mapping[str, Path]) -> list[str]:
    links = [f"- [{title}]({path})" for title, path in entries.items()]
    return [f"# {group.title}", "", group.sentence, "", *links, "", *toctree(entries)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
