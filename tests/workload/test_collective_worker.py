"""The worker of our own runtimes: what it is given, and what it asks of the optimizer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from byteprophet.errors import UserError
from byteprophet.workload.collective_front import CollectiveFront
from byteprophet.workload.collective_settings import SYNCS, resolve
from byteprophet.workload.collective_worker import SyncFront, fusion, main
from byteprophet.workload.ddp_worker import DdpFront
from byteprophet.workload.fsdp2_worker import Fsdp2Front
from byteprophet.workload.wfbp_worker import WfbpFront
from byteprophet.workload.worker_config import WorkerConfig

FRONTS: dict[str, type[CollectiveFront]] = {
    "ddp": DdpFront,
    "fsdp2": Fsdp2Front,
    "wfbp": WfbpFront,
    **dict.fromkeys(SYNCS, SyncFront),
}


@pytest.mark.parametrize(
    ("settings", "argument"),
    [
        ({}, "planned"),
        ({"tune": 1}, "tuned"),
        ({"near_layer": 1}, "near-layer"),
        ({"buffer_bytes": 1000}, 1000),
    ],
)
def test_what_a_group_is(settings: dict[str, int], argument: int | str) -> None:
    assert fusion(resolve("dear", settings)) == argument


@pytest.mark.parametrize("runtime", FRONTS)
def test_a_front_takes_its_own_runtimes_alone(runtime: str) -> None:
    for name, front in FRONTS.items():
        config = WorkerConfig("resnet18", None, 1, 1, runtime=name)
        if FRONTS[runtime] is front:
            assert FRONTS[runtime](config).settings == resolve(name, {})
        else:
            with pytest.raises(UserError, match=f"runtime '{name}': this worker is of"):
                FRONTS[runtime](config)


def test_a_bad_setting_is_one_line_and_exit_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BYTEPROPHET_RUN", str(tmp_path))
    config = WorkerConfig("resnet18", None, 1, 1, runtime="dear", settings={"buffers": 3})
    (tmp_path / "worker.toml").write_text(config.to_toml())
    assert main([str(tmp_path / "worker.toml")]) == 2
    assert capsys.readouterr().err == (
        "byteprophet: error: setting 'buffers': of dear there are buffer_bytes, tune, near_layer\n"
    )


def test_a_bad_variable_is_one_line_and_exit_status_2(tmp_path: Path) -> None:
    config = WorkerConfig("resnet18", None, 1, 1, runtime="ddp")
    (tmp_path / "worker.toml").write_text(config.to_toml())
    done = subprocess.run(
        [sys.executable, "-m", "byteprophet.workload.ddp_worker", str(tmp_path / "worker.toml")],
        env={**os.environ, "BYTEPROPHET_RUN": str(tmp_path), "BYTEPROPHET_TIMEOUT_S": "abc"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "byteprophet: error: BYTEPROPHET_TIMEOUT_S=abc: must be a number of seconds above 0\n"
    )
