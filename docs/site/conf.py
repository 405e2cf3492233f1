"""Settings of Sphinx."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "Ringlight"
author = "Ringlight"
project_copyright = "Apache-2.0"
root_doc = "index"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sphinx_design",
]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 6
highlight_language = "none"  # indented blocks: commands and their output
suppress_warnings = ["misc.highlighting_failure"]  # parts of files, with … in them
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
toc_object_entries_show_parents = "hide"
copybutton_exclude = ".linenos, .gp"

html_theme = "pydata_sphinx_theme"
html_title = "Ringlight"
html_favicon = "static/favicon.svg"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "header_links_before_dropdown": 9,
    "navbar_align": "left",
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "footer_start": ["sphinx-version"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}


def setup(app: Sphinx) -> None:
    """Have docstrings read as they are written here."""
    app.connect("autodoc-process-docstring", _with_literal_blocks)


def _with_literal_blocks(*event: Any) -> None:
    """Mark indented blocks of a docstring as code, which reStructuredText takes for quotations."""
    lines: list[str] = event[-1]
    text = re.sub(r"(?m)^(?=\S)(?!\.\. )(.+)\n\n(?= {4}\S)", r"\1\n\n::\n\n", "\n".join(lines))
    lines[:] = text.split("\n")
