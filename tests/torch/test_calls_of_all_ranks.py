"""Calls that all ranks must make together, made by one rank alone: it says whom it waits for, why.

Without servers, in one job of two processes (``alone_worker.py``).
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ..python_process import start_python

pytestmark = [pytest.mark.job, pytest.mark.timeout(300)]
WORKER = Path(__file__).with_name("alone_worker.py")
PATIENCE_S = 200.0
_MADE = "called DistributedOptimizer() or add_param_group()"
_NOT = "rank 1 has not {}: all ranks must do so together{} (BYTEPROPHET_TIMEOUT_S sets the limit)"
_GONE_ON = "of rank 1 nothing has come: it is slow, stands in another call, or has left its loop"


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What rank 0 said, by what it did."""
    folder = tmp_path_factory.mktemp("alone")
    ranks = [
        start_python(
            WORKER,
            folder,
            env={**os.environ, "RANK": str(rank), "BYTEPROPHET_TIMEOUT_S": "60"},
            stdout=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=PATIENCE_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0]
    lines = (line.partition(": ") for line in said[0].splitlines() if ": byteprophet: " in line)
    return {call: text for call, _, text in lines}


@pytest.mark.parametrize(
    ("call", "done", "advice"),
    [
        ("state_dict", "called state_dict()", "; or use sharded_state_dict()"),
        ("add_param_group", "called add_param_group()", ""),
        ("add_param_group of whole ones", _MADE, ""),
        ("clip_grad_norm_", "called clip_grad_norm_()", ""),
        ("synchronize", "called synchronize()", ""),
        ("grad", "read or changed gradients where this one has", ""),
        ("hooked step", "called step() with a hook before it", ""),
    ],
)
def test_the_call_is_named(said: dict[str, str], call: str, done: str, advice: str) -> None:
    assert said[call].startswith("byteprophet: waited 1 s for the ")
    assert said[call].endswith(_NOT.format(done, advice))


def test_a_rank_that_has_left_its_loop(said: dict[str, str]) -> None:
    assert "waited 1 s for the update of parameter" in said["loop"]
    assert _GONE_ON in said["loop"]


def test_a_rank_that_has_ended(said: dict[str, str]) -> None:
    """At once: only rank 0 saves, after the training."""
    assert said["ended"].endswith(
        "rank 1 has left the job (this rank has called state_dict(): all ranks must do so "
        "together; or use sharded_state_dict())"
    )
