"""Small models with four blocks, and the peak of an iteration as torch's profiler sees it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_leaves

from byteprophet.memory.training import Training, checkpointed

BLOCKS = tuple(f"blocks.{place}" for place in range(4))


class Convolutions(nn.Module):
    """Convolutions with batch normalisation, whose kernels use scratch memory."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.blocks = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(32, 32, 3, padding=1, bias=False),
                    nn.BatchNorm2d(32),
                    nn.ReLU(inplace=True),
                )
                for _ in range(4)
            )
        )
        self.head = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.head(self.blocks(self.stem(images)).mean((2, 3)))
        return result


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mixed = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, values: Tensor) -> Tensor:
        query, key, value = (
            each.unflatten(-1, (4, -1)).transpose(1, 2)
            for each in self.mixed(self.norm(values)).chunk(3, -1)
        )
        found = fn.scaled_dot_product_attention(query, key, value, is_causal=True)
        return values + self.dropout(fn.gelu(self.out(found.transpose(1, 2).flatten(2))))


class Attention(nn.Module):
    """Attention with a tied output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, 64)
        self.blocks = nn.Sequential(*(_Block(64) for _ in range(4)))

    def forward(self, tokens: Tensor) -> Tensor:
        return fn.linear(self.blocks(self.words(tokens)), self.words.weight)


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross entropy of classes, or of tokens."""
    return fn.cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())


def training(
    kind: str, optimizer: Any = torch.optim.Adam, micro_batches: int = 1, autocast: Any = None
) -> Training:
    """An iteration of ``"convolutions"`` or ``"attention"``."""
    torch.manual_seed(1)
    if kind == "convolutions":
        model: nn.Module = Convolutions()
        batch = torch.randn(8, 3, 40, 40), torch.randint(10, (8,))
    else:
        model = Attention()
        batch = torch.randint(1000, (8, 64)), torch.randint(1000, (8, 64))
    return Training(model, [batch] * micro_batches, loss_of, optimizer, autocast)


SGD = functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9)


def profiled_peak(made: Training, paths: Sequence[str] = ()) -> int:
    """The peak of the second iteration in bytes, measured with data."""
    optimizer = made.optimizer(list(made.model.parameters()))
    with checkpointed(made.model, paths):
        made.run(optimizer)
        held = [
            *made.model.parameters(),
            *made.model.buffers(),
            *tree_leaves(made.micro_batches),
            *tree_leaves([list(each.values()) for each in optimizer.state.values()]),
        ]
        start = sum({t.data_ptr(): t.untyped_storage().nbytes() for t in held}.values())
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            made.run(optimizer)
    assert profiler.profiler is not None
    results: Any = profiler.profiler.kineto_results
    changes = sorted(
        (event.start_ns(), place, event.nbytes())
        for place, event in enumerate(results.events())
        if event.name() == "[memory]"
    )
    live = highest = start
    for _, _, change in changes:
        live += change
        highest = max(highest, live)
    return highest
