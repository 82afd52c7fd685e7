"""The worker of our own runtimes: what it is given, and what it asks of the optimizer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("torch")

from byteprophet.errors import UserError
from byteprophet.paced.collective_front import CollectiveFront
from byteprophet.paced.collective_settings import SYNCS, resolve
from byteprophet.paced.collective_worker import SyncFront, fusion, main
from byteprophet.paced.ddp_worker import DdpFront
from byteprophet.paced.fsdp2_worker import Fsdp2Front
from byteprophet.paced.wfbp_worker import WfbpFront
from byteprophet.paced.worker_config import WorkerConfig

from ..python_process import run_python

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
        ({"bucket_bytes": 1000}, 1000),
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
            with pytest.raises(UserError, match=f"runtime '{name}': this worker is for"):
                FRONTS[runtime](config)


def test_a_bad_setting_is_one_line_and_exit_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BYTEPROPHET_RUN", str(tmp_path))
    config = WorkerConfig("resnet18", None, 1, 1, runtime="dear", settings={"buffers": 3})
    (tmp_path / "worker.toml").write_text(config.to_toml())
    assert main([str(tmp_path / "worker.toml")]) == 2
    assert capsys.readouterr().err == (
        "byteprophet: error: setting 'buffers': dear has only bucket_bytes, tune, near_layer\n"
    )


def test_a_bad_variable_is_one_line_and_exit_status_2(tmp_path: Path) -> None:
    config = WorkerConfig("resnet18", None, 1, 1, runtime="ddp")
    (tmp_path / "worker.toml").write_text(config.to_toml())
    done = run_python(
        "-m",
        "byteprophet.paced.ddp_worker",
        tmp_path / "worker.toml",
        env={**os.environ, "BYTEPROPHET_RUN": str(tmp_path), "BYTEPROPHET_TIMEOUT_S": "abc"},
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "byteprophet: error: BYTEPROPHET_TIMEOUT_S=abc: must be a number of seconds above 0\n"
    )
