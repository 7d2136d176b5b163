"""How Sphinx makes the site. `make docs` puts the pages together first (tools/docs_site.py), then calls it on them."""

import gc
from functools import cache
from html import escape
from importlib.metadata import version as installed
from typing import Any

from sphinx.addnodes import toctree
from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish

gc.set_threshold(200_000, 20, 100)
"""Trees of pages are many objects and live to the end: Python's own 700 had them looked at for a fifth of the time."""
SearchEnglish.stem = cache(SearchEnglish.stem)
"""Sphinx keeps the stem of a word for a page, and most words are on many."""

project = "Horarium"
author = "The Horarium contributors"
version = release = installed("horarium")
language = "en"

extensions = ["myst_parser", "sphinx_copybutton"]
root_doc = "contents"
exclude_patterns = ["files/**"]
source_suffix = {".md": "markdown"}

myst_heading_anchors = 4
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # annotations name types that have no page
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "furo"
html_title = f"Horarium {release}"
html_static_path = ["static"]
html_css_files = ["pages.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#2d4a94",
        "color-brand-content": "#2d4a94",
        "color-background-primary": "#faf9f6",
        "color-background-secondary": "#f3f1ec",
    },
    "dark_css_variables": {
        "color-brand-primary": "#a3b8f2",
        "color-brand-content": "#a3b8f2",
        "color-background-primary": "#131519",
        "color-background-secondary": "#191c21",
    },
}


def setup(app: Sphinx) -> None:
    """Called by Sphinx: before the theme reads it, the list of all pages is replaced by one that is made once. Sphinx
    would make it for each page out of the headings of all of them, which takes more than half of the time."""

    @cache
    def groups() -> list[tuple[str, list[tuple[str, str]]]]:
        trees = app.env.get_doctree(root_doc).findall(toctree)
        return [(tree["caption"], [(page, _title(app, page)) for _, page in tree["entries"]]) for tree in trees]

    def use_list(app: Sphinx, here: str, template: str, context: dict[str, Any], *rest: Any) -> None:
        context["toctree"] = lambda **_: "".join(
            f'<p class="caption" role="heading"><span class="caption-text">{escape(caption)}</span></p>\n'
            + ('<ul class="current">\n' if here in dict(pages) else "<ul>\n")
            + "".join(_entry(app, here, page, title) for page, title in pages)
            + "</ul>\n"
            for caption, pages in groups()
        )

    app.connect("html-page-context", use_list, priority=400)


def _title(app: Sphinx, page: str) -> str:
    """As a heading of that page has it, with its code."""
    return str(app.builder.render_partial(app.env.titles[page])["title"])


def _entry(app: Sphinx, here: str, page: str, title: str) -> str:
    current, link = ("current ", "#") if page == here else ("", app.builder.get_relative_uri(here, page))
    return f'<li class="toctree-l1 {current}"><a class="{current}reference internal" href="{link}">{title}</a></li>\n'
