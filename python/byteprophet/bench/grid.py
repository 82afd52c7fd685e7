"""A grid: workloads on links of many kinds, as plain data, read from a TOML file.

    name = "mine"
    iterations = 3              # optional: measured iterations of each job,
    warmup_iterations = 4       # and those before them
    [[cell]]
    workload = "resnet50"       # built in, random:SEED, or a file, relative to this one
    link = 0.9                  # one-way communication takes 0.9 times the compute;
                                # or a rate such as "500mbit"; or "unlimited"
    compute_ns = 900000000      # optional: forward and backward; else the workload's
    workers = 2                 # optional
    servers = 1                 # optional
    slow_worker = "500mbit"     # optional: the last worker's link has this rate
    tensors_per_burst = 8       # optional: gradients become ready in groups of this size
    tuning = true               # optional: the cell takes part in the phase "tuning"
    name = "mine-1"             # optional: else made of workload, link, workers and servers

The package's own grids are found by name. Errors are ``UserError`` and name file, cell (counted
from 1) and field.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from byteprophet.errors import UserError
from byteprophet.input_files import is_there, parse_table, read_text
from byteprophet.network import format_rate, parse_rate
from byteprophet.network.rate import PAYLOAD_SHARE, SLOWEST_BPS
from byteprophet.workload import Workload, load
from byteprophet.workload.files import check_fields

_BUILT_IN = Path(__file__).parent / "grids"
_GRID_FIELDS = ("iterations", "warmup_iterations")
_WHOLE = ("workers", "servers", "compute_ns", "tensors_per_burst")
ITERATIONS, WARMUP_ITERATIONS = 3, 4


@dataclass(frozen=True)
class Cell:
    """One cell of a grid. ``link``: as in the file; ``workload``: a name, or an absolute path."""

    workload: str
    link: float | str
    compute_ns: int | None = None
    workers: int = 2
    servers: int = 1
    tensors_per_burst: int | None = None
    tuning: bool = False
    name: str = ""
    slow_worker: str | None = None

    def __post_init__(self) -> None:
        if type(self.workload) is not str or not self.workload:
            raise UserError(f"workload must be a text that is not empty, got {self.workload!r}")
        for field in _WHOLE:
            value = getattr(self, field)
            if value is not None and (type(value) is not int or value < 1):
                raise UserError(f"{field} must be an integer from 1, got {value!r}")
        if type(self.tuning) is not bool:
            raise UserError(f"tuning must be true or false, got {self.tuning!r}")
        if type(self.name) is not str or not self.name.isprintable():
            raise UserError(f"name must be printable text, got {self.name!r}")
        self._check_link()
        if self.slow_worker is not None and self._slow_bps() is None:
            raise UserError("slow_worker must be a rate, got 'unlimited'")
        if not self.name:
            object.__setattr__(self, "name", self._describe())

    def load_workload(self) -> Workload:
        """The workload, at the cell's speed and with its bursts."""
        workload = load(self.workload)
        if self.compute_ns is not None:
            workload = workload.scaled(self.compute_ns)
        if self.tensors_per_burst is not None:
            workload = workload.stepwise(self.tensors_per_burst)
        return workload

    def bandwidth_bps(self, workload: Workload) -> int | None:
        """The rate of each worker's link per direction; None: not limited."""
        if isinstance(self.link, str):
            return parse_rate(self.link, "link")
        compute_s = (workload.forward_ns + workload.backward_ns) / 1e9
        if compute_s <= 0:
            raise UserError("link relative to compute, but the workload has no compute")
        rate_bps = math.ceil(workload.size_bytes * 8 / PAYLOAD_SHARE / (self.link * compute_s))
        if rate_bps < SLOWEST_BPS:
            raise UserError(f"link {self.link:g}: is {rate_bps} bit/s: too slow, use a smaller one")
        return rate_bps

    @property
    def worker_bandwidth_bps(self) -> dict[int, int]:
        """The rates of workers, by index, whose links differ from the others."""
        slow_bps = self._slow_bps()
        return {} if slow_bps is None else {self.workers - 1: slow_bps}

    def slowed(self, times: int) -> Cell:
        """The cell with compute that takes ``times`` as long, and links that are as much slower.

        As far as bandwidth decides, ratios between policies stay the same. The machine's cores are
        less likely to be the limit.
        """
        workload = load(self.workload)
        compute_ns = self.compute_ns or workload.forward_ns + workload.backward_ns
        link = slower(self.link, times) if isinstance(self.link, str) else self.link
        slow_worker = None if self.slow_worker is None else slower(self.slow_worker, times)
        return replace(self, compute_ns=times * compute_ns, link=link, slow_worker=slow_worker)

    def _slow_bps(self) -> int | None:
        if self.slow_worker is None:
            return None
        if type(self.slow_worker) is not str:
            raise UserError(f"slow_worker must be a rate as a text, got {self.slow_worker!r}")
        return parse_rate(self.slow_worker, "slow_worker")

    def _check_link(self) -> None:
        if type(self.link) is str:
            parse_rate(self.link, "link")
        elif type(self.link) not in (int, float) or not 0.001 <= float(self.link) <= 1000:
            raise UserError(
                f"link must be a number from 0.001 to 1000 (times the compute) or a rate, "
                f"got {self.link!r}"
            )

    def _describe(self) -> str:
        workload = Path(self.workload).stem if self.workload.startswith("/") else self.workload
        link = self.link if isinstance(self.link, str) else f"x{self.link:g}"
        bursts = f"-b{self.tensors_per_burst}" if self.tensors_per_burst else ""
        slow = f"-slow{self.slow_worker}" if self.slow_worker else ""
        return f"{workload.replace(':', '-')}-{link}-{self.workers}w{self.servers}s{bursts}{slow}"


