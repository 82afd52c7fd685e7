"""The files of ``byteprophet simulate``: what it reads, and what it writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from byteprophet.cli.targets import check_targets
from byteprophet.input_files import is_there
from byteprophet.whole_files import make_directory

KEPT = "search.json"
"""What was found, from which a search that was interrupted goes on."""
PAGE, TRACE = "simulation.html", "trace.json.gz"
"""The other files that --out writes."""


def check_places(
    out: Path | None, targets: Mapping[str, Path | None], sources: Iterable[Path]
) -> None:
    """``check_targets``, also for what is written to the directory ``out``, which is made."""
    in_out = {}
    if out is not None:
        make_directory(out)
        in_out = {f"--out's {name}": out / name for name in (KEPT, PAGE, TRACE)}
    check_targets({**in_out, **targets}, sources)


def files_among(*texts: str) -> list[Path]:
    """Those of these texts that are paths of files, and not names or descriptions."""
    return [Path(text) for text in texts if is_there(text) and Path(text).is_file()]
