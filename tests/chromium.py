"""Chromium without a window, for tests of pages: each module of tests has one profile for all."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium: apt-get install chromium makes this test run"
)
# What a browser does besides showing a page, most of it at its start.
_WITHOUT = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--metrics-recording-only",
    "--no-default-browser-check",
    "--no-first-run",
)


def run_chromium(profile: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Opens an address, the last of ``arguments``; what Chromium prints. ``profile``: its folder.

    To make a profile takes it a second. What the page's console says is on standard error.
    """
    command = [
        str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        "--enable-logging=stderr", f"--user-data-dir={profile}", *_WITHOUT, *arguments,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
