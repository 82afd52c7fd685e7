"""What stands where a file should be, but is none."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

SHARE = 0.02
"""Of all inputs."""


@contextmanager
def something_else(path: Path, random: Random, aside: Path) -> Iterator[None]:
    """Puts it at ``path``; the file is back afterwards. ``aside``: where it is kept meanwhile."""
    path.rename(aside)
    try:
        random.choice(_KINDS)(path)
        yield
    finally:
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
        aside.rename(path)


_KINDS: tuple[Callable[[Path], object], ...] = (
    lambda path: None,
    lambda path: path.mkdir(),
    lambda path: os.mkfifo(path),
    lambda path: path.symlink_to(path.name),
    lambda path: path.symlink_to("nowhere"),
    lambda path: path.symlink_to("/dev/zero"),
    lambda path: path.symlink_to("/proc/self/mem"),
    lambda path: path.symlink_to(".."),
    lambda path: path.open("wb").truncate(1 << 40),
)
