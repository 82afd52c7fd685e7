"""uPlot, the library that draws the page's charts.

It comes with the installed package ``youplot``, which carries the files of uPlot's own release and
is never imported. Only exactly the files that were tried go into the page.
"""

from __future__ import annotations

import hashlib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from byteprophet.errors import UserError

_PACKAGE, _VERSION = "youplot", "1.0.0"
_ADVICE = f"pip install --force-reinstall {_PACKAGE}=={_VERSION}"
_SCRIPT = "youplot/vendor/uplot.iife.min.js"
_STYLE = "youplot/vendor/uplot.min.css"
_SHA256 = {
    _SCRIPT: "2d27e8ad3d228164525ce213f9dc716f39b4e3aee0cc773fb3491c96cf4921a2",
    _STYLE: "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}


def script() -> str:
    """The script that defines ``uPlot``, without its first line: a comment with an address.

    Raises:
        UserError: the package is missing, or its file is another one.
    """
    _, _, code = _text(_SCRIPT).partition("\n")
    return code


def style() -> str:
    """The style of uPlot's elements; raises as ``script`` does."""
    return _text(_STYLE)


def _text(name: str) -> str:
    try:
        content = Path(str(distribution(_PACKAGE).locate_file(name))).read_bytes()
    except (PackageNotFoundError, OSError) as error:
        raise UserError(f"{_PACKAGE} draws the page's charts and is missing: {_ADVICE}") from error
    if hashlib.sha256(content).hexdigest() != _SHA256[name]:
        raise UserError(f"{name} differs from that of {_PACKAGE} {_VERSION}: {_ADVICE}")
    return content.decode()
