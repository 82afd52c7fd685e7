"""The tasks of a rank, from its profile.

A thread's time is cut where something begins or ends that others wait for: outermost operators,
launches, waits, and the points at which other threads went on. What lies between two cuts is one
task. While a thread waits, its tasks take no time, and the next one waits for the reason instead.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from byteprophet.errors import UserError
from byteprophet.timeline.kineto_calls import Track
from byteprophet.traces.launch_queue import earlier_work, launch_queues, queue_waits
from byteprophet.traces.pauses import ThreadWait, thread_waits
from byteprophet.traces.profile import Profile
from byteprophet.traces.streams import Kernel, Streams
from byteprophet.traces.synchronise import DeviceWait, device_waits, unrecorded_waits
from byteprophet.traces.threads import Busy, thread_times
from byteprophet.traces.work import Lane, RankTrace, Step, Task, Use


def rank_trace(profile: Profile) -> RankTrace:
    """The tasks of a rank. Raises ``UserError`` if the profile lacks what they need."""
    return _Builder(profile).build()


@dataclass
class _Thread:
    """A thread, and where it is cut.

    Attributes:
        calls: its outermost calls.
        idle: times in which it waits.
        reasons: by the time at which it goes on: threads and their times, and work on devices.
        cuts: times at which a task ends and another begins.
        marks: begins and ends of steps.
        tasks: its tasks, and when each ends.
    """

    calls: Sequence[Busy]
    idle: list[tuple[int, int]] = field(default_factory=list)
    threads: dict[int, list[tuple[Track, int]]] = field(default_factory=dict)
    devices: dict[int, list[int]] = field(default_factory=dict)
    cuts: set[int] = field(default_factory=set)
    marks: list[tuple[int, str]] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    tasks: list[int] = field(default_factory=list)


class _Builder:
    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._streams = Streams(profile)
        queues = launch_queues(profile, self._streams)
        earlier = earlier_work(queues, self._streams)
        self._inferred_ns = sum(work.end_ns - work.begin_ns for work in earlier)
        if earlier:
            profile.work += earlier
            self._streams = Streams(profile)
            queues = launch_queues(profile, self._streams)
        times = thread_times(profile)
        self._threads = {track: _Thread(of.outermost) for track, of in times.items()}
        waits, pauses = thread_waits(profile, times)
        for track, of_thread in waits.items():
            self._wait_for_threads(self._threads[track], of_thread)
        known = device_waits(profile, self._streams)
        full = queue_waits(queues, self._streams)
        for found in (known, unrecorded_waits(pauses, self._streams, known), full):
            for track, on_devices in found.items():
                self._wait_for_devices(self._threads[track], on_devices)
        self._lanes: list[Lane] = []
        self._tasks: list[Task] = []
        self._steps = sorted(profile.steps)
        self._step_begins = [step.begin_ns for step in self._steps]

    def build(self) -> RankTrace:
        """See ``rank_trace``."""
        for thread in self._threads.values():
            thread.cuts.update(
                time_ns for one in thread.calls for time_ns in (one.begin_ns, one.end_ns)
            )
        for kernel in self._streams.kernels:
            if kernel.launch is not None:
                self._threads[kernel.launch.track].cuts.add(kernel.launch.begin_ns)
        for step in self._steps:
            marks = ((step.begin_ns, "begin"), (step.end_ns, "end"))
            self._threads[step.track].marks += marks
            self._threads[step.track].cuts.update((step.begin_ns, step.end_ns))
        for track in sorted(self._threads):
            self._add_thread(track, self._threads[track])
        for thread in self._threads.values():
            self._add_thread_waits(thread)
        self._add_kernels()
        return self._finish()

    def _wait_for_threads(self, thread: _Thread, waits: Iterable[ThreadWait]) -> None:
        for wait in waits:
            thread.idle.append((wait.begin_ns, wait.end_ns))
            thread.threads.setdefault(wait.end_ns, []).append((wait.track, wait.until_ns))
            thread.cuts.update((wait.begin_ns, wait.end_ns))
            self._threads[wait.track].cuts.add(wait.until_ns)

    def _wait_for_devices(self, thread: _Thread, waits: Iterable[DeviceWait]) -> None:
        for wait in waits:
            last_ns = max(self._streams.kernels[place].work.end_ns for place in wait.work)
            end_ns = min(max(last_ns, wait.begin_ns), wait.end_ns)
            thread.idle.append((wait.begin_ns, end_ns))
            thread.devices.setdefault(end_ns, []).extend(wait.work)
            thread.cuts.update((wait.begin_ns, end_ns))

    def _add_thread(self, track: Track, thread: _Thread) -> None:
        """Adds a thread's tasks, each of which needs the previous one."""
        name = self._profile.names.get(track) or f"thread {track[1]}"
        lane = len(self._lanes)
        self._lanes.append(Lane(name, is_stream=False))
        thread.idle.sort()
        cuts = sorted(thread.cuts)
        # What comes before a thread's first wait is not known.
        if thread.idle and thread.calls and thread.idle[0][1] <= thread.calls[0].begin_ns:
            cuts = [cut for cut in cuts if cut >= thread.idle[0][1]]
        marks = sorted(thread.marks)
        idle_at = call_at = 0
        previous: int | None = None
        for place, begin_ns in enumerate(cuts):
            while marks and marks[0][0] <= begin_ns:
                previous = self._add_mark(lane, previous, *marks.pop(0))
            if place + 1 == len(cuts):
                break
            end_ns = cuts[place + 1]
            while idle_at < len(thread.idle) and thread.idle[idle_at][1] <= begin_ns:
                idle_at += 1
            while call_at < len(thread.calls) and thread.calls[call_at].end_ns <= begin_ns:
                call_at += 1
            is_idle = idle_at < len(thread.idle) and thread.idle[idle_at][0] <= begin_ns
            one = thread.calls[call_at] if call_at < len(thread.calls) else None
            if one is not None and one.begin_ns > begin_ns:
                one = None
            task = self._host_task(one, lane, begin_ns, end_ns, is_idle=is_idle)
            if previous is None:
                task.released = begin_ns not in thread.threads
            else:
                task.needs.append(previous)
            previous = len(self._tasks)
            thread.begins.append(begin_ns)
            thread.ends.append(end_ns)
            thread.tasks.append(previous)
            self._tasks.append(task)

    def _host_task(
        self, one: Busy | None, lane: int, begin_ns: int, end_ns: int, *, is_idle: bool
    ) -> Task:
        use, message = Use.HOST, None
        if one is not None and one.message is not None:
            # Of a collective that was noted late, only the first part is one.
            if begin_ns == one.begin_ns:
                use, message = Use.COLLECTIVE, one.message
        elif one is not None and one.is_loading:
            use = Use.LOADING
        elif one is not None and not self._streams.kernels:
            use = Use.OPERATOR
        return Task(
            use,
            "Python" if one is None else one.name,
            lane,
            begin_ns,
            end_ns,
            0 if is_idle else end_ns - begin_ns,
            step=self._step_at(begin_ns),
            message=message,
        )

    def _add_mark(self, lane: int, previous: int | None, time_ns: int, name: str) -> int:
        mark = Task(Use.MARK, name, lane, time_ns, time_ns, 0, step=self._step_at(time_ns))
        mark.released = previous is None
        if previous is not None:
            mark.needs.append(previous)
        self._tasks.append(mark)
        return len(self._tasks) - 1

    def _add_thread_waits(self, thread: _Thread) -> None:
        for time_ns, reasons in thread.threads.items():
            task = self._from(thread, time_ns)
            for track, until_ns in reasons:
                other = self._until(self._threads[track], until_ns)
                if task is not None and other is not None:
                    self._tasks[task].waits.append(other)

    def _add_kernels(self) -> None:
        streams = self._streams
        lanes: dict[Track, int] = {}
        numbers: list[int] = []
        for kernel in streams.kernels:
            stream = kernel.work.stream
            if stream not in lanes:
                lanes[stream] = len(self._lanes)
                self._lanes.append(Lane(_stream_name(stream), is_stream=True))
            numbers.append(self._add_kernel(kernel, lanes[stream], numbers))
        for thread in self._threads.values():
            for time_ns, work in thread.devices.items():
                task = self._from(thread, time_ns)
                if task is not None:
                    self._tasks[task].waits += (numbers[place] for place in work)

    def _add_kernel(self, kernel: Kernel, lane: int, numbers: Sequence[int]) -> int:
        work, launch = kernel.work, kernel.launch
        begin_ns = kernel.begin_ns
        needs = []
        free_ns = begin_ns
        if kernel.previous >= 0:
            needs.append(numbers[kernel.previous])
            free_ns = max(free_ns, self._tasks[needs[0]].end_ns)
        step = -1 if kernel.is_earlier else self._step_at(begin_ns)
        if launch is not None:
            step = self._step_at(launch.begin_ns)
            before = self._until(self._threads[launch.track], launch.begin_ns)
            reached = Task(
                Use.LAUNCH,
                launch.name,
                -1,
                launch.begin_ns,
                launch.begin_ns + kernel.latency_ns,
                kernel.latency_ns,
                needs=[] if before is None else [before],
                step=step,
                released=before is None,
            )
            needs.append(len(self._tasks))
            self._tasks.append(reached)
        self._tasks.append(
            Task(
                work.use,
                work.name,
                lane,
                begin_ns,
                max(work.end_ns, begin_ns),
                kernel.lead_ns + max(0, work.end_ns - free_ns),
                needs=needs,
                waits=[numbers[place] for place in kernel.waits],
                step=step,
                message=work.message,
                released=kernel.is_released,
                is_earlier=kernel.is_earlier,
            )
        )
        return len(self._tasks) - 1

    def _until(self, thread: _Thread, time_ns: int) -> int | None:
        """The last task of a thread that ends at or before a time."""
        at = bisect_right(thread.ends, time_ns) - 1
        return thread.tasks[at] if at >= 0 else None

    def _from(self, thread: _Thread, time_ns: int) -> int | None:
        """The task of a thread that begins at a time."""
        at = bisect_right(thread.begins, time_ns) - 1
        return thread.tasks[at] if at >= 0 and thread.begins[at] == time_ns else None

    def _step_at(self, time_ns: int) -> int:
        at = bisect_right(self._step_begins, time_ns) - 1
        if at < 0 or time_ns > self._steps[at].end_ns:
            return -1
        return self._steps[at].number

    def _finish(self) -> RankTrace:
        """Puts tasks in order of their begin, and drops waits for what began later."""
        tasks = self._tasks
        order = sorted(range(len(tasks)), key=lambda number: (tasks[number].begin_ns, number))
        place = {number: at for at, number in enumerate(order)}
        found = []
        for at, number in enumerate(order):
            task = tasks[number]
            needs = [place[other] for other in task.needs]
            waits = sorted({place[other] for other in task.waits} - set(needs))
            waits = [other for other in waits if other < at]
            found.append(replace(task, needs=needs, waits=waits))
        profile = self._profile
        marks = [at for at, task in enumerate(found) if task.use is Use.MARK]
        begins = [at for at in marks if found[at].name == "begin"]
        ends = [at for at in marks if found[at].name == "end"]
        steps = []
        for span in self._steps:
            begin = next(at for at in begins if found[at].begin_ns == span.begin_ns)
            end = next(at for at in ends if found[at].begin_ns == span.end_ns)
            steps.append(Step(span.number, begin, end))
            found[begin].name, found[end].name = (
                f"ProfilerStep#{span.number} {what}" for what in ("begin", "end")
            )
        if len({step.number for step in steps}) < len(steps):
            raise UserError(f"{profile.path}: cannot be replayed: two steps have one number")
        return RankTrace(
            profile.path,
            profile.rank,
            profile.world_size,
            tuple(self._lanes),
            tuple(found),
            tuple(steps),
            unexplained_ns=self._streams.unexplained_ns,
            inferred_ns=self._inferred_ns,
        )


def _stream_name(stream: Track) -> str:
    device, number = stream
    return f"GPU {device}, stream {number.removeprefix('stream ')}"
