"""How Sphinx builds the site of the documents from docs/ (make docs).

Sphinx with MyST reads the documents as CommonMark, as GitHub does. An environment of its own builds
the site; the package that the site describes is that of .venv.
"""

from __future__ import annotations

import site
import sys
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(CHECKOUT / "tools"), str(CHECKOUT / "tools" / "site")]
for packages in (CHECKOUT / ".venv" / "lib").glob("python*/site-packages"):
    site.addsitedir(str(packages))

from byteprophet.cli import main  # noqa: E402

project = "byteprophet"
release = main.version()
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "commands_directive",
]
root_doc = "index"
highlight_language = "text"
smartquotes = False  # two dashes begin an option

myst_heading_anchors = 6

autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 90
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"byteprophet {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f4e79", "color-brand-content": "#1f4e79"},
}


def setup(app: Any) -> None:
    """Let the navigation name pages that need not exist: their lines end in ``*``."""
    app.connect("source-read", _complete_navigation)


def _complete_navigation(app: Any, page: str, source: list[str]) -> None:
    if page == root_doc:
        lines = source[0].splitlines()
        kept = (line for line in lines if not line.endswith("*") or line[:-1] in app.env.found_docs)
        source[0] = "\n".join(line.removesuffix("*") for line in kept)
