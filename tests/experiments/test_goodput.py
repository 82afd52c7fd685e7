"""The goodput experiment: what iperf3 measures, CPU time of roles, wrong usage."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import goodput
import iperf
import pytest
from role_cpu import CpuSampler

from byteprophet.errors import UserError

from ..namespaces import why_not_permitted

_REASON = why_not_permitted() or (None if shutil.which("iperf3") else "iperf3 is not installed")


@pytest.mark.skipif(_REASON is not None, reason=str(_REASON))
def test_iperf_moves_bytes_and_takes_time() -> None:
    flow = iperf.measure(1, both_ways=True)
    assert flow.bytes_per_s > 1e6
    assert 0 < flow.cpu_s_per_gb < 100


def test_cpu_time_of_a_role(tmp_path: Path) -> None:
    """A process that computes without end, marked as a role of the run."""
    environment = {
        **os.environ,
        "BYTEPROPHET_ROLE": "worker-0",
        "BYTEPROPHET_RUN": str(tmp_path.absolute()),
    }
    sampler = CpuSampler(tmp_path)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"], env=environment) as process:
        time.sleep(1.0)
        from_ns = time.monotonic_ns()
        time.sleep(1.5)
        until_ns = time.monotonic_ns()
        time.sleep(0.3)
        sampler.stop()
        process.kill()
    used_s = sampler.cpu_s("worker", from_ns, until_ns)
    assert 0 < used_s <= (until_ns - from_ns) / 1e9 * 1.2
    assert sampler.cpu_s("server", from_ns, until_ns) == 0


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--runtimes", "nobody"]])
def test_wrong_usage(arguments: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError):
        goodput.main([*arguments, "--out", str(tmp_path), "--runs", str(tmp_path)])
    assert not list(tmp_path.iterdir())
