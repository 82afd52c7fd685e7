"""The collectives that we infer are those that DTensor makes for the same layer.

The process group is PyTorch's fake one: rank 0 of four, without the others.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore

from byteprophet.simulate.compile.steps import Collective

from ..jobs import program

_RANKS, _WIDTH, _SEQUENCE = 4, 32, 16
_MODEL = f"gpt:layers=1,hidden={_WIDTH},heads=4,sequence={_SEQUENCE},vocabulary=64"
_NAMES = {
    "all_reduce": "all-reduce",
    "all_gather_into_tensor": "all-gather",
    "reduce_scatter_tensor": "reduce-scatter",
    "all_to_all_single": "all-to-all",
}


class _Layer(nn.Module):
    """A layer of the same shape as ours, with attention on the rank's own heads."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.query, self.key, self.value, self.output = (
            nn.Linear(_WIDTH, _WIDTH) for _ in range(4)
        )
        self.up, self.down = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)
        self.attention_input, self.mlp_input = nn.Identity(), nn.Identity()

    def forward(self, hidden: Tensor) -> Tensor:
        normed = self.attention_input(self.norm1(hidden))
        query, key, value = (
            linear(normed).unflatten(-1, (-1, 8)).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value)
        hidden = hidden + self.output(mixed.transpose(1, 2).flatten(2))
        wide = functional.gelu(self.up(self.mlp_input(self.norm2(hidden))))
        return hidden + self.down(wide)


@contextlib.contextmanager
def _fake_ranks() -> Iterator[Any]:
    dist.init_process_group("fake", rank=0, world_size=_RANKS, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (_RANKS,))
    finally:
        dist.destroy_process_group()


def _dtensor(sequence_parallel: bool) -> Counter[str]:
    """The collectives of a forward and backward pass of the layer under DTensor."""
    with _fake_ranks() as mesh:
        layout = Shard(1) if sequence_parallel else Replicate()
        gathered = PrepareModuleInput(input_layouts=layout, desired_input_layouts=Replicate())
        columns = ColwiseParallel(input_layouts=Replicate())
        rows = RowwiseParallel(output_layouts=layout, use_local_output=not sequence_parallel)
        plan: dict[str, Any] = {
            **dict.fromkeys(("query", "key", "value", "up"), columns),
            **dict.fromkeys(("output", "down"), rows),
            **dict.fromkeys(("attention_input", "mlp_input"), gathered),
        }
        if sequence_parallel:
            plan |= dict.fromkeys(("norm1", "norm2"), SequenceParallel())
        layer = parallelize_module(_Layer(), mesh, plan)
        hidden = torch.zeros(1, _SEQUENCE, _WIDTH, requires_grad=True)
        given = distribute_tensor(hidden, mesh, [layout]) if sequence_parallel else hidden
        with CommDebugMode() as counted:
            made = layer(given)
            (made.to_local() if sequence_parallel else made).sum().backward()
    return Counter(
        {
            _NAMES[str(name).split(".")[-1].split("'")[0]]: count
            for name, count in counted.get_comm_counts().items()
        }
    )


def _ours(line: str) -> Counter[str]:
    layer = program(_MODEL, line, _RANKS).stages[0].blocks[1].compiled
    return Counter(
        step.kind.value
        for step in (*layer.forward, *layer.backward)
        if isinstance(step, Collective)
    )


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_collectives_are_those_of_dtensor(sequence_parallel: bool) -> None:
    assert _ours(f"tp=4 sp={int(sequence_parallel)}") == _dtensor(sequence_parallel)
