"""Settings of the documentation. `docs/build.py` (or `make docs`) builds it; no network at any point."""

from __future__ import annotations

import shutil
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from generators import citations  # noqa: E402

import unhinge  # noqa: E402

project = "unhinge"
author = "The unhinge developers"
copyright = author
version = release = unhinge.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    *([] if "fast" in tags else ["sphinx.ext.viewcode"]),  # noqa: F821  (Sphinx defines tags)
]
nitpicky = True
# Other projects' names stay without links: looking them up would need the network.
nitpick_ignore_regex = [
    (r"py:class", r"Figure|Axes"),  # matplotlib's, named for the type checker only
    (r"py:class", r"dict\[str"),  # Sphinx cuts the text "dict[str, Tensor]" of an annotation at its comma
    (r"py:.*", r"(torch|numpy|np|npt|matplotlib|sklearn|rich|flask|dash|collections|typing|pathlib|abc)(\..*)?"),
    (r"py:.*", r"(datasets|ray|pyspark|dask|pandas|pyarrow)\..*"),
]

myst_enable_extensions = ["amsmath", "attrs_block", "attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4

# Docstrings: `x` in single backticks is code, "Arguments:" and "Example:" are napoleon's own sections.
default_role = "code"
napoleon_numpy_docstring = False
napoleon_use_param = False  # "device, dtype: ..." describes two arguments at once
napoleon_use_rtype = False
autodoc_inherit_docstrings = False  # torch's own words on forward() are of no help here
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

# MathJax comes from the package sphinx-mathjax-offline: of its 24 MB, what TeX in, HTML out needs is copied below.
mathjax_path = "mathjax/tex-chtml.js"
mathjax_options = {"defer": "defer"}
mathjax3_config = {"options": {"enableMenu": False}}  # the menu would load parts that are not copied

html_theme = "pydata_sphinx_theme"
html_title = "unhinge"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_logo = "_static/logo.svg"
html_favicon = "_static/logo.svg"
html_copy_source = False
html_show_sourcelink = False
ALONE = ("index", "catalogue", "changelog", "claims", "command", "equations", "errata", "performance")
html_sidebars = {page: [] for page in ALONE}  # no pages below them: the room goes to the text
html_theme_options: dict[str, Any] = {
    "logo": {"text": "unhinge"},
    "navbar_end": ["theme-switcher"],
    "navbar_persistent": ["search-button"],
    "header_links_before_dropdown": 7,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 2,
    "back_to_top_button": True,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def copy_mathjax(app: Sphinx) -> None:
    """The script, its fonts and TeX extensions, into the site's own static folder."""
    if app.builder.format != "html":
        return
    source = Path(str(distribution("sphinx-mathjax-offline").locate_file("sphinx-mathjax-offline/static/mathjax")))
    target = Path(app.outdir) / "_static" / "mathjax"
    for part in ("output/chtml/fonts", "input/tex/extensions"):
        shutil.copytree(source / part, target / part, dirs_exist_ok=True)
    shutil.copy(source / "tex-chtml.js", target / "tex-chtml.js")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", copy_mathjax)
    citations.setup(app)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
