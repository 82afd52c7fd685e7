"""Peaks on CUDA without a GPU, of models whose allocations can be counted by hand."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from byteprophet.errors import UserError
from byteprophet.memory.cuda.caching_allocator import MIB, rounded
from byteprophet.memory.cuda.gpu import GPUS
from byteprophet.memory.cuda.peak import CudaPeak, cuda_events, predict_cuda_peak
from byteprophet.memory.cuda.scratch import reduction, steps
from byteprophet.memory.training import Training

WIDTH, ROWS = 1024, 256
WEIGHT_BYTES = WIDTH * WIDTH * 4
VALUE_BYTES = ROWS * WIDTH * 4


class Chain(nn.Module):
    """Linear layers without bias, each followed by a ReLU in place."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers))

    def forward(self, values: Tensor) -> Tensor:
        for layer in self.layers:
            values = layer(values).relu_()
        return values


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).mean()


def training(layers: int = 3, autocast: torch.dtype | None = None) -> Training:
    with torch.device("meta"):
        model, batch = Chain(layers), torch.empty(ROWS, WIDTH)
    sgd = functools.partial(torch.optim.SGD, lr=0.1)
    return Training(model, [batch], loss_of, sgd, autocast)


def test_everything_that_lives_at_the_peak() -> None:
    """The peak is where the first layer's gradient is made: both weights with their gradients.

    Beside them are the inputs, and the gradient of the first layer's outputs. In the second layer,
    it was one weight's gradient less, but the outputs and two gradients of values more.
    """
    peak = predict_cuda_peak(training(2), before_bytes=())
    assert peak.requested_bytes == pytest.approx(4 * WEIGHT_BYTES + 2 * VALUE_BYTES, abs=64)
    assert sum(row.size_bytes for row in peak.table) == peak.allocated_bytes
    assert peak.failed is None
    assert predict_cuda_peak(training(2), before_bytes=(0,)) == peak


def test_workspaces_of_both_threads() -> None:
    def workspaces(peak: CudaPeak) -> int:
        return sum(row.size_bytes for row in peak.table if row.label == "cuBLAS workspace")

    assert workspaces(predict_cuda_peak(training())) == 2 * GPUS["h200"].workspace_bytes
    assert workspaces(predict_cuda_peak(training(), before_bytes=[MIB])) == 0


