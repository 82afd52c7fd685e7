"""The phases of a grid, and the jobs that each one runs.

    base     every scheduler with its defaults, in all cells
    tuned    prophet, and each baseline with its best settings for each cell: the engine ranks the
             candidates, and the best few are confirmed on the real system
    single   prophet, and each baseline with a few settings that are the same in all cells: those
             with the best geometric mean in the engine, and 4 MB x 2
    tuning   prophet, and bytescheduler while it tunes itself, over the first 300 iterations after
             warm-up, in the cells that the grid marks

Prophet has its defaults everywhere. Each round visits every cell once and runs all policies of that
cell one after the other. Every second round reverses the order of the policies. So changes of the
machine affect all policies alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from byteprophet import _core, schedulers
from byteprophet.bench.grid_jobs import Job, PreparedCell, Variant
from byteprophet.engine import rank_settings, tuning_grid
from byteprophet.errors import UserError

PHASES = ("base", "tuned", "single", "tuning")
PROPHET = "prophet"
CONFIRMED = 3
"""Number of settings per baseline and cell that are confirmed on the real system."""

SELF_TUNING = ("bytescheduler",)
"""Other schedulers can be tuned during the run, too, but their authors do not do so."""

COMMON = 2
"""Number of settings per baseline that run in all cells, beside 4 MB x 2 and the defaults."""

_ALIKE = 0.005
"""If predictions differ by less, the largest partitions are tried first, because the engine does
not model the processor time of a message."""

_MIB = 1 << 20
_ORDER = ("stock", "fifo", "p3", "bytescheduler", "bytescheduler-reduce", "prophet-paper", PROPHET)


def default_schedulers() -> list[str]:
    """All schedulers, in the order of reports."""
    known = [name for name in _ORDER if name in schedulers.names]
    return known + [name for name in schedulers.names if name not in _ORDER]


def baselines() -> list[str]:
    """Schedulers, other than prophet, that have settings to tune."""
    return [name for name in default_schedulers() if name != PROPHET and len(tuning_grid(name)) > 1]


def four_megabytes_twice(scheduler: str) -> Variant | None:
    """4 MB partitions, two of them outstanding; None if the scheduler has no such limit."""
    known = _core.default_settings(scheduler)
    if "credit_bytes" in known:
        return Variant(scheduler, {"partition_bytes": 4 * _MIB, "credit_bytes": 8 * _MIB})
    if "outstanding_messages" in known:
        return Variant(scheduler, {"partition_bytes": 4 * _MIB, "outstanding_messages": 2})
    return None


def phase_jobs(
    phase: str,
    cells: Sequence[PreparedCell],
    names: Sequence[str],
    rounds: int,
) -> list[Job]:
    """The jobs of ``phase``, in the order in which they run.

    ``names``: the schedulers of the phase "base"; other phases use the baselines among them.
    """
    if rounds < 1:
        raise UserError(f"--rounds {rounds}: must be at least 1")
    for name in names:
        schedulers.resolve(name, {})
    tuned = [name for name in names if name in baselines()]
    variants: list[list[Variant]]
    if phase == "base":
        variants = [[Variant(name) for name in names]] * len(cells)
    elif phase == "tuned":
        variants = [[*_best(cell, tuned), Variant(PROPHET)] for cell in cells]
    elif phase == "single":
        variants = [[*_common(cells, tuned), Variant(PROPHET)]] * len(cells)
    elif phase == "tuning":
        self_tuning = [Variant(name, tuner=True) for name in names if name in SELF_TUNING]
        variants = [[*self_tuning, Variant(PROPHET)] if cell.cell.tuning else [] for cell in cells]
        if not any(variants):
            raise UserError("--phase tuning: the grid marks no cell with tuning = true")
    else:
        raise UserError(f"--phase {phase!r}: choose from {', '.join(PHASES)}")
    return in_turn(phase, cells, variants, rounds)


def in_turn(
    phase: str,
    cells: Sequence[PreparedCell],
    variants: Sequence[Sequence[Variant]],
    rounds: int,
) -> list[Job]:
    """Jobs of ``variants``, one sequence per cell, in the order in which they run."""
    return [
        Job(phase, cell.cell, variant, number)
        for number in range(1, rounds + 1)
        for cell, chosen in zip(cells, variants, strict=True)
        for variant in (chosen if number % 2 else reversed(chosen))
    ]


def _best(cell: PreparedCell, names: Sequence[str]) -> list[Variant]:
    """For each baseline, its best settings in this cell according to the engine."""
    return [variant for name in names for variant in _first([cell], name, CONFIRMED)]


def _common(cells: Sequence[PreparedCell], names: Sequence[str]) -> list[Variant]:
    """For each baseline, the settings with the best geometric mean over all cells, and 4 MB x 2."""
    variants = [variant for name in names for variant in _first(cells, name, COMMON)]
    fixed = [variant for name in names if (variant := four_megabytes_twice(name))]
    return list({variant.label: variant for variant in [*variants, *fixed]}.values())


def _first(cells: Sequence[PreparedCell], name: str, count: int) -> list[Variant]:
    """The ``count`` settings of a baseline with the best predictions over ``cells``."""
    logs: dict[str, list[float]] = {}
    variants: dict[str, Variant] = {}
    for cell in cells:
        for settings, iteration_ns in rank_settings(
            cell.workload,
            name,
            cell.cell.workers,
            cell.cell.servers,
            cell.case(Variant(name)).slowest_bps,
        ):
            variant = Variant(name, settings)
            variants[variant.label] = variant
            logs.setdefault(variant.label, []).append(float(np.log(iteration_ns)))
    means = {label: float(np.mean(values)) for label, values in logs.items()}
    least = min(means.values())

    def order(label: str) -> tuple[int, int]:
        return int((means[label] - least) / _ALIKE), -variants[label].settings["partition_bytes"]

    return [variants[label] for label in sorted(means, key=order)[:count]]
