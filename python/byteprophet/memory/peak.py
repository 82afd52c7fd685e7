"""The peak of memory in one training iteration, and what it consists of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from byteprophet.errors import UserError
from byteprophet.memory.kernels import KernelMemory
from byteprophet.memory.liveness import Liveness, Size, Timeline, Use
from byteprophet.memory.training import Training, checkpointed
from byteprophet.memory.without_data import without_data


@dataclass(frozen=True)
class PeakMemory:
    """The most bytes that tensors and kernels of one iteration take at once, and for what.

    ``Use`` describes the parts. ``scratch_bytes``: what the kernel that runs at the peak takes
    besides its results.
    ``unmeasured``: operators of the iteration whose scratch memory could not be measured.
    """

    parameters_bytes: int
    buffers_bytes: int
    inputs_bytes: int
    gradients_bytes: int
    optimizer_state_bytes: int
    activations_bytes: int
    objects_bytes: int
    scratch_bytes: int
    unmeasured: tuple[str, ...]

    @property
    def total_bytes(self) -> int:
        """The peak."""
        return (
            self.parameters_bytes
            + self.buffers_bytes
            + self.inputs_bytes
            + self.gradients_bytes
            + self.optimizer_state_bytes
            + self.activations_bytes
            + self.objects_bytes
            + self.scratch_bytes
        )


def predict_peak(
    training: Training, checkpointed_paths: Iterable[str] = (), kernels: KernelMemory | None = None
) -> PeakMemory:
    """Predict the peak of an iteration, once the optimizer has its state.

    Nothing is trained: the iteration runs without data, and single kernels run on zeros.

    Args:
        training: the iteration.
        checkpointed_paths: names of the modules that are recomputed in the backward pass.
        kernels: what has been measured already, and takes up what is measured now.

    Raises:
        UserError: the iteration cannot run without data.
    """
    kernels = KernelMemory() if kernels is None else kernels
    timeline = trace(training, checkpointed_paths)
    kernels.measure(timeline.kernels)
    return peak_of(timeline, kernels)


def peak_of(timeline: Timeline, kernels: KernelMemory) -> PeakMemory:
    """The peak of a recorded iteration, whose kernels have been measured."""
    peaks = timeline.peaks(kernels.extra_bytes)
    place = max(range(len(peaks)), key=peaks.__getitem__)
    live = timeline.after[place]
    uses = {
        f"{use.name.lower()}_bytes": size_bytes for use, size_bytes in zip(Use, live, strict=True)
    }
    unmeasured = {str(kernel.operator) for kernel in timeline.kernels if kernel in kernels.refused}
    return PeakMemory(
        **uses, scratch_bytes=peaks[place] - sum(live), unmeasured=tuple(sorted(unmeasured))
    )


def trace(
    training: Training,
    checkpointed_paths: Iterable[str] = (),
    prepare: Callable[[Liveness, nn.Module], None] | None = None,
    *,
    liveness: Liveness | None = None,
    shard: Callable[[nn.Module], object] | None = None,
) -> Timeline:
    """Run one iteration without data and return its timeline.

    ``prepare`` is called before the iteration with the model that has no data, and ``shard`` with
    the same model before the optimizer is made. ``liveness`` follows the iteration; None: a plain
    one. Raises ``UserError`` if the iteration cannot run without data.
    """
    if training.device != "cpu":
        raise UserError(
            f"memory: the iteration runs on {training.device}: use predict_cuda_peak of "
            "byteprophet.memory.cuda.peak"
        )
    with without_data() as mode:
        bare = training.without_data(mode)
        with Liveness() if liveness is None else liveness as following:
            if shard is not None:
                shard(bare.model)
            return _traced(bare, checkpointed_paths, following, prepare)


def _traced(
    bare: Training,
    checkpointed_paths: Iterable[str],
    liveness: Liveness,
    prepare: Callable[[Liveness, nn.Module], None] | None,
) -> Timeline:
    model = bare.model
    named = list(model.named_parameters())
    liveness.track((parameter for _, parameter in named), Use.PARAMETERS)
    liveness.track(model.buffers(), Use.BUFFERS)
    batches = tree_leaves(bare.micro_batches)
    liveness.track((leaf for leaf in batches if isinstance(leaf, Tensor)), Use.INPUTS)
    trained = [parameter for _, parameter in named if parameter.requires_grad]
    optimizer = bare.optimizer(trained)
    for parameter in trained:  # the first update makes the optimizer's state
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    state = tree_leaves([list(each.values()) for each in optimizer.state.values()])
    liveness.track((leaf for leaf in state if isinstance(leaf, Tensor)), Use.OPTIMIZER_STATE)
    sizes = {name: size_of(parameter, optimizer) for name, parameter in named}
    liveness.follow(named)
    if prepare is not None:
        prepare(liveness, model)
    liveness.restart()
    with checkpointed(model, checkpointed_paths):
        bare.run(optimizer)
    timeline = liveness.timeline
    timeline.parameters.update(sizes)
    if trained and not timeline.gradients:
        raise UserError(
            "memory: no parameter got a gradient: loss_of must use the model that it is given"
        )
    return timeline


def size_of(parameter: nn.Parameter, optimizer: Optimizer) -> Size:
    """A parameter's size, and that of its state in ``optimizer``."""
    state = [
        value
        for value in optimizer.state.get(parameter, {}).values()
        if isinstance(value, Tensor) and value.dim() and value.shape == parameter.shape
    ]
    return Size(
        parameter.numel(), parameter.nbytes, parameter.dtype, sum(value.nbytes for value in state)
    )
