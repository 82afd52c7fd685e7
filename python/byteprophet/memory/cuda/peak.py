"""The peak of memory on a CUDA device, predicted without one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from byteprophet.errors import UserError
from byteprophet.memory.cuda.caching_allocator import (
    Amounts,
    Block,
    CachingAllocator,
    OutOfMemoryError,
    Row,
)
from byteprophet.memory.cuda.device import allow_cuda, autocast_on_cuda
from byteprophet.memory.cuda.gpu import DEFAULT, GPUS, Gpu
from byteprophet.memory.cuda.sequence import AsOnCuda, Event, Recorder
from byteprophet.memory.training import Training, checkpointed
from byteprophet.memory.without_data import without_data

ITERATIONS = 3
"""After so many iterations, the allocator's segments rarely change any more."""


@dataclass(frozen=True)
class CudaPeak:
    """The peaks of a process' memory on a CUDA device, each at its own time.

    ``allocated_bytes``, ``reserved_bytes``: as ``torch.cuda.max_memory_allocated`` and
    ``max_memory_reserved`` would say. ``requested_bytes``: what was asked for, not rounded up.
    ``inactive_split_bytes``: free, but in segments with used blocks (fragmentation).
    ``allocations``: their number. ``retries``: how often segments had to be given back because of
    the limit. ``table``: what lives at the peak of allocated bytes, by the operator that made it,
    or where memory ran out. ``failed``: None, or why the job does not fit the limit.

    The driver and CUDA's libraries take some hundred megabytes more, which no allocator counts.
    """

    allocated_bytes: int
    reserved_bytes: int
    requested_bytes: int
    inactive_split_bytes: int
    segments: int
    allocations: int
    retries: int
    table: tuple[Row, ...]
    failed: str | None


def predict_cuda_peak(
    training: Training,
    gpu: Gpu = GPUS[DEFAULT],
    checkpointed_paths: Iterable[str] = (),
    limit_bytes: int | None = None,
    before_bytes: Sequence[int] | None = None,
) -> CudaPeak:
    """Predict the peaks of a process that makes the model and trains it.

    Args:
        training: the iteration. ``training.device`` is taken to be CUDA.
        gpu: where it would run.
        checkpointed_paths: names of the modules that are recomputed in the backward pass.
        limit_bytes: what the allocator may take from the device; None: no limit.
        before_bytes: what the process has allocated before it makes the model, cuBLAS's workspaces
            among it. None: nothing; then two workspaces are allocated when they are needed, one for
            the thread of the forward pass and one for that of the backward pass.

    Raises:
        UserError: the iteration cannot run without data.
    """
    events = cuda_events(training, gpu, checkpointed_paths, before_bytes is None)
    sizes = [size for size in before_bytes or () if size]  # an event of 0 bytes ends an allocation
    begin = [Event(-place, size, "before") for place, size in enumerate(sizes, 1)]
    return replay([*begin, *events], limit_bytes)


def replay(events: Sequence[Event], limit_bytes: int | None = None) -> CudaPeak:
    """Let the allocator serve recorded or predicted events."""
    allocator = CachingAllocator(limit_bytes)
    place, failed = _serve(allocator, events)
    if failed is None:  # once more, up to the peak
        again = CachingAllocator(limit_bytes)
        _serve(again, events[: place + 1])
        table = again.table()
    else:
        table = failed.table
    peak: Amounts = allocator.peak
    return CudaPeak(
        allocated_bytes=peak.allocated_bytes,
        reserved_bytes=peak.reserved_bytes,
        requested_bytes=peak.requested_bytes,
        inactive_split_bytes=peak.inactive_split_bytes,
        segments=peak.segments,
        allocations=sum(1 for event in events if event.size_bytes),
        retries=allocator.retries,
        table=tuple(table),
        failed=None if failed is None else str(failed),
    )


def _serve(
    allocator: CachingAllocator, events: Iterable[Event]
) -> tuple[int, OutOfMemoryError | None]:
    """Serve the events. Returns the place of the highest allocated bytes, and a failure."""
    blocks: dict[int, Block] = {}
    highest, highest_bytes = 0, 0
    for place, (handle, size_bytes, label) in enumerate(events):
        if not size_bytes:
            allocator.free(blocks.pop(handle))
            continue
        try:
            blocks[handle] = allocator.allocate(size_bytes, label=label)
        except OutOfMemoryError as error:
            return place, error
        if allocator.now.allocated_bytes > highest_bytes:
            highest, highest_bytes = place, allocator.now.allocated_bytes
    return highest, None


def cuda_events(
    training: Training,
    gpu: Gpu,
    checkpointed_paths: Iterable[str] = (),
    with_workspaces: bool = True,
) -> list[Event]:
    """What the process allocates and frees until the end of its third iteration.

    Raises ``UserError`` if the iteration cannot run without data.
    """
    _refuse(training)
    allow_cuda()
    training = replace(training, device="cuda")
    try:
        with without_data() as mode:
            bare = training.without_data(mode)
            recorder = Recorder(gpu, with_workspaces)
            recorder.track(_moved(bare.model), "parameters and buffers")
            with recorder, AsOnCuda(gpu, recorder), autocast_on_cuda():
                optimizer = _optimizer(bare, recorder)
                batches = tree_leaves(bare.micro_batches)
                recorder.track((leaf for leaf in batches if isinstance(leaf, Tensor)), "inputs")
                with checkpointed(bare.model, checkpointed_paths):
                    for _ in range(ITERATIONS):
                        bare.run(optimizer)
            return list(recorder.events)
    except RuntimeError as error:
        raise UserError(
            f"memory: the iteration cannot run without data and without a GPU: {error}"
        ) from error


def _refuse(training: Training) -> None:
    if not training.micro_batches:
        raise UserError("memory: the training has no micro-batches")
    for name, module in training.model.named_modules():
        if isinstance(module, nn.RNNBase):
            raise UserError(
                f"memory: module {name or 'the model'} is a {type(module).__name__}: on a GPU, "
                "cuDNN runs all steps of recurrent layers at once, which is not predicted"
            )


def _moved(module: nn.Module) -> Iterator[Tensor]:
    """The parameters and buffers in the order in which ``module.to("cuda")`` moves them."""
    for child in module.children():
        yield from _moved(child)
    yield from module.parameters(recurse=False)
    yield from module.buffers(recurse=False)


def _optimizer(training: Training, recorder: Recorder) -> Optimizer:
    """The optimizer, as it would be on CUDA: with ``foreach`` unless it says otherwise."""

    def begin(*_: Any) -> None:
        recorder.phase = "update"

    def end(*_: Any) -> None:
        recorder.phase = "forward"

    trained = [each for each in training.model.parameters() if each.requires_grad]
    optimizer = training.optimizer(trained)
    for group in optimizer.param_groups:
        settings: dict[str, Any] = group
        if settings.get("foreach", False) is None and not settings.get("fused"):
            settings["foreach"] = True
    optimizer.register_step_pre_hook(begin)
    optimizer.register_step_post_hook(end)
    return optimizer
