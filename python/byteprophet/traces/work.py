"""A rank's trace as tasks on lanes: threads of the host and streams of devices.

A task *needs* what comes before it on its lane and, on a stream, its launch. It *waits* for tasks
of other lanes: kernels, threads, other streams. Both hold back its start in a replay; the second
kind is what replays without dependencies between lanes lack.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from byteprophet.traces.messages import Message


class Use(Enum):
    """What a task does."""

    OPERATOR = "operator"  # on the host; in traces with a device, HOST
    HOST = "host"
    LOADING = "data loading"
    LAUNCH = "launch"  # from the call on the host until the device can start
    KERNEL = "kernel"
    COPY = "copy"
    COLLECTIVE = "communication"
    MARK = "mark"  # of an iteration; takes no time


@dataclass(slots=True)
class Task:
    """A task. Indices refer to the list of the rank's tasks; each is smaller than the task's own.

    Attributes:
        use: what it does.
        name: its name.
        lane: index of its lane; -1: it occupies none.
        begin_ns: when it began, as recorded.
        end_ns: when it ended.
        duration_ns: the time that it takes in a replay.
        needs: tasks that it needs.
        waits: tasks of other lanes for which it waits.
        step: the number of the step that it belongs to; -1: none.
        message: what it communicates.
        released: it does not begin before ``begin_ns``, because what it needs was not recorded.
        is_earlier: it was launched before the trace began.
    """

    use: Use
    name: str
    lane: int
    begin_ns: int
    end_ns: int
    duration_ns: int
    needs: list[int] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)
    step: int = -1
    message: Message | None = None
    released: bool = False
    is_earlier: bool = False


@dataclass(frozen=True)
class Lane:
    """A thread, or a stream of a device."""

    name: str
    is_stream: bool


@dataclass(frozen=True)
class Step:
    """An iteration: its number, and the marks at which it begins and ends, as indices."""

    number: int
    begin: int
    end: int


@dataclass(frozen=True)
class RankTrace:
    """What one rank did.

    Attributes:
        path: the file.
        rank: the rank.
        world_size: the number of ranks in the job; 0: not known.
        lanes: threads and streams.
        tasks: all tasks, in order of their begin.
        steps: iterations.
        has_times: the file has the times at which tasks began. Otherwise, there is nothing to
            compare a replay with.
        unexplained_ns: the time in which work on a device waited, and no reason is known. A replay
            leaves it out.
        inferred_ns: the time of work that was launched before the trace and is not in it, but that
            launches waited for. All of it counts as computation.
    """

    path: Path
    rank: int
    world_size: int
    lanes: tuple[Lane, ...]
    tasks: tuple[Task, ...]
    steps: tuple[Step, ...]
    has_times: bool = True
    unexplained_ns: int = 0
    inferred_ns: int = 0

    @property
    def has_device(self) -> bool:
        """Whether work on a device was recorded."""
        return any(lane.is_stream for lane in self.lanes)

    def step_ns(self, step: Step) -> int:
        """The time of an iteration, as recorded."""
        return self.tasks[step.end].end_ns - self.tasks[step.begin].end_ns
