"""The order in which regions are measured: when the time is over, the rest stays unknown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

from byteprophet.job.region_costs import Unit
from byteprophet.torch.regions.calls import ModuleCall

_LENGTHS = (1, 2, 4, 3)


def measuring_order(
    all_units: Sequence[Sequence[Unit]],
    calls: Mapping[str, ModuleCall],
    structure: Callable[[Unit], Hashable],
) -> Iterator[Unit]:
    """The runs of units to measure: units, the whole model, whole chains, then longer runs.

    Of each length, those whose structure takes most of the forward pass in all come first.
    ``all_units`` begins with the whole model.
    """
    (whole,), *parts = all_units
    for length in _LENGTHS:
        runs = [
            sum(units[first : first + length], ())
            for units in parts
            for first in range(len(units) - length + 1)
        ]
        took_ns: Counter[Hashable] = Counter()
        for modules in runs:
            took_ns[structure(modules)] += sum(calls[module].took_ns for module in modules)
        yield from sorted(runs, key=lambda modules: -took_ns[structure(modules)])
        if length == 1:
            yield whole
            yield from (sum(units, ()) for units in parts if len(units) > 1)
