"""Sizes swept, searched and planned: what is run, going on where it stopped, and the figures.

Jobs are stated here, by how long an iteration takes; all else is real.
"""

from __future__ import annotations

import math
from pathlib import Path

import fusion
import pytest
from allreduce_cells import Setting, cell_of, counted
from stated_jobs import MS, Ran

from byteprophet.bench import Case
from byteprophet.bench.grid import Grid
from byteprophet.errors import UserError

from ..namespaces import why_not_permitted

pytestmark = pytest.mark.skipif(bool(why_not_permitted()), reason="limited links are checked for")


def iteration_ns(case: Case) -> int:
    """Best at 4 MB: 500 ms, and 10 more for every factor of two from it."""
    settings = case.settings
    if settings.get("tune"):
        return 510 * MS
    if "bucket_bytes" not in settings:
        return 490 * MS
    return round(500 * MS + 10 * MS * abs(math.log2(settings["bucket_bytes"] / 4e6)))


def sizes(ran: Ran) -> list[int]:
    return [case.settings["bucket_bytes"] for case, _ in ran if "bucket_bytes" in case.settings]


def test_the_best_three_sizes_run_beside_search_and_plan(options: list[str], ran: Ran) -> None:
    fusion.main(options)
    assert len(fusion.SIZES) == 20
    assert tuple(sizes(ran)[:20]) == fusion.SIZES
    compared = ran[20:]
    assert len(compared) == 2 * 5
    nearest = sorted(fusion.SIZES, key=lambda size: abs(math.log2(size / 4e6)))[:3]
    assert sizes(compared) == [*nearest, *reversed(nearest)]
    assert {case.runtime for case, _ in ran} == {"dear"}
    warmups = {tuple(case.settings): plan.warmup_iterations for case, plan in ran}
    assert warmups[("tune",)] >= 100 + 4, "ten trials of ten, and what tells their end"
    assert warmups[()] == 16


def test_goes_on_where_it_was_stopped(options: list[str], ran: Ran) -> None:
    fusion.main(options)
    fusion.main(options)
    fusion.main([*options, "--report"])
    assert len(ran) == 30
    fusion.main([*options, "--rounds", "3"])
    assert len(ran) == 35


def test_figures(options: list[str], ran: Ran, tmp_path: Path) -> None:
    fusion.main(options)
    assert ran
    cell = cell_of(Setting(str(tmp_path / "small"), 1.0, 2))
    records = counted(Grid("fusion", (cell,), 6), tmp_path / "out")
    assert len(records) == 30
    ratios = {name: ratio.value for name, ratio in fusion.over_best(records)}
    best_ns = min(round(500 * MS + 10 * MS * abs(math.log2(s / 4e6))) for s in fusion.SIZES)
    assert ratios["searched"] == pytest.approx(510 * MS / best_ns)
    assert ratios["planned"] == pytest.approx(490 * MS / best_ns)


def test_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--rounds 0: must be at least 1"):
        fusion.main(["--rounds", "0", "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
