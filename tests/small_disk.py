"""Runs a program to which a directory is a disk of some KiB, in a mount namespace of its own."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

_NAMESPACE = (
    "unshare",
    *(() if os.geteuid() == 0 else ("--user", "--map-root-user")),
    *("--mount", "--propagation", "private", "--"),
)
_MOUNT = 'mount -t tmpfs -o "size=$1k" small "$2" && shift 2 && exec "$@"'


def run_on_small_disk(
    disk: Path, size_kib: int, *arguments: str, **options: str
) -> subprocess.CompletedProcess[str]:
    """``python ARGUMENTS``, to which the directory ``disk`` is a disk of ``size_kib``; else skips.

    ``options`` are added to its environment. What is on the disk is gone when it has ended.
    """
    reason = _why_not()
    if reason is not None:
        pytest.skip(reason)
    disk.mkdir(exist_ok=True)
    return subprocess.run(
        [
            *_NAMESPACE,
            "sh",
            "-c",
            _MOUNT,
            "sh",
            str(size_kib),
            str(disk),
            sys.executable,
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **options},
    )


@functools.cache
def _why_not() -> str | None:
    try:
        tried = subprocess.run(
            [*_NAMESPACE, "sh", "-c", _MOUNT, "sh", "64", "/mnt", "true"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except FileNotFoundError:
        return "a small disk needs unshare: apt-get install util-linux"
    said = " ".join(tried.stderr.split())
    return f"a small disk cannot be mounted here: {said}" if tried.returncode else None
