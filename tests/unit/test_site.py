"""The site of the documentation: its navigation, its links and its pictures, without building it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from matplotlib.patches import FancyBboxPatch

from docs.site.__main__ import main
from docs.site.contents import CONTENTS, groups, mistakes, pages
from docs.site.gallery import first_run
from docs.site.links import broken
from docs.site.pages import listing, rewritten, targets, write_code, write_pages
from docs.site.routes import documents, routes
from docs.site.topology import MOST, topology
from ringlight.experiments.language.bundled import SCENARIOS, listed

ROOT = Path(__file__).resolve().parents[2]


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_every_page_is_in_the_navigation_once() -> None:
    """For a new page, add a line to docs/site/contents.md."""
    assert list(mistakes(ROOT)) == []


def test_mistakes_of_the_navigation_are_named(tmp_path: Path) -> None:
    contents = (
        "# Contents\n\n## Run it\n\nA sentence.\n\n"
        "- [A](../a.md)\n- [A again](../a.md)\n- [B](../none.md)\n- Gone\n"
    )
    root = tree(
        tmp_path,
        {
            str(CONTENTS): contents,
            "docs/a.md": "# A\n",
            "docs/c.md": "# C\n",
            "README.md": "# R\n",
        },
    )
    assert list(mistakes(root)) == [
        f"{CONTENTS}: docs/a.md is listed 2 times; list it once",
        f"{CONTENTS}: docs/c.md is listed 0 times; list it once",
        f"{CONTENTS}: there is no page docs/none.md",
    ]
    (group,) = groups(root)
    assert (group.title, group.slug, group.sentence) == (
        "Run it",
        "run-it",
        "A sentence.",
    )


def test_links_of_pages_lead_to_pages_of_the_site(tmp_path: Path) -> None:
    text = (
        "[home](../README.md#start) [rest](rest.md#a) [code](../fabric/x.py) ![p](images/p.png) [far](https://a.b)\n"
        "```\n[home](../README.md)\n```\n[folder](switch) [gone](none.md) [here](#x)\n"
    )
    page = Path("docs/a.md")
    files = {
        "docs/a.md": text,
        "docs/images/p.png": "",
        "fabric/x.py": "x = 1\n",
        "docs/switch/y.py": "y = '```'\n",
        "docs/switch/part/z.yaml": "z: 1\n",
        "docs/switch/.hidden": "no",
    }
    root, out = tree(tmp_path / "in", files), tmp_path / "out"
    assert Path("README.md") in targets(text, page)
    linked = write_pages(root, out, [page])
    assert linked == {Path("fabric/x.py"), Path("docs/switch")}
    known = {page, Path("README.md"), Path("docs/rest.md")}
    assert rewritten(text, page, known, linked) == (
        "[home](../index.md#start) [rest](rest.md#a) [code](../code/fabric/x.py.md) ![p](images/p.png) "
        "[far](https://a.b)\n```\n[home](../README.md)\n```\n"
        "[folder](../code/docs/switch.md) [gone](none.md) [here](#x)\n"
    )
    assert (out / "docs/images/p.png").exists()
    write_code(root, out, linked)
    shown = (out / "code/docs/switch.md").read_text()
    assert "## part/z.yaml\n\n`````yaml\nz: 1\n`````\n" in shown
    assert "## y.py" in shown
    assert "hidden" not in shown
    assert listing(root / "docs/switch/y.py")[0] == "``````python"


def test_a_link_that_leads_nowhere_and_a_file_from_elsewhere_are_found(
    tmp_path: Path,
) -> None:
    site = tree(
        tmp_path,
        {
            "index.html": '<a href="a.html#x"></a><a href="a.html#y"></a><a href="b.html"></a><a href="#top"></a>'
            '<a href="https://a.b/"></a><script src="https://cdn.example/x.js"></script><p id="top">',
            "a.html": '<h1 id="x"><img src="data:image/png;base64,AA"><link href="s.css">',
        },
    )
    assert list(broken(site)) == [
        "a.html: s.css leads nowhere",
        "index.html: loads https://cdn.example/x.js",
        "index.html: a.html#y leads nowhere",
        "index.html: b.html leads nowhere",
    ]


@pytest.mark.parametrize("name", sorted(listed()))
def test_an_example_has_a_picture_that_a_page_can_show(name: str) -> None:
    figure = topology(first_run(SCENARIOS / name))
    (axis,) = figure.axes
    assert {text.get_text() for text in axis.texts}
    boxes = [patch for patch in axis.patches if isinstance(patch, FancyBboxPatch)]
    rows = Counter(round(box.get_y(), 3) for box in boxes)
    assert 0 < max(rows.values()) <= MOST


def test_the_api_is_shown_with_its_bodies_and_errors() -> None:
    job = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"type": "string", "maxLength": 9}},
    }
    reference = {"application/json": {"schema": {"$ref": "#/components/schemas/Job"}}}
    call = {
        "tags": ["jobs"],
        "summary": "Post",
        "description": "Start a job.",
        "parameters": [{"name": "dry", "in": "query", "schema": {"enum": ["a", "b"]}}],
        "requestBody": {"content": reference},
        "responses": {
            "200": {"description": "Done", "content": reference},
            "409": {"description": "Not | now"},
        },
    }
    description = {
        "info": {"description": "An API."},
        "paths": {"/v1/jobs": {"post": call}},
        "components": {"schemas": {"Job": job}},
    }
    page = "\n".join(routes(description))
    for line in (
        "| 409 | Not \\| now |",
        "## Jobs",
        "### `POST /v1/jobs`",
        "| `dry` | query | `a` or `b` |  |",
        "Body: [Job](documents.md#job).",
        "Answer 200: [Job](documents.md#job).",
        "Errors: 409.",
    ):
        assert line in page.splitlines(), line
    assert "| `name`, required | string, characters at most: 9 |  |" in documents(
        description
    )


def test_a_folder_that_is_no_site_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert main([str(tmp_path)]) == 1
    assert (
        capsys.readouterr().err
        == f"docs.site: {tmp_path} is there and is no site; name another folder\n"
    )
    assert (tmp_path / "mine.txt").exists()


def test_the_readme_is_a_page() -> None:
    assert Path("README.md") in pages(ROOT)
