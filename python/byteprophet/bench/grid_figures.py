"""Figures from the records of a grid: per cell and policy, and the targets over all cells.

A policy's iteration time is divided by prophet's in the same round of the same phase, for the same
code and machine; above 1 means that prophet is faster. Both jobs ran one after the other, unless
the run was stopped between them and continued later. Figures carry 95% intervals (``spread.py``).
The best of several measured settings looks a little better than it is, because noise helps to
select it. This is not corrected, because it favours prophet's rivals.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from byteprophet.bench.grid_phases import PROPHET, baselines, four_megabytes_twice
from byteprophet.bench.grid_store import Record, turn_of
from byteprophet.bench.spread import (
    Array,
    Ratio,
    combine,
    geometric_mean,
    largest,
    least,
    median,
    of_shared_rounds,
    ratio,
)

CPU_LIMIT = 0.85
"""If at least this share of the cores is in use on average under prophet, the machine limits the
cell, not the link."""

Row = dict[str, Any]
_DEFAULTS = ("base", "single")
"""Phases in which a policy has the same settings in all cells."""


class Figures:
    """``records``: the valid one of each job. ``cells``: names of cells, in the grid's order."""

    def __init__(self, cells: Sequence[str], records: Sequence[Record]) -> None:
        self._cells = cells
        self._by_cell: dict[str, list[Record]] = {name: [] for name in cells}
        for record in records:
            self._by_cell[record["cell"]].append(record)

    def cells(self) -> list[Row]:
        """One row per measured cell, with one row per policy in it."""
        return [self._cell(name) for name in self._cells if self._by_cell[name]]

    def targets(self) -> list[Row]:
        """One row per target: its figure, interval and required value, and whether it is met."""
        limited = [name for name in self._cells if self._cpu(name)[0] >= CPU_LIMIT]
        bounds = {
            name: value
            for name in self._cells
            if (value := self._over_bound(name, PROPHET)) is not None
        }
        free = {name: value for name, value in bounds.items() if name not in limited}
        slow = {name: value for name, value in bounds.items() if name in limited}
        stock = self._over_prophet("stock")
        return [
            _target("prophet over the bound, median", free, median, at_most=1.03),
            _target("prophet over the bound, worst", free, largest, at_most=1.06),
            _target("  the same where the processor is the limit, worst", slow, largest),
            self._tuned_target(),
            self._single_target(),
            self._four_megabytes_target(),
            _target(
                "bytescheduler, tuning in its first 300 iterations, geometric mean",
                self._over_prophet("bytescheduler+tuner", ("tuning",), np.mean),
                geometric_mean,
                at_least=1.10,
            ),
            _target(
                "bytescheduler-reduce, best cell",
                self._over_prophet("bytescheduler-reduce"),
                largest,
                at_least=1.30,
            ),
            _target("stock, best cell", stock, largest, at_least=1.6),
            _target("stock, worst cell", stock, least, at_least=0.99),
        ]

    def _cell(self, name: str) -> Row:
        records = self._by_cell[name]
        cpu, saturated = self._cpu(name)
        variants = dict.fromkeys((r["variant"], r["phase"] == "tuning") for r in records)
        return {
            "cell": name,
            "bound_ns": records[-1]["bound_ns"],
            "machine_cpu_fraction": cpu,
            "saturated_fraction": saturated,
            "cpu_limited": cpu >= CPU_LIMIT,
            "parameters_equal": self._parameters_equal(name),
            "policies": [self._policy(name, variant, tuning) for variant, tuning in variants],
        }

    def _policy(self, cell: str, variant: str, tuning: bool) -> Row:
        records = [
            record
            for record in self._by_cell[cell]
            if record["variant"] == variant and (record["phase"] == "tuning") == tuning
        ]
        times_ns = np.concatenate([record["iteration_ns"] for record in records])
        phases = ("tuning",) if tuning else ("base", "single", "tuned")
        centre = np.mean if tuning else np.median
        against = self._ratio(cell, variant, PROPHET, phases, centre)
        bound = ratio([(r["iteration_ns"], [r["bound_ns"]]) for r in records], centre)
        return {
            "variant": variant,
            "scheduler": records[0]["scheduler"],
            "phases": sorted({record["phase"] for record in records}),
            "jobs": len(records),
            "iteration_ns": {
                "median": int(np.median(times_ns)),
                "mean": int(np.mean(times_ns)),
                "p10": int(np.percentile(times_ns, 10)),
                "p90": int(np.percentile(times_ns, 90)),
            },
            "bound_ratio": _spread(bound),
            "over_prophet": None if against is None else _spread(against),
            "machine_cpu_fraction": _middle(records, "machine_cpu_fraction"),
            "job_cpu_fraction": _middle(records, "job_cpu_fraction"),
        }

    def _cpu(self, cell: str) -> tuple[float, float]:
        """Under prophet: mean share of the cores in use, and share of the time all were in use."""
        records = [
            record
            for record in self._by_cell[cell]
            if record["variant"] == PROPHET and record["phase"] != "tuning"
        ]
        if not records:
            return 0.0, 0.0
        return _middle(records, "machine_cpu_fraction"), _middle(records, "saturated_fraction")

    def _parameters_equal(self, cell: str) -> bool:
        """Whether all jobs that made equally many updates ended with the same parameters."""
        hashes: dict[bool, set[str]] = {}
        for record in self._by_cell[cell]:
            hashes.setdefault(record["phase"] == "tuning", set()).add(record["parameters_sha256"])
        return all(len(found) == 1 for found in hashes.values())

    def _over_bound(self, cell: str, variant: str) -> Ratio | None:
        rounds = [
            (record["iteration_ns"], [record["bound_ns"]])
            for record in self._by_cell[cell]
            if record["variant"] == variant and record["phase"] == "base"
        ]
        return ratio(rounds) if rounds else None

    def _ratio(
        self,
        cell: str,
        above: str,
        below: str,
        phases: Sequence[str],
        centre: Callable[..., Any] = np.median,
    ) -> Ratio | None:
        """``above``'s iteration time over ``below``'s; None if they never ran in the same round."""
        times: dict[str, dict[Hashable, Sequence[int]]] = {above: {}, below: {}}
        for record in self._by_cell[cell]:
            if record["variant"] in times and record["phase"] in phases:
                times[record["variant"]][turn_of(record)] = record["iteration_ns"]
        return of_shared_rounds(times[above], times[below], centre)

    def _over_prophet(
        self,
        variant: str,
        phases: Sequence[str] = _DEFAULTS,
        centre: Callable[..., Any] = np.median,
    ) -> dict[str, Ratio]:
        """Ratio of ``variant``'s iteration time to prophet's, by cell."""
        found = {cell: self._ratio(cell, variant, PROPHET, phases, centre) for cell in self._cells}
        return {cell: value for cell, value in found.items() if value is not None}

    def _tuned_target(self) -> Row:
        """The least ratio over all cells and baselines, each with its best confirmed settings."""
        best: dict[str, Ratio] = {}
        for cell in self._cells:
            for name in baselines():
                confirmed = {
                    record["variant"]
                    for record in self._by_cell[cell]
                    if record["phase"] == "tuned" and record["scheduler"] == name
                }
                found = [
                    (value.value, variant, value)
                    for variant in sorted(confirmed)
                    if (value := self._ratio(cell, variant, PROPHET, ("tuned",))) is not None
                ]
                if found:
                    _, variant, value = min(found, key=lambda entry: entry[0])
                    best[f"{cell}, {variant}"] = value
        return _target("each baseline tuned for the cell, worst", best, least, at_least=0.99)

    def _single_target(self) -> Row:
        """The least ratio over baselines, each with the settings of the best geometric mean."""
        measured = self._everywhere()
        best: dict[str, Ratio] = {}
        for name in baselines():
            means = {
                variant: combine(list(cells.values()), geometric_mean)
                for variant, cells in measured.items()
                if variant.split("[")[0] == name
            }
            if means:
                variant = min(means, key=lambda label: means[label].value)
                best[variant] = means[variant]
        return _target(
            "each baseline's best single setting, geometric mean", best, least, at_least=1.00
        )

    def _four_megabytes_target(self) -> Row:
        measured = self._everywhere()
        chosen = [variant for name in baselines() if (variant := four_megabytes_twice(name))]
        means = {
            variant.label: combine(list(measured[variant.label].values()), geometric_mean)
            for variant in chosen
            if variant.label in measured
        }
        return _target("baselines at 4 MB x 2, geometric mean", means, least, at_least=1.05)

    def _everywhere(self) -> dict[str, dict[str, Ratio]]:
        """Ratios to prophet by cell, of the variants that were measured in all cells."""
        variants = dict.fromkeys(
            record["variant"]
            for records in self._by_cell.values()
            for record in records
            if record["phase"] in _DEFAULTS
        )
        found = {variant: self._over_prophet(variant) for variant in variants}
        return {
            variant: cells for variant, cells in found.items() if len(cells) == len(self._cells)
        }


