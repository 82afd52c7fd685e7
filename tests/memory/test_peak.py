"""Predicted peaks beside those that torch's profiler measures here, and beside MemTracker's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from byteprophet.errors import UserError
from byteprophet.memory.kernels import KernelMemory
from byteprophet.memory.peak import predict_peak

from ..thorough import pairs
from .small_models import BLOCKS, SGD, loss_of, profiled_peak, training

KERNELS = KernelMemory()  # measured once for all tests here
VARIANTS = ("plain", "checkpointed", "mixed", "accumulated", "bf16")
KINDS_AND_OPTIMIZERS = [
    (kind, optimizer)
    for kind in ("convolutions", "attention")
    for optimizer in (SGD, torch.optim.Adam)
]


@pytest.mark.parametrize(("variant", "kind_and_optimizer"), pairs(VARIANTS, KINDS_AND_OPTIMIZERS))
def test_the_peak_is_what_the_profiler_measures(
    variant: str, kind_and_optimizer: tuple[str, Any]
) -> None:
    kind, optimizer = kind_and_optimizer
    made = training(
        kind,
        optimizer,
        2 if variant == "accumulated" else 1,
        torch.bfloat16 if variant == "bf16" else None,
    )
    paths = {"checkpointed": BLOCKS, "mixed": BLOCKS[1:3]}.get(variant, ())
    peak = predict_peak(made, paths, KERNELS)
    assert peak.unmeasured == ()
    predicted = peak.total_bytes - peak.objects_bytes  # the profiler does not see objects
    assert predicted == pytest.approx(profiled_peak(made, paths), rel=0.005)


def test_the_parts_are_those_of_the_model() -> None:
    made = training("convolutions")
    peak = predict_peak(made, (), KERNELS)
    parameters = sum(each.nbytes for each in made.model.parameters())
    assert peak.parameters_bytes == parameters
    assert peak.buffers_bytes == sum(each.nbytes for each in made.model.buffers())
    assert peak.inputs_bytes == sum(each.nbytes for each in made.micro_batches[0])
    steps = 4 * sum(1 for _ in made.model.parameters())  # a float32 counter each
    assert peak.optimizer_state_bytes == 2 * parameters + steps
    assert predict_peak(replace(made, optimizer=SGD)).optimizer_state_bytes == parameters


def test_tensors_are_those_that_memtracker_counts() -> None:
    made = replace(training("attention"), optimizer=SGD)
    peak = predict_peak(made, (), _NoKernels())
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        bare = made.without_data(mode)
        optimizer = bare.optimizer(list(bare.model.parameters()))
        for parameter in bare.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
        tracker = MemTracker()
        tracker.track_external(bare.model, optimizer, *bare.micro_batches[0])
        with tracker:
            bare.run(optimizer)
    theirs = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    assert peak.total_bytes - peak.objects_bytes == theirs


class _NoKernels(KernelMemory):
    def measure(self, kernels: Any) -> None:
        pass


def test_nothing_of_the_model_changes() -> None:
    made = training("convolutions")
    before = {name: value.clone() for name, value in made.model.state_dict().items()}
    drawn = torch.random.get_rng_state()
    predict_peak(made, BLOCKS, KERNELS)
    assert torch.equal(torch.random.get_rng_state(), drawn)
    for name, value in made.model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(each.grad is None for each in made.model.parameters())
    assert "forward" not in vars(made.model.blocks[0])  # type: ignore[index]


def test_a_loss_of_another_model_is_refused() -> None:
    made = training("convolutions")
    stranger = training("convolutions").model
    with pytest.raises(UserError, match="loss_of must use the model"):
        predict_peak(replace(made, loss_of=lambda _, batch: loss_of(stranger, batch)))


def test_an_iteration_that_depends_on_values_is_refused() -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        out: Tensor = model(batch[0]).sum()
        return out * 2 if out.item() > 0 else out

    with pytest.raises(UserError, match="cannot run without data"):
        predict_peak(replace(training("convolutions"), loss_of=loss))


def test_a_model_elsewhere_is_refused() -> None:
    made = training("convolutions")
    with pytest.raises(UserError, match=r"'stem.weight' is on meta"):
        predict_peak(replace(made, model=made.model.to("meta")))
    with pytest.raises(UserError, match="use predict_cuda_peak"):
        predict_peak(replace(made, device="cuda"))


def test_sparse_gradients_are_refused() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Embedding(100, 8, sparse=True), nn.Linear(8, 10))
    batch = torch.zeros(4, 4, dtype=torch.int64), torch.zeros(4, 4, dtype=torch.int64)
    made = replace(training("attention", SGD), model=model, micro_batches=[batch])
    with pytest.raises(UserError, match="sparse"):
        predict_peak(made)
