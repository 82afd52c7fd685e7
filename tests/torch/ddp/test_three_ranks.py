"""Real jobs of three ranks: the bits are those of sums in the order of ranks (``rank_order.py``).

``experiments/ddp_own_tests.py --ranks 3`` runs all scripts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from byteprophet.job.strategy import DEAR_PLANNED
from byteprophet.launcher import JobSpec, run_job

pytestmark = [pytest.mark.job(2), pytest.mark.timeout(600)]
SCRIPTS = Path(__file__).with_name("scripts") / "run.py"
NAMES = (
    # Gradients that are zero but for rounding, which AdamW makes large:
    "synchronised_batch_norm",
    "channels_last",
    "parameters_of_several_types",
    "unused_on_one_rank",
    # Ours at first, then DistributedDataParallel itself:
    "communication_hook_in_the_middle",
)


def rows_of(folder: Path, sync: str, *options: str) -> list[dict[str, Any]]:
    """What each rank wrote, one rank after the other."""
    folder.mkdir()
    spec = JobSpec(
        command=(sys.executable, str(SCRIPTS), str(folder), *options, *NAMES),
        run_directory=folder / "run",
        workers=3,
        servers=0,
        environment={"BYTEPROPHET_SYNC": sync, "BYTEPROPHET_TIMEOUT_S": "120"},
        timeout_s=250.0,
    )
    run_job(spec).check()
    files = [folder / f"rank-{rank}.jsonl" for rank in range(3)]
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_same_bits_as_sums_in_the_order_of_ranks(tmp_path: Path) -> None:
    exact = rows_of(tmp_path / "exact", "", "--in-rank-order")
    ours = rows_of(tmp_path / "ours", DEAR_PLANNED)
    assert [row.get("error") for row in (*exact, *ours)] == [None] * 2 * 3 * len(NAMES)
    assert [(row["script"], row["digest"]) for row in ours] == [
        (row["script"], row["digest"]) for row in exact
    ]
    assert [row["by"] for row in ours] == [*["ours"] * (len(NAMES) - 1), "ddp"] * 3
    for row in exact:
        assert row["averages"] > 0
        assert 0 < row["apart"] <= 1
