"""The mesh is paced exactly while servers have gradients."""

from __future__ import annotations

import random
import threading

import pytest

from byteprophet.torch.sync.pacing import Pacing

MESH_BPS = 1_000_000


def test_the_first_begins_and_the_last_ends() -> None:
    limits: list[int] = []
    heard: list[BaseException | None] = []
    pacing = Pacing(limits.append, MESH_BPS)
    first, second = pacing.during(heard.append), pacing.during(heard.append)
    assert limits == [MESH_BPS]
    error = RuntimeError("lost")
    second(error)
    assert (limits, heard) == ([MESH_BPS], [error])
    third = pacing.during(heard.append)
    first(None)
    third(None)
    assert limits == [MESH_BPS, 0]
    pacing.during(heard.append)(None)
    assert limits == [MESH_BPS, 0, MESH_BPS, 0]
    assert len(heard) == 4


@pytest.mark.parametrize("seed", range(3))
def test_threads_leave_no_limit_behind(seed: int) -> None:
    limits: list[int] = []
    pacing = Pacing(limits.append, MESH_BPS)

    def train(own: random.Random) -> None:
        outstanding = []
        for _ in range(300):
            if outstanding and own.random() < 0.5:
                outstanding.pop(own.randrange(len(outstanding)))(None)
            else:
                outstanding.append(pacing.during(lambda _: None))
        for done in outstanding:
            done(None)

    threads = [threading.Thread(target=train, args=(random.Random(10 * seed + n),)) for n in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert limits[::2] == [MESH_BPS] * (len(limits) // 2)
    assert limits[1::2] == [0] * (len(limits) // 2)
