"""What kernels and the host wait for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from byteprophet.traces.result import replay_traces

from .hand_made import Event, call, kernel, loaded, operator, step, waits

LAUNCHES = [call(1, 100, 105, 1), call(1, 110, 115, 2), call(1, 120, 125, 3)]


def test_a_kernel_waits_for_its_stream(tmp_path: Path) -> None:
    trace = loaded(
        tmp_path, step(0, 900), *LAUNCHES[:2], kernel(7, 106, 500, 1), kernel(7, 502, 800, 2)
    )
    assert waits(trace) == []
    second = trace.tasks[-1] if trace.tasks[-1].name == "gemm" else trace.tasks[-2]
    assert second.duration_ns == 300_000  # with the 2 us in front of it
    assert trace.unexplained_ns == 0


def test_a_late_kernel_waited_for_another_stream(tmp_path: Path) -> None:
    trace = loaded(
        tmp_path,
        step(0, 900),
        *LAUNCHES[:2],
        kernel(7, 106, 500, 1),
        kernel(20, 504, 800, 2, "second"),
    )
    assert waits(trace) == [("gemm 106-500", "second 504-800")]


def test_a_wait_without_a_reason_is_left_out(tmp_path: Path) -> None:
    trace = loaded(
        tmp_path,
        step(0, 900),
        *LAUNCHES[:2],
        kernel(7, 106, 200, 1),
        kernel(20, 500, 800, 2, "second"),
    )
    assert waits(trace) == []
    # 6 us of its latency and 10 us before it need no reason.
    assert trace.unexplained_ns == 500_000 - 116_000 - 10_000


def test_a_collective_waits_for_what_was_launched_before_it(tmp_path: Path) -> None:
    """It did not have to wait in the trace, but may have to with slower kernels."""
    trace = loaded(
        tmp_path,
        step(0, 900),
        *LAUNCHES,
        kernel(7, 106, 130, 1),
        kernel(20, 150, 700, 2, "ncclDevKernel_AllReduce_Sum"),
        kernel(7, 140, 300, 3, "later"),
    )
    assert waits(trace) == [("gemm 106-130", "ncclDevKernel_AllReduce_Sum 150-700")]


def _recorded(name: str, stream: int, correlation: int, **said: int) -> Event:
    arguments: dict[str, Any] = {"stream": stream, "device": 0, "correlation": correlation, **said}
    return {
        "ph": "X",
        "cat": "cuda_sync",
        "name": name,
        "pid": 0,
        "tid": stream,
        "ts": 117,
        "dur": 1,
        "args": arguments,
    }


@pytest.mark.parametrize("stream", [7, -1])
def test_records_of_waits_are_used(stream: int, tmp_path: Path) -> None:
    """Also where times do not show that there was anything to wait for."""
    said = {"wait_on_stream": stream, "wait_on_cuda_event_record_corr_id": 11}
    trace = loaded(
        tmp_path,
        step(0, 900),
        *LAUNCHES,
        call(1, 107, 108, 11, "cudaEventRecord"),
        call(1, 117, 118, 12, "cudaStreamWaitEvent"),
        _recorded("Stream Wait Event", 20, 12, **said),
        kernel(7, 106, 130, 1, "first"),
        kernel(7, 131, 300, 2),
        kernel(20, 310, 800, 3, "waits"),
    )
    assert waits(trace) == [
        ("first 106-130", "waits 310-800"),
        ("gemm 131-300", "waits 310-800"),
    ] or (waits(trace) == [("first 106-130", "waits 310-800")])


@pytest.mark.parametrize(
    ("name", "waited"),
    [
        ("cudaStreamSynchronize", ["gemm 131-700"]),
        ("cudaEventSynchronize", ["gemm 131-700"]),
        ("cudaDeviceSynchronize", ["gemm 131-700", "other 126-300"]),
        ("hipDeviceSynchronize", ["gemm 131-700", "other 126-300"]),
        ("cudaEventQuery", []),
    ],
)
def test_the_host_waits_for_streams(name: str, waited: list[str], tmp_path: Path) -> None:
    trace = loaded(
        tmp_path,
        step(0, 900),
        *LAUNCHES,
        kernel(7, 106, 130, 1, "first"),
        kernel(7, 131, 700, 2),
        kernel(20, 126, 300, 3, "other"),
        call(1, 200, 705, 13, name),
        operator(1, 710, 800),
    )
    assert sorted(before for before, _ in waits(trace)) == waited
    without = replay_traces([trace], with_waits=False).replayed_ns
    assert without == (900_000 - 500_000 if waited else 900_000)


def test_a_copy_to_the_host_returns_when_it_is_done(tmp_path: Path) -> None:
    copy = {**kernel(7, 110, 600, 1, "Memcpy DtoH (Device -> Pageable)"), "cat": "gpu_memcpy"}
    trace = loaded(tmp_path, step(0, 900), call(1, 100, 605, 1, "cudaMemcpyAsync"), copy)
    assert waits(trace) == [("Memcpy DtoH (Device -> Pageable) 110-600", "cudaMemcpyAsync 600-605")]
    assert replay_traces([trace]).replayed_ns == 900_000


def test_a_wait_for_the_device_that_no_call_records(tmp_path: Path) -> None:
    trace = loaded(
        tmp_path,
        step(0, 2000),
        operator(1, 90, 130),
        call(1, 100, 105, 1),
        kernel(7, 106, 1500, 1),
        operator(1, 1530, 1900),
    )
    assert waits(trace) == [("gemm 106-1500", "Python 1500-1530")]
