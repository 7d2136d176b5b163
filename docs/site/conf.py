"""How Sphinx makes the site. `make docs` puts the pages together first (tools/docs_site.py), then calls it on them."""

from importlib.metadata import version as installed

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
