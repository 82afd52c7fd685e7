"""Where a command's results go: checked before the work, so that none is lost at its end.

A result may not replace what the command reads, another result, or what a job has written into its
run directory (docs/formats.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from byteprophet.errors import UserError
from byteprophet.whole_files import check_writable

_OF_JOB = re.compile(
    r"(?:config|worker|job)\.toml|(?:summary|profile|strategy)(?:-.+)?\.json"
    r"|(?:steps|fused|order|pods|plan)\.json|manifests\.yaml|processors|.+\.jsonl"
)
"""Names of the files that jobs write at the top of their run directories; others are below."""


def check_targets(targets: Mapping[str, Path | None], sources: Iterable[Path] = ()) -> None:
    """Raise ``UserError`` if a result could not be written, or would replace another file.

    Args:
        targets: the files to write, by their options; None: the option was not given.
        sources: the files and run directories that are read.
    """
    read = [source.resolve() for source in sources]
    taken: dict[Path, str] = {}
    for option, target in targets.items():
        if target is None:
            continue
        check_writable(target)
        if target.exists() and not target.is_file():  # a device takes everything
            continue
        place = target.resolve()
        if place in taken:
            raise UserError(f"{option} {target}: is also the file of {taken[place]}")
        taken[place] = option
        for source in read:
            if place == source:
                raise UserError(f"{option} {target}: is one of the files to read")
            if _is_of_job(place, source):
                raise UserError(f"{option} {target}: is a file of the run: choose another name")


def check_chakra_targets(
    name: Path, sources: Iterable[Path], others: Mapping[str, Path | None] = {}
) -> None:
    """The same for ``NAME.<rank>.et``, traces of ranks. ``others``: further files to write."""
    file = re.compile(rf"{re.escape(name.name)}\.\d+\.et")
    parent = name.parent.resolve()
    check_writable(name.with_name(f"{name.name}.0.et"))
    files = {f"{source} is one of the files to read": source for source in sources}
    files |= {f"{one} is the file of {option}": one for option, one in others.items() if one}
    for what, path in files.items():
        place = path.resolve()
        if place.parent == parent and file.fullmatch(place.name):
            raise UserError(f"{name}.<rank>.et: {what}")


def _is_of_job(place: Path, run: Path) -> bool:
    if run not in place.parents or not place.exists():
        return False
    return place.parent != run or bool(_OF_JOB.fullmatch(place.name))
