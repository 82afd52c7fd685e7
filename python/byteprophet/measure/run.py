"""A recorded run: the files of its directory, each read once, with all times on one clock."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from byteprophet.errors import UserError, one_line
from byteprophet.job.fused_file import Fused, read_fused
from byteprophet.timeline.aligned import Aligned, align_events
from byteprophet.timeline.aligned_summary import warn_of_clocks
from byteprophet.timeline.events import Events
from byteprophet.timeline.read_events import load_run
from byteprophet.timeline.tables import MESSAGES
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
        self._has_warned = False

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

    def warn(self) -> None:
        """Print reasons to doubt what is measured to standard error: clocks, and lost rows.

        Only the first call prints. Lost messages do not count, because nothing is measured in them.
        """
        if self._has_warned:
            return
        self._has_warned = True
        warn_of_clocks(self.aligned)
        lost = [
            f"{events.origin.role} lost {events.lost} rows of {events.table.name}"
            for events in self.events
            if events.lost and events.table is not MESSAGES
        ]
        if lost:
            more = f" and {len(lost) - 3} more did" if len(lost) > 3 else ""
            line = (
                f"{self.directory}: {', '.join(lost[:3])}{more}: times of iterations may be "
                "wrong; record fewer iterations, with --record-steps"
            )
            print(f"byteprophet: warning: {one_line(line)}", file=sys.stderr)

    def refusal(self, error: UserError) -> UserError:
        """``error`` in one line that names the run, unless it already does."""
        text = str(error)
        named = text.startswith((f"{self.directory}:", f"{self.directory}/"))
        return UserError(text if named else f"{self.directory}: {text}")
