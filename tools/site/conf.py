"""Sphinx' settings for `make docs`: the clone's Markdown, and docstrings of public names."""

from importlib import metadata

project, release = "albert_tf", metadata.version("albert_tf")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["*.md", ".github/SECURITY.md", "docs/*.md", "findings/*.md", "research/**.md"]
exclude_patterns = [".venv*", "build", "demo", "exported"]

# Links to headings are GitHub's.
myst_heading_anchors = 4

napoleon_custom_sections = ["Source", "Differs"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"
default_role = "code"

html_theme = "furo"
html_title = "albert_tf"
html_extra_path = ["root"]
