"""A results file that grows row by row, so that a script goes on where it stopped.

    {"schema": 1, "paced": true, "machine": {...}, "code": "...", "settings": {...},
     "results": [rows]}

A row holds its cell's fields, which say which job it is, and what was measured. All rows of a file
were measured on one machine, by one version of the code (docs/formats.md, "Results of a grid"), so
that any two can be compared. A file of another machine or other code is put aside before the first
row is written. The settings are those that all rows have in common: with others, another file is
needed. Where some jobs are paced and some are not, ``"paced"`` is null, and every row says it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from recorded import PROGRESS, need_namespaces
from results_file import write_results

from byteprophet.bench import describe_machine
from byteprophet.bench.grid_jobs import code_version
from byteprophet.errors import UserError
from byteprophet.input_files import read_json

SCHEMA = 1

Row = Mapping[str, Any]


class Rows:
    """The file at ``path``; every change is on disk at once."""

    def __init__(self, path: Path, settings: Mapping[str, Any], paced: bool | None = True) -> None:
        self._path = path
        self._header = {
            "schema": SCHEMA,
            "paced": paced,
            "machine": describe_machine(),
            "code": code_version(),
            "settings": dict(settings),
        }
        self._rows: list[Row] = []
        self._aside: Path | None = None
        if not path.exists():
            return
        before = _read(path)
        if before["settings"] != self._header["settings"]:
            raise UserError(
                f"{path}: was measured with {before['settings']}, not {self._header['settings']}; "
                "choose another --out or remove it"
            )
        if all(before.get(name) == self._header[name] for name in ("machine", "code")):
            self._rows = before["results"]
        else:
            self._aside = path.with_name(f"{path.stem}-before-{code_version()}.json")

    def of(self, cell: Row) -> list[Row]:
        """The rows of ``cell``: one or none."""
        return [row for row in self._rows if cell.items() <= row.items()]

    def missing(self, cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those of ``cells`` that have no row."""
        return [cell for cell in cells if not self.of(cell)]

    def complete(
        self,
        cells: Sequence[dict[str, Any]],
        label: Callable[[Row], str],
        run: Callable[[Row], Row],
    ) -> list[Row]:
        """The rows of ``cells``, of which what is missing is run first, said by ``label``."""
        missing = self.missing(cells)
        if missing:
            need_namespaces()
        for number, cell in enumerate(missing, start=1):
            PROGRESS.print(f"{self._path.stem}: job {number} of {len(missing)}: {label(cell)}")
            self.add({**cell, **run(cell)})
        return [row for cell in cells for row in self.of(cell)]

    def add(self, row: Row) -> None:
        """Take in one more row and write the file."""
        if self._aside is not None:
            PROGRESS.print(
                f"{self._path.name} is of another machine or other code: kept as {self._aside.name}"
            )
            self._path.replace(self._aside)
            self._aside = None
        self._rows.append(row)
        content = {**self._header, "results": self._rows}
        write_results(self._path, content)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
        rows = content["results"]
        is_ours = content["schema"] == SCHEMA and isinstance(content["settings"], dict)
    except (UserError, KeyError, TypeError):
        is_ours, rows = False, None
    if not is_ours or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{path}: is not a results file of this script")
    return dict(content)
