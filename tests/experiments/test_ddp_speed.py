"""What is made of the times of jobs, and one job of a script that trains nothing."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import ddp_speed
import pytest

from byteprophet.errors import UserError
from byteprophet.network import why_not_permitted

_REASON = why_not_permitted()

ROW: dict[str, Any] = {
    "model": "resnet",
    "ratio": 1.5,
    "bandwidth_bps": 250_000_000,
    "rounds_ms": {"ddp": [200.0, 220.0, 210.0], "auto": [160.0, 200.0, 140.0]},
    "chosen": ["byteprophet: dear-planned exchanges gradients: an iteration takes 150.0 ms"],
    "equal_results": True,
}


def test_ways_are_compared_round_by_round() -> None:
    assert ddp_speed.gains(ROW, "auto") == [1.25, 1.1, 1.5]
    assert ddp_speed.lines_of(ROW) == [
        "resnet, r = 1.5 (250 Mbit/s)",
        "  ddp              210.0 ms, 1.000 times as fast (1.000 to 1.000)",
        "  auto             160.0 ms, 1.250 times as fast (1.100 to 1.500)",
        "  auto: dear-planned exchanges gradients: an iteration takes 150.0 ms",
    ]
    unlimited = {**ROW, "ratio": 0.0, "bandwidth_bps": None, "equal_results": False}
    lines = ddp_speed.lines_of(unlimited)
    assert lines[0] == "resnet, no limit (links without a limit)"
    assert lines[-1] == "  PARAMETERS DIFFER"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--ways", "ddp,fsdp2"], "--ways fsdp2: must be one of ddp, "),
        (["--ways", "auto"], "--ways auto: needs ddp, with which the others are compared"),
        (["--ratios", "1,fast"], "--ratios 1,fast: must be numbers"),
        (["--ratios", "-1"], "--ratios -1: must be 0 "),
    ],
)
def test_what_cannot_be_run_is_refused(tmp_path: Path, options: list[str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        ddp_speed.main([*options, "--out", str(tmp_path)])
    assert not list(tmp_path.iterdir())


@pytest.mark.job
@pytest.mark.skipif(_REASON is not None, reason=str(_REASON))
def test_a_job_gives_its_time_and_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os\n"
        "if os.environ['RANK'] == '0':\n"
        "    print('byteprophet: dear exchanges gradients: an iteration takes 1 ms', flush=True)\n"
        "    print('digest', os.environ['BYTEPROPHET_SYNC'] + ', median iteration 12.5 ms')\n"
    )
    monkeypatch.setattr(ddp_speed, "TRAIN", script)
    options = argparse.Namespace(ranks=2, iterations=1, runs=tmp_path / "runs")
    digest, median_ms, said = ddp_speed.run("resnet", "auto", None, options)
    assert (digest, median_ms) == ("auto", 12.5)
    assert said == "byteprophet: dear exchanges gradients: an iteration takes 1 ms"
