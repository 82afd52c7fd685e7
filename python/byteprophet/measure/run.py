"""A recorded run: the files of its directory, each read once, with all times on one clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from byteprophet.errors import UserError
from byteprophet.job.fused_file import Fused, read_fused
from byteprophet.timeline.aligned import Aligned, align_events
from byteprophet.timeline.events import Events
from byteprophet.timeline.read_events import load_run
from byteprophet.workload.run_config import read_run_config


class Run:
    """A run directory. Each file is read when it is first needed, and then kept.

    All callers get the same tables, so these are read-only arrays. Raises ``UserError`` if there is
    no such directory. Reading raises it in one line that names the file and what is wrong with it.
    """

    def __init__(self, directory: Path) -> None:
        if not directory.is_dir():
            raise UserError(f"{directory}: there is no such run directory")
        self.directory = directory

    @cached_property
    def has_config(self) -> bool:
        """Whether there is a ``config.toml``."""
        return (self.directory / "config.toml").exists()

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The table in ``config.toml``, checked."""
        return read_run_config(self.directory)

    @cached_property
    def fused(self) -> Fused:
        """Which gradients shared buffers."""
        return read_fused(self.directory)

    @cached_property
    def events(self) -> Sequence[Events]:
        """All events of all lives, each on its machine's own clock."""
        events = load_run(self.directory)
        for table in events:
            table.rows.flags.writeable = False
        return events

    @cached_property
    def aligned(self) -> Aligned:
        """All events on one clock."""
        aligned = align_events(self.events)
        for table in aligned.events:
            table.rows.flags.writeable = False
        return aligned

    def refusal(self, error: UserError) -> UserError:
        """``error`` in one line that names the run, unless it already does."""
        text = str(error)
        named = text.startswith((f"{self.directory}:", f"{self.directory}/"))
        return UserError(text if named else f"{self.directory}: {text}")
