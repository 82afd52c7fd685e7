"""Runs one role on the node of a Ray cluster. Its methods are called one after the other.

The role is tethered (launcher/tether.py) to this process. If it is killed, or if Ray ends it
because its driver is gone, the role's standard input ends, and so does the role. This process ends
the input, too, if the driver has not asked for lines for long: the network may be cut.

Threads: the caller's; one that reads the role's output into a queue, line by line; and one that
writes a beat per second. The latter alone writes to the role's standard input after ``start``.
"""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from byteprophet.launcher.tether import BEAT, BEAT_PERIOD_S, END
from byteprophet.remote.look import look

_PART_BYTES = 1 << 24
_MOST_LINES = 1000
_SILENT_S = 30.0
# Ray kills the children of an actor that ends, but not theirs. So a role is one of theirs, and ends
# by itself, in order.
_BESIDE = ("sh", "-c", '"$@"; exit $?', "sh")


class RoleActor:
    """Call ``look``, then ``start`` once, then ``lines`` until it returns a status."""

    def __init__(self) -> None:
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._asked = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._directory = Path()
        self._heard_s = time.monotonic()  # when the driver has called last

    def look(self, paths: list[str]) -> tuple[dict[str, Any], str]:
        """The node, as it sees itself (remote/look.py), and its id in Ray."""
        import ray

        return asdict(look(paths)), ray.get_runtime_context().get_node_id()

    def start(self, arguments: Sequence[str], told: bytes, directory: str) -> None:
        """Start ``byteprophet ARGUMENTS``, ``told`` its job, which writes to ``directory``."""
        self._directory = Path(directory)
        self._heard_s = time.monotonic()
        path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
        self._process = subprocess.Popen(
            [*_BESIDE, sys.executable, "-m", "byteprophet", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",  # python -m looks for modules there first
            start_new_session=True,
            env={**os.environ, "PATH": path},
        )
        threading.Thread(target=self._read, args=(self._process,), daemon=True).start()
        threading.Thread(target=self._beat, args=(self._process, told), daemon=True).start()

    def lines(self, timeout_s: float) -> tuple[list[str], int | None]:
        """New lines of the role, after at most ``timeout_s``; and its status, if it has ended."""
        assert self._process is not None
        self._heard_s = time.monotonic()
        found: list[str] = []
        with suppress(queue.Empty):
            line = self._lines.get(timeout=timeout_s)
            while line is not None and len(found) < _MOST_LINES:
                found.append(line)
                line = self._lines.get_nowait()
            if line is not None:
                found.append(line)
            else:
                status = self._process.wait()
                return found, status if status >= 0 else 128 - status
        return found, None

    def end(self) -> None:
        """Ask the role to end."""
        self._asked.set()

    def files(self) -> list[tuple[str, int]]:
        """What the role has written: relative paths, and sizes in bytes."""
        every = sorted(self._directory.rglob("*"))
        return [
            (str(path.relative_to(self._directory)), path.stat().st_size)
            for path in every
            if path.is_file() and not path.is_symlink()
        ]

    def links(self) -> list[tuple[str, str]]:
        """The links that the role has made: relative paths, and what they say."""
        every = sorted(self._directory.rglob("*"))
        return [
            (str(path.relative_to(self._directory)), str(path.readlink()))
            for path in every
            if path.is_symlink()
        ]

    def part(self, name: str, offset: int) -> bytes:
        """Bytes of one of ``files``, from ``offset`` on; not always all of them."""
        with (self._directory / name).open("rb") as file:
            file.seek(offset)
            return file.read(_PART_BYTES)

    def remove_files(self) -> None:
        """Remove what the role has written."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.put(line.decode("utf-8", "replace").rstrip("\r\n").rpartition("\r")[2])
        self._lines.put(None)

    def _beat(self, process: subprocess.Popen[bytes], told: bytes) -> None:
        assert process.stdin is not None
        with suppress(OSError):  # the role has ended
            process.stdin.write(told)
            process.stdin.flush()
            while not self._asked.wait(BEAT_PERIOD_S):
                if time.monotonic() - self._heard_s > _SILENT_S:
                    break
                process.stdin.write(BEAT)
                process.stdin.flush()
            else:
                process.stdin.write(END)
                process.stdin.flush()
                return
            process.stdin.close()
