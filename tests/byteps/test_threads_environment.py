"""Regression: ps-lite wrote the environment on a thread while others read it.

`setenv` moves the array that `getenv` walks, so nothing that runs beside BytePS' threads may call
it. Python's own writes are the script's, on the thread that runs it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import byteps
import pytest


@pytest.mark.parametrize("package", ["server", "torch"])
def test_byteps_cannot_write_the_environment(package: str) -> None:
    (library,) = Path(byteps.__path__[0], package).glob("c_lib*.so")
    listed = subprocess.run(
        ["nm", "--dynamic", "--undefined-only", library], check=True, capture_output=True, text=True
    )
    imported = {line.split()[-1].partition("@")[0] for line in listed.stdout.splitlines()}
    assert "getenv" in imported
    assert not imported & {"setenv", "putenv", "unsetenv", "clearenv"}
