"""The pacer's rules on a virtual clock, and its promise on the real one."""

from __future__ import annotations

import time

from byteprophet.paced.pacing import AHEAD_NS, SPARE_NS, Clock, Pacer

MS = 1_000_000


class VirtualClock(Clock):
    """A machine on which sleeps end ``oversleep_ns`` late and nothing else takes time."""

    def __init__(self, oversleep_ns: int = 0) -> None:
        self.now_ns = 0
        self.cpu_ns = 0
        self.oversleep_ns = oversleep_ns

    def monotonic_ns(self) -> int:
        return self.now_ns

    def thread_time_ns(self) -> int:
        return self.cpu_ns

    def sleep(self, seconds: float) -> None:
        self.block(round(seconds * 1e9) + self.oversleep_ns)

    def block(self, duration_ns: int) -> None:
        self.now_ns += duration_ns

    def work(self, duration_ns: int) -> None:
        self.now_ns += duration_ns
        self.cpu_ns += duration_ns


def nothing() -> bool:
    return False


def forward(pacer: Pacer, duration_ns: int) -> tuple[int, int]:
    pacer.begin_forward()
    pacer.wait(duration_ns, nothing)
    return pacer.end()


def backward(pacer: Pacer, duration_ns: int) -> tuple[int, int]:
    pacer.begin_backward()
    pacer.wait(duration_ns, nothing)
    return pacer.end()


def test_oversleep_does_not_add_up() -> None:
    clock = VirtualClock(oversleep_ns=60_000)
    pacer = Pacer(clock)
    for _ in range(1000):
        forward(pacer, MS)
    assert clock.now_ns == 1000 * MS + 60_000


def test_layers_shorter_than_the_oversleep_are_caught_up_with() -> None:
    clock = VirtualClock(oversleep_ns=60_000)
    pacer = Pacer(clock)
    for _ in range(1000):
        forward(pacer, 1_000)
    assert 1000 * 1_000 <= clock.now_ns <= 1000 * 1_000 + 61_000


def test_forward_starts_when_a_blocked_thread_gets_its_parameters() -> None:
    clock = VirtualClock(oversleep_ns=60_000)
    pacer = Pacer(clock)
    forward(pacer, MS)
    clock.block(5 * MS)
    began_ns = clock.now_ns
    forward(pacer, MS)
    assert clock.now_ns == began_ns + MS + 60_000


def test_lateness_counts_only_as_far_as_it_exceeds_the_time_blocked() -> None:
    clock = VirtualClock(oversleep_ns=60_000)
    pacer = Pacer(clock)
    forward(pacer, MS)
    clock.block(20_000)
    forward(pacer, MS)
    # The first ended 60 us late, the parameters came 20 us later: 40 us are given back.
    assert clock.now_ns == (MS + 60_000) + 20_000 + (MS - 40_000) + 60_000


def test_host_work_does_not_delay_a_device_that_has_work() -> None:
    clock = VirtualClock()
    pacer = Pacer(clock)
    for layer in (forward, forward, backward, backward):
        layer(pacer, MS)
        clock.work(100_000)
    assert clock.now_ns == 4 * MS + 100_000


def test_host_work_delays_a_device_that_waits_for_parameters() -> None:
    clock = VirtualClock()
    pacer = Pacer(clock)
    forward(pacer, MS)
    clock.block(200_000)
    clock.work(100_000)
    forward(pacer, MS)
    assert clock.now_ns == 2 * MS + 300_000


def test_layers_ran_for_what_they_are_stated_to_take() -> None:
    clock = VirtualClock(oversleep_ns=60_000)
    pacer = Pacer(clock)
    ran = [forward(pacer, MS) for _ in range(3)]
    clock.block(5 * MS)
    ran.append(forward(pacer, MS))
    clock.work(100_000)
    ran += [backward(pacer, MS), backward(pacer, 0)]
    # Overslept time is no compute; the fourth layer waited until the thread was free again.
    late_ns = 60_000
    assert ran == [
        (0, MS),
        (MS, 2 * MS),
        (2 * MS, 3 * MS),
        (8 * MS + late_ns, 9 * MS + late_ns),
        (9 * MS + late_ns, 10 * MS + late_ns),
        (10 * MS + late_ns, 10 * MS + late_ns),
    ]