def _target(
    what: str,
    ratios: Mapping[str, Ratio],
    how: Callable[[Array], Array],
    *,
    at_least: float | None = None,
    at_most: float | None = None,
) -> Row:
    """A row; ``where`` names the entry of ``ratios`` that is the least or the largest, if asked."""
    row: Row = {"what": what, "at_least": at_least, "at_most": at_most, "over": len(ratios)}
    if not ratios:
        return {**row, "value": None, "low": None, "high": None, "met": None, "where": None}
    figure = combine(list(ratios.values()), how)
    values = {name: value.value for name, value in ratios.items()}
    where = None
    if how is least:
        where = min(values, key=values.__getitem__)
    elif how is largest:
        where = max(values, key=values.__getitem__)
    met = None
    if at_least is not None:
        met = figure.value >= at_least
    if at_most is not None:
        met = figure.value <= at_most
    return {**row, **_spread(figure), "met": met, "where": where}


def _middle(records: Sequence[Record], field: str) -> float:
    return _rounded(float(np.median([record[field] for record in records])))


def _rounded(value: float) -> float:
    """Round to the digits that matter."""
    return round(value, 4)


def _spread(value: Ratio) -> Row:
    low, high = value.interval
    return {"value": _rounded(value.value), "low": _rounded(low), "high": _rounded(high)}
