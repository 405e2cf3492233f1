"""Writes the site; see ``docs.site``."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from docs.site.contents import Group, groups, pages
from docs.site.links import broken
from docs.site.pages import HOME, staged, toctree, write, write_code, write_pages

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: Iterable[str]) -> int:
    """Run the command line. Return 0 if the site is whole, else 1."""
    parser = argparse.ArgumentParser(prog="python -m docs.site", description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "build" / "site")
    out = parser.parse_args(list(arguments)).out
    try:
        from sphinx.cmd.build import build_main
    except ImportError:
        print("docs.site: Sphinx is missing: pip install ringlight[docs]", file=sys.stderr)
        return 1
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ringlight-site-") as folder:
        source = Path(folder, "source")
        write_source(source)
        print(f"docs.site: source after {time.monotonic() - began:.0f} s", flush=True)
        # Strict: a warning is an error.
        options = ["-q", "-W", "--keep-going", "-j", "auto", "-b", "html"]
        places = ["-c", str(ROOT / "docs/site"), "-d", f"{folder}/trees"]
        code = build_main([*options, *places, str(source), str(out)])
    for line in (wrong := list(broken(out))):
        print(f"docs.site: {line}", file=sys.stderr)
    print(f"docs.site: {out} after {time.monotonic() - began:.0f} s")
    return 1 if code or wrong else 0


def write_source(source: Path) -> None:
    """Write what Sphinx reads: pages, navigation, gallery and reference."""
    from docs.site import gallery, reference

    every = pages(ROOT)
    linked = write_pages(ROOT, source, every)
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


def _group_page(group: Group, entries: dict[str, Path]) -> list[str]:
    links = [f"- [{title}]({path})" for title, path in entries.items()]
    return [f"# {group.title}", "", group.sentence, "", *links, "", *toctree(entries)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
