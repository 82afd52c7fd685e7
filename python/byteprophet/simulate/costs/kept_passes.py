"""Keeps the passes of a measurement, so that one that was interrupted can go on.

Each pass is a table of costs in a file of its own beside the result: ``costs.json.pass-1`` and so
on. They are removed when the result is written.
"""

from __future__ import annotations

from itertools import count, takewhile
from pathlib import Path

from byteprophet.errors import UserError
from byteprophet.simulate.costs.table import CostTable, read_table, write_table


class KeptPasses:
    """The passes that were measured for the result ``out``.

    Nothing is kept if ``out`` is a device or a pipe.
    """

    def __init__(self, out: Path) -> None:
        self._out = out
        self._keeps = out.is_file() or not out.exists()

    def read(self, source: str) -> list[CostTable]:
        """The tables of an interrupted call that measured ``source``.

        Raises:
            UserError: a file is damaged, or the call measured something else.
        """
        tables = []
        for path in self._files():
            table = read_table(path)
            if table.source != source:
                raise UserError(
                    f"{path}: an interrupted call has {table.source}, and this one measures "
                    f"{source!r}: remove {path} and those after it, or use another --out"
                )
            tables.append(table)
        return tables

    def keep(self, number: int, table: CostTable) -> None:
        """Keeps the table of pass ``number``, from 1."""
        if self._keeps:
            write_table(self._file(number), table)

    def count(self) -> int:
        """How many passes are kept."""
        return len(self._files())

    def remove(self) -> None:
        """Removes the files: the result is written."""
        for path in self._files():
            path.unlink()

    def _file(self, number: int) -> Path:
        return self._out.with_name(f"{self._out.name}.pass-{number}")

    def _files(self) -> list[Path]:
        return list(takewhile(Path.is_file, map(self._file, count(1)))) if self._keeps else []
