"""The live page: style, charts and script in one file, which asks for nothing but its state.

It has the style, the elements and the charts' library of ``byteprophet report``'s page
(``report/page``). Its content security policy allows it to ask its own server, and nobody else. The
token is in its address, and it sends it along. ``watch.html`` has the frame, ``panels.js`` the
panels, ``live_charts.js`` the charts that change, and ``watch.js`` asks for states.
"""

from __future__ import annotations

from importlib.resources import files

from byteprophet.report.page import library

_OF_REPORT = "byteprophet.report.page"


def live_page() -> str:
    """The page. Raises ``UserError`` if the charts' library is missing."""
    scripts = (
        _asset("draw.js", _OF_REPORT),
        _asset("charts.js", _OF_REPORT),
        _asset("live_charts.js"),
        _asset("panels.js"),
        _asset("watch.js"),
    )
    parts = {
        "STYLE": "\n".join((library.style(), _asset("page.css", _OF_REPORT), _asset("watch.css"))),
        "LICENCE": _asset("uplot-licence.txt", _OF_REPORT),
        "LIBRARY": library.script(),
        "SCRIPT": "\n".join(scripts),
    }
    # One pass: what is put in is not looked through again.
    pieces = _asset("watch.html").split("@@")
    return "".join(parts[piece] if odd % 2 else piece for odd, piece in enumerate(pieces))


def grafana_dashboard() -> str:
    """A dashboard for Grafana, as JSON, which draws the metrics."""
    return _asset("grafana.json")


def _asset(name: str, package: str = __name__) -> str:
    return files(package).joinpath(name).read_text(encoding="utf-8")