def slower(rate: str, times: int) -> str:
    """``rate`` divided by ``times``, as written in a grid; "unlimited" stays unchanged."""
    rate_bps = parse_rate(rate)
    return format_rate(None if rate_bps is None else max(1, rate_bps // times))


@dataclass(frozen=True)
class Grid:
    """The cells, and the length of their jobs."""

    name: str
    cells: tuple[Cell, ...]
    iterations: int = ITERATIONS
    warmup_iterations: int = WARMUP_ITERATIONS

    def __post_init__(self) -> None:
        if type(self.name) is not str or not self.name.strip() or not self.name.isprintable():
            raise UserError(f"name must be printable text that is not empty, got {self.name!r}")
        for field, smallest in (("iterations", 1), ("warmup_iterations", 0)):
            value = getattr(self, field)
            if type(value) is not int or value < smallest:
                raise UserError(f"{field} must be an integer from {smallest}, got {value!r}")
        if not self.cells:
            raise UserError("there must be at least one cell")
        places: dict[str, int] = {}
        for place, cell in enumerate(self.cells, 1):
            if cell.name in places:
                raise UserError(
                    f"cell {place}: has the name '{cell.name}' of cell {places[cell.name]}; "
                    "give it another name"
                )
            places[cell.name] = place

    def slowed(self, times: int) -> Grid:
        """All cells slowed, under the same names. UserError unless ``times`` is 1 to 100."""
        if not 1 <= times <= 100:
            raise UserError(f"--slowed {times}: must be from 1 to 100")
        if times == 1:
            return self
        cells = tuple(cell.slowed(times) for cell in self.cells)
        return replace(self, name=f"{self.name}-slowed{times}", cells=cells)


def built_in_grids() -> list[str]:
    """Names of the package's own grids."""
    return sorted(path.stem for path in _BUILT_IN.glob("*.toml"))


def load_grid(name_or_path: str) -> Grid:
    """The built-in grid of that name, otherwise the one in the file at that path."""
    if name_or_path in built_in_grids():
        path = _BUILT_IN / f"{name_or_path}.toml"
    else:
        path = Path(name_or_path)
        if not is_there(path):
            raise UserError(
                f"grid '{name_or_path}' is neither built in ({', '.join(built_in_grids())})"
                " nor a file"
            )
    return parse_grid(read_text(path), str(path), path.parent)


def parse_grid(text: str, source: str, directory: Path) -> Grid:
    """The grid written in ``text``; workload files are relative to ``directory``."""
    table = parse_table(text, source)
    try:
        check_fields(table, ("name", "cell"), _GRID_FIELDS)
        entries = table["cell"]
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise UserError("cell must be tables, each under a line [[cell]]")
        return Grid(
            name=table["name"],
            cells=tuple(_cell(place, entry, directory) for place, entry in enumerate(entries, 1)),
            **{field: table[field] for field in _GRID_FIELDS if field in table},
        )
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


def _cell(place: int, entry: Mapping[str, Any], directory: Path) -> Cell:
    try:
        required = ("workload", "link")
        check_fields(entry, required, [f.name for f in fields(Cell) if f.name not in required])
        cell = Cell(**entry)
        if cell.workload.endswith(".toml"):
            path = (directory / cell.workload).absolute()
            cell = replace(cell, workload=str(path), name=entry.get("name", ""))
        cell.bandwidth_bps(cell.load_workload())
    except UserError as error:
        raise UserError(f"cell {place}: {error}") from None
    return cell
