"""Work on own streams: after what it depends on, before it is said to be done. CUDA stands here as
lists of what streams are asked for; ``tests/experiments/test_gpu.py`` uses a real one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from byteprophet.torch.tensors import own_streams

GPU = torch.device("cuda", 0)


class Stream:
    def __init__(self, log: list[str], name: str) -> None:
        self.device = GPU
        self._log, self.name = log, name

    def wait_event(self, event: str) -> None:
        self._log.append(f"{self.name} waits for {event}")

    def record_event(self) -> str:
        return f"what {self.name} had to do"

    def synchronize(self) -> None:
        self._log.append(f"{self.name} has finished")


class Cuda:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.current = [Stream(self.log, "the script's")]

    def is_initialized(self) -> bool:
        return True

    def current_stream(self, device: torch.device) -> Stream:
        return self.current[-1]

    def Stream(self, device: torch.device, priority: int) -> Stream:
        self.log.append("made")
        return Stream(self.log, "ours")

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        self.current.append(stream)
        yield
        self.current.pop()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    fake = Cuda()
    monkeypatch.setattr(own_streams, "_cuda", fake)
    return fake


def on_gpu() -> Any:
    return SimpleNamespace(device=GPU)


def test_work_comes_after_what_it_depends_on(cuda: Cuda) -> None:
    streams = own_streams.OwnStreams()
    before = own_streams.events([on_gpu(), on_gpu(), torch.zeros(1)])
    for _ in range(2):
        with streams.used([on_gpu()], before) as finish:
            cuda.log.append(f"work on {cuda.current[-1].name}")
            finish()
        assert cuda.current[-1].name == "the script's"
    once = ["ours waits for what the script's had to do", "work on ours", "ours has finished"]
    assert cuda.log == ["made", *once, *once]


def test_processors_need_none(cuda: Cuda) -> None:
    with own_streams.OwnStreams().used([torch.zeros(1)], {}) as finish:
        finish()
    assert cuda.log == []
    assert own_streams.events([torch.zeros(1)]) == {}
