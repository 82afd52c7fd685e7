"""A thread that runs short tasks, one after the other, for callbacks that must not take long.

Tasks never wait for other ranks, so no task delays another one for longer than it computes.

Threads: any thread may call the methods. ``_changed`` guards all fields. It is not held while a
task runs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from byteprophet.torch.tensors import ending_threads

Task = Callable[[], None]


class Worker:
    """Runs tasks in the order in which they were put. The thread starts with the first one.

    Tasks must not raise exceptions.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._tasks: deque[Task] = deque()
        self._thread: threading.Thread | None = None
        self._idle = True  # the thread holds no task
        self._ended = False

    def put(self, task: Task) -> None:
        """Run ``task`` soon; after ``end``, when the thread is gone, at once."""
        with self._changed:
            gone = self._ended and self._thread is None
            if not gone:
                self._tasks.append(task)
                self._changed.notify_all()
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    self._thread.start()
        if gone:
            task()

    def let_go(self, timeout_s: float) -> None:
        """Wait at most ``timeout_s`` seconds until no task is left."""
        with self._changed:
            self._changed.wait_for(lambda: self._idle and not self._tasks, timeout_s)

    def end(self) -> None:
        """Let the thread end once no task is left."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
            ending_threads.add(self._thread)

    def join(self, timeout_s: float) -> None:
        """Wait at most ``timeout_s`` seconds until the thread has ended, after ``end``."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle = True
                self._changed.notify_all()
                while not self._tasks:
                    if self._ended:
                        self._thread = None
                        return
                    self._changed.wait()
                self._idle = False
                task = self._tasks.popleft()
            task()
            del task
