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
    "sphinx_reredirects",
]
exclude_patterns = ["_build"]

# All pages once stood beside this file. Their addresses of then lead to where they stand now.
_MOVED = {
    "algorithms": (
        "any_percent_bc awac awr bcq bear cql crr discrete_bc discrete_bcq discrete_cql discrete_iql "
        "discrete_sac dt edac evaluation_fqe finetune_awac finetune_balanced_replay finetune_cal_ql "
        "finetune_cql finetune_fql finetune_iql finetune_rebrac finetune_spot fql iql lb_sac "
        "model_based_combo model_based_dynamics model_based_mopo online_ddpg online_dqn online_td3 plas prdc "
        "rebrac sac sac_n td3_bc uwac xql"
    ),
    "guides": "data deploy environments runs scores sweeps",
    "port": "case_studies check exercises primer side_by_side ten_steps traps",
    "proof": "architecture mutants promises",
    "speed": "growth speed",
}
redirects = {name: f"{folder}/{name}.html" for folder, names in _MOVED.items() for name in names.split()}
redirects["algorithms"] = "algorithms/index.html"

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
