"""Candidates measured in a grid's cells: what is run, in which order, and what is printed.

Jobs are stated here, by how long an iteration takes; all else is real.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import settings
from stated_jobs import MS, Ran

from byteprophet.bench import Case
from byteprophet.errors import UserError

from ..namespaces import why_not_permitted

pytestmark = pytest.mark.skipif(bool(why_not_permitted()), reason="limited links are checked for")

CELL = "resnet18-x0.3-2w1s"
CANDIDATES = ["p3", "p3:partition_bytes=65536,outstanding_messages=1"]


def iteration_ns(case: Case) -> int:
    return (900 if case.settings else 850) * MS


def test_in_turn_and_only_what_is_missing(
    ran: Ran, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--cells", CELL, "--out", str(tmp_path)]
    settings.main([*CANDIDATES, *options])
    assert [bool(case.settings) for case, _ in ran] == [False, True, True, False]
    assert dict(ran[1][0].settings) == {"partition_bytes": 65536, "outstanding_messages": 1}
    settings.main([*CANDIDATES, "p3:partition_bytes=131072", *options])
    assert len(ran) == 6
    capsys.readouterr()
    settings.main([*CANDIDATES, "fifo", *options, "--report"])
    assert len(ran) == 6
    # The bound is the compute, and the transfer of what is ready last.
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if CELL in line]
    assert [row[1].partition("[")[0] for row in rows] == ["p3", "p3"]
    assert float(rows[1][2]) / float(rows[0][2]) == pytest.approx(900 / 850, abs=2e-4)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["p3", "--cells", "vgg"], "--cells: 'vgg': grid default has resnet18-x0.3-2w1s"),
        (["p4", "--cells", CELL], "p4"),
        (["p3:slices=3", "--cells", CELL], "slices"),
        (
            ["p3:partition_bytes", "--cells", CELL],
            "settings of p3: expected name=integer, got 'partition_bytes'",
        ),
        (["p3", "--cells", CELL, "--rounds", "0"], "--rounds 0: must be at least 1"),
    ],
)
def test_wrong_usage(arguments: list[str], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=complaint):
        settings.main([*arguments, "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
