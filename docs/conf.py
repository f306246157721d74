"""The documentation site: `make docs` builds it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "CORL twins"
author = "The CORL twins authors"

extensions = [
    "myst_parser",
    "sphinx_design",
    "leftovers",
    "line_breaks",
    "mathml",
    "repository",
    "side_by_side",
    "tables",
]
exclude_patterns = ["_build"]

# A link to a heading is checked; so deep are the pages' headings.
myst_heading_anchors = 3

# Formulas between dollars, as GitHub has them
myst_enable_extensions = ["dollarmath"]
html_math_renderer = "mathml"

pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

html_theme = "furo"
html_title = project
html_favicon = "_static/icon.svg"
html_static_path = ["_static"]
html_css_files = ["site.css", "side_by_side.css"]
html_js_files = ["site.js", "side_by_side.js"]
html_copy_source = False
html_use_index = False
html_show_copyright = False
html_theme_options = {
    "light_css_variables": {"twins-torch": "#c2410c", "twins-jax": "#1d4ed8"},
    "dark_css_variables": {"twins-torch": "#fb923c", "twins-jax": "#7aa8ff"},
}