def test_a_blocked_thread_earns_nothing_in_backward() -> None:
    clock = VirtualClock()
    pacer = Pacer(clock)
    backward(pacer, MS)
    clock.block(3 * MS)
    backward(pacer, MS)
    assert clock.now_ns == 5 * MS


def ahead(pacer: Pacer, duration_ns: int) -> tuple[int, int]:
    """A forward layer that the thread may leave before its end."""
    pacer.begin_forward()
    pacer.wait(duration_ns, nothing, AHEAD_NS)
    return pacer.end()


def test_a_thread_ahead_runs_the_same_layers_and_sleeps_less_often() -> None:
    layer_ns, layers = AHEAD_NS // 4, 12
    clock = VirtualClock(oversleep_ns=60_000)
    sleeps = count_sleeps(clock)
    pacer = Pacer(clock)
    ran = []
    for _ in range(layers):
        ran.append(ahead(pacer, layer_ns))
        clock.work(20_000)  # less than a layer: the device always has work
    pacer.catch_up()
    assert ran == [(k * layer_ns, (k + 1) * layer_ns) for k in range(layers)]
    assert layers * layer_ns <= clock.now_ns <= layers * layer_ns + 80_000
    assert 1 <= len(sleeps) <= layers // 4


def test_a_thread_is_never_further_ahead_than_stated() -> None:
    clock = VirtualClock()
    pacer = Pacer(clock)
    for duration_ns in (AHEAD_NS // 3, AHEAD_NS, 10 * AHEAD_NS, AHEAD_NS // 2, 1, AHEAD_NS - 1):
        _, ended_ns = ahead(pacer, duration_ns)
        assert ended_ns - AHEAD_NS <= clock.now_ns <= ended_ns


def test_a_device_waits_for_parameters_that_come_after_it_has_become_idle() -> None:
    clock = VirtualClock()
    pacer = Pacer(clock)
    assert ahead(pacer, MS // 2) == (0, MS // 2)
    clock.block(3 * MS)
    assert ahead(pacer, MS // 2) == (3 * MS, 3 * MS + MS // 2)


def test_a_thread_that_catches_up_waits_while_the_device_is_busy_only() -> None:
    clock = VirtualClock()
    pacer = Pacer(clock)
    ahead(pacer, MS // 2)
    pacer.catch_up()
    assert clock.now_ns == MS // 2
    clock.work(100_000)
    pacer.catch_up()
    assert clock.now_ns == MS // 2 + 100_000
    backward(pacer, MS)
    assert clock.now_ns == MS // 2 + MS


def count_sleeps(clock: VirtualClock) -> list[float]:
    sleeps: list[float] = []
    original = clock.sleep

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        original(seconds)

    clock.sleep = sleep  # type: ignore[method-assign]
    return sleeps


def test_restart_forgets_lateness() -> None:
    clock = VirtualClock(oversleep_ns=60_000)
    pacer = Pacer(clock)
    forward(pacer, MS)
    pacer.restart()
    began_ns = clock.now_ns
    forward(pacer, MS)
    assert clock.now_ns - began_ns >= MS


def test_work_is_done_only_while_there_is_time_to_spare() -> None:
    clock = VirtualClock()
    pacer = Pacer(clock)
    pieces = 0

    def piece() -> bool:
        nonlocal pieces
        clock.work(MS)
        pieces += 1
        return True

    pacer.begin_forward()
    pacer.wait(SPARE_NS + 3 * MS, piece)
    pacer.end()
    assert pieces == 3
    assert clock.now_ns == SPARE_NS + 3 * MS


def test_work_that_overruns_is_taken_off_the_next_layer() -> None:
    clock = VirtualClock()
    pacer = Pacer(clock)
    pacer.begin_backward()
    clock.work(5 * MS)
    pacer.wait(MS, nothing)
    pacer.end()
    assert clock.now_ns == 5 * MS
    backward(pacer, 10 * MS)
    assert clock.now_ns == 11 * MS


def test_never_faster_than_stated_on_the_real_clock() -> None:
    pacer = Pacer()
    began_ns = time.monotonic_ns()
    for _ in range(20):
        forward(pacer, MS)
    for layers in range(1, 21):
        backward(pacer, MS)
        assert time.monotonic_ns() - began_ns >= (20 + layers) * MS