def test_autocast_keeps_a_copy_of_each_weight_and_halves_the_values() -> None:
    plain = {event.size_bytes for event in cuda_events(training(), GPUS["h200"])}
    mixed = [event.size_bytes for event in cuda_events(training(1, torch.bfloat16), GPUS["h200"])]
    assert VALUE_BYTES // 2 not in plain
    copies_and_gradients = 2 * 3  # of one weight, in three iterations
    assert mixed.count(WEIGHT_BYTES // 2) == copies_and_gradients


def test_every_allocation_ends_once() -> None:
    live: dict[int, int] = {}
    for event in cuda_events(training(), GPUS["h200"]):
        if event.size_bytes:
            assert event.handle not in live
            live[event.handle] = event.size_bytes
        else:
            del live[event.handle]


def test_optimizers_on_cuda_update_all_parameters_at_once() -> None:
    """So temporary results of all parameters live together, unlike on the CPU."""
    adam = Training(*list(vars(training()).values())[:3], torch.optim.Adam)  # type: ignore[arg-type]
    labels = [
        event.label for event in cuda_events(adam, GPUS["h200"]) if event.label.startswith("update")
    ]
    assert any(label.startswith("update: _foreach") for label in labels)


def test_a_job_that_does_not_fit_says_what_lives() -> None:
    needed = predict_cuda_peak(training())
    fits = predict_cuda_peak(training(), limit_bytes=needed.reserved_bytes)
    assert (fits.failed, fits.retries) == (None, 0)
    peak = predict_cuda_peak(training(), limit_bytes=needed.allocated_bytes - 8 * MIB)
    assert peak.failed is not None
    assert peak.failed.startswith("out of memory: ")
    assert peak.retries
    assert peak.table[0].size_bytes >= rounded(WEIGHT_BYTES)


def test_recomputed_modules_need_less() -> None:
    def values(layers: int, paths: list[str], autocast: torch.dtype | None = None) -> int:
        with torch.device("meta"):
            model = nn.Sequential(
                *(nn.Sequential(nn.Linear(64, 4096), nn.GELU(), nn.Linear(4096, 64))
                  for _ in range(layers))
            )  # fmt: skip
            batch = torch.empty(4096, 64)
        sgd = functools.partial(torch.optim.SGD, lr=0.1)
        return predict_cuda_peak(
            Training(model, [batch], loss_of, sgd, autocast), checkpointed_paths=paths
        ).requested_bytes

    hidden_bytes = 4096 * 4096 * 4
    plain, recomputed = values(4, []), values(4, ["1", "2"])
    assert plain - recomputed == pytest.approx(2 * 2 * hidden_bytes, rel=0.05)
    plain, recomputed = values(4, [], torch.bfloat16), values(4, ["1", "2"], torch.bfloat16)
    assert plain - recomputed == pytest.approx(2 * hidden_bytes, rel=0.05)


def test_attention_in_16_bits_is_fused() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(3, 2, 4, 512, 64))

        def forward(self, _: Tensor) -> Tensor:
            return fn.scaled_dot_product_attention(*self.weight, is_causal=True)

    with torch.device("meta"):
        model, batch = Attention(), torch.empty(1)
    sgd = functools.partial(torch.optim.SGD, lr=0.1)
    for gpu in GPUS.values():
        for autocast, kernel in (
            (None, "efficient"),
            (torch.bfloat16, "cudnn" if gpu.prefers_cudnn_attention else "flash"),
        ):
            iteration = Training(model, [batch], loss_of, sgd, autocast)
            labels = {event.label for event in cuda_events(iteration, gpu)}
            assert any(kernel in label for label in labels), (gpu.name, kernel)


@pytest.mark.parametrize(
    ("outputs", "partial_bytes", "counters_bytes"),
    [(768, 50_331_648, 24), (2304, 139_198_464, 72), (3072, 138_412_032, 96)],
)
def test_reductions_as_recorded(outputs: int, partial_bytes: int, counters_bytes: int) -> None:
    """Of 8192 rows on an H200, in the recorded history of GPT-2."""
    found = reduction(GPUS["h200"], outputs, 8192, is_along_rows=False)
    assert found == (partial_bytes, counters_bytes)


@pytest.mark.parametrize(
    ("length", "width", "padded"), [(512, 64, 512 * 64), (500, 40, 512 * 64), (100, 160, 128 * 192)]
)
def test_the_flash_kernel_sums_the_gradient_of_the_queries(
    length: int, width: int, padded: int
) -> None:
    """In float32, padded to multiples of 128 tokens and of 32 or 64 elements of a head."""
    query = torch.empty(2, 3, length, width, dtype=torch.bfloat16, device="meta")
    operator = torch.ops.aten._scaled_dot_product_flash_attention_backward.default
    results = [torch.empty_like(query) for _ in range(3)]
    *made, scratch = steps(GPUS["a100"], operator, [query] * 4, results)
    assert made == results
    assert scratch == (2 * 3 * -(-length // 128) * 128 * 4, 2 * 3 * padded * 4)


@pytest.mark.parametrize(
    ("model", "batches", "said"),
    [
        (nn.Linear(2, 2), [], "has no micro-batches"),
        (nn.Sequential(nn.Linear(2, 2), nn.GRU(2, 2)), [torch.ones(1, 2)], "module 1 is a GRU: on"),
    ],
)
def test_what_would_be_another_program_is_refused(
    model: nn.Module, batches: list[Tensor], said: str
) -> None:
    training = Training(
        model, batches, lambda network, batch: network(batch).sum(), torch.optim.SGD
    )
    with pytest.raises(UserError, match=said):
        predict_cuda_peak(training)
