"""Memory on CUDA beside one H200: recorded histories, and rows whose peaks were not fitted."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from cuda_history import BEFORE_BYTES, Recorded, read_history, serve
from cuda_memory import AMOUNTS, HISTORIES, MEASURED, measured_rows
from cuda_memory_models import Configuration

from byteprophet.memory.cuda.caching_allocator import CachingAllocator
from byteprophet.memory.cuda.peak import CudaPeak, predict_cuda_peak

from ..thorough import THOROUGH

ROWS = measured_rows()


@pytest.mark.parametrize("place", range(len(HISTORIES)))
def test_a_recorded_history_gives_the_recorded_peaks(place: int) -> None:
    configuration, row = ROWS[place]
    allocator = Recorded()
    wrong = serve(allocator, read_history(MEASURED / HISTORIES[configuration]))
    assert not wrong, "every segment was made when the record says so, of its size"
    peak = vars(allocator.peak)
    assert [peak[f"{each}_bytes"] for each in AMOUNTS] == [
        int(row[f"peak_{each}"]) for each in AMOUNTS
    ]
    assert allocator.peak.segments == int(row["segments_peak"])


def test_without_recorded_addresses_segments_lie_one_below_the_other() -> None:
    """So the second measurement of the same ResNet-50 is explained, which nothing was told of."""
    configuration, _ = ROWS[0]
    again = [row for each, row in ROWS[1:] if each == configuration]
    allocator = CachingAllocator()
    serve(allocator, read_history(MEASURED / HISTORIES[configuration]))
    assert len(again) == 1
    peak = vars(allocator.peak)
    assert [peak[f"{each}_bytes"] for each in AMOUNTS] == [
        int(again[0][f"peak_{each}"]) for each in AMOUNTS
    ]


@pytest.fixture(scope="module")
def other_process() -> Iterator[ProcessPoolExecutor]:
    """One that has compiled nothing, as the command's: compiling changes the order of frees."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield pool


def predicted(configuration: Configuration) -> CudaPeak:
    return predict_cuda_peak(configuration.training(), before_bytes=BEFORE_BYTES)


@pytest.mark.parametrize(
    ("configuration", "allocated_error", "reserved_error"),
    [
        (Configuration("bert", 8, 512, "sgd", "bf16"), 0.001, 0.001),
        pytest.param(
            Configuration("gpt2", 1, 1024, "adamw-fused", "fp32"), 0.001, 0.001, marks=THOROUGH
        ),
        pytest.param(
            Configuration("resnet50", 64, 224, "sgd", "fp32"), 0.001, 0.01, marks=THOROUGH
        ),
    ],
)
def test_a_row_that_nothing_was_fitted_to(
    configuration: Configuration,
    allocated_error: float,
    reserved_error: float,
    other_process: ProcessPoolExecutor,
) -> None:
    row = dict(ROWS)[configuration]
    peak = other_process.submit(predicted, configuration).result(timeout=120)
    assert peak.allocated_bytes == pytest.approx(int(row["peak_allocated"]), rel=allocated_error)
    assert peak.reserved_bytes == pytest.approx(int(row["peak_reserved"]), rel=reserved_error)
