"""``tp=2`` of attention whose heads share keys, or whose queries are read in two ways.

The truth is a module of half as many heads, which is what each of two ranks has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from byteprophet.simulate.compile.compiled import Compiled
from byteprophet.simulate.compile.program import Stage, compile_program
from byteprophet.simulate.compile.steps import Collective, Compute, Phase
from byteprophet.simulate.models.traced import traced
from byteprophet.simulate.tree.one_line import parse_strategy

_BATCH, _TOKENS, _WIDTH, _HEADS = 2, 16, 64, 4
_PLAIN, _TURNED, _LATENT = 16, 8, 32
_VALUES = _PLAIN + _TURNED  # a fused kernel wants values as wide as keys


def _turned(rows: Tensor) -> Tensor:
    """Rotary positions."""
    places = torch.arange(_TOKENS, device=rows.device).float()
    angles = torch.outer(places, places[: _TURNED // 2])
    angles = torch.cat([angles, angles], -1)
    one, other = rows.chunk(2, -1)
    crossed = torch.cat([-other, one], -1)
    return rows * angles.cos().to(rows.dtype) + crossed * angles.sin().to(rows.dtype)


class _Latent(nn.Module):
    """Multi-head latent attention (DeepSeek-V2): all heads have the same turned part of keys."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.queries = nn.Linear(_WIDTH, heads * (_PLAIN + _TURNED), bias=False)
        self.down = nn.Linear(_WIDTH, _LATENT + _TURNED, bias=False)
        self.norm = nn.LayerNorm(_LATENT)
        self.up = nn.Linear(_LATENT, heads * (_PLAIN + _VALUES), bias=False)
        self.out = nn.Linear(heads * _VALUES, _WIDTH, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        batch, heads = len(rows), self.heads
        queries = self.queries(rows).view(batch, _TOKENS, heads, -1).transpose(1, 2)
        plain, turned = queries.split([_PLAIN, _TURNED], -1)
        latent, shared = self.down(rows).split([_LATENT, _TURNED], -1)
        both = self.up(self.norm(latent)).view(batch, _TOKENS, heads, -1).transpose(1, 2)
        keys, values = both.split([_PLAIN, _VALUES], -1)
        shared = _turned(shared.view(batch, 1, _TOKENS, _TURNED)).expand(-1, heads, -1, -1)
        queries = torch.cat([plain, _turned(turned)], -1)
        keys = torch.cat([keys, shared], -1)
        found = functional.scaled_dot_product_attention(queries, keys, values)
        made: Tensor = self.out(found.transpose(1, 2).reshape(batch, _TOKENS, -1))
        return made


class _First(nn.Module):
    """The first head of queries is read beside attention."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(_WIDTH, _WIDTH) for _ in range(4))

    def forward(self, rows: Tensor) -> Tensor:
        queries, keys, values = (
            layer(rows).view(*rows.shape[:2], _HEADS, -1).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        found = functional.scaled_dot_product_attention(queries, keys, values)
        made: Tensor = self.out(found.transpose(1, 2).flatten(2))
        return made + queries[:, 0].exp().sum((1, 2))[:, None, None]


def _stage(module: Callable[[], nn.Module], tp: int) -> Stage:
    def make(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
        first = nn.LayerNorm(_WIDTH)  # so that the rows have a gradient
        return nn.Sequential(first, module()), (torch.ones(batch, _TOKENS, _WIDTH),)

    strategy = parse_strategy(f"tp={tp} micro_batch={_BATCH}", tp)
    return compile_program(traced("own", make)(strategy.samples), strategy).stages[0]


def _attention(stage: Stage) -> Compiled:
    return next(block.compiled for block in stage.blocks if block.path == "1")


def _collectives(steps: Any) -> list[tuple[str, int]]:
    return [(one.kind.value, one.size_bytes) for one in steps if isinstance(one, Collective)]


def test_keys_that_heads_share_are_whole_on_each_rank_and_have_sums_of_gradients() -> None:
    attention = _attention(_stage(lambda: _Latent(_HEADS), 2))
    rows = _BATCH * _TOKENS * 2
    forward, backward = _collectives(attention.forward), _collectives(attention.backward)
    assert [one for one in forward if one[0] == "all-reduce"] == [("all-reduce", rows * _WIDTH)]
    # What the layer makes that is not of heads is split by columns, so it is gathered.
    assert ("all-gather", rows * _LATENT) in forward
    assert max(size for kind, size in forward if kind == "all-gather") == rows * _LATENT
    summed = sorted(size for kind, size in backward if kind == "all-reduce")
    assert summed == [rows * _TURNED, rows * _LATENT, rows * _WIDTH]


def test_each_rank_has_the_work_and_the_memory_of_its_heads() -> None:
    half = _Latent(_HEADS // 2).bfloat16()
    rows = torch.ones(_BATCH, _TOKENS, _WIDTH, dtype=torch.bfloat16, requires_grad=True)
    known = {one.untyped_storage().data_ptr() for one in (*half.parameters(), rows)}
    saved: dict[int, Any] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            saved[storage.data_ptr()] = storage
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION),
    ):
        half(rows)
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        _Latent(_HEADS // 2)(torch.empty(_BATCH, _TOKENS, _WIDTH))
    attention = _attention(_stage(lambda: _Latent(_HEADS), 2))
    flops = sum(
        one.operator.flops // (2 if one.splits else 1)
        for one in attention.forward
        if isinstance(one, Compute) and one.phase is Phase.FORWARD
    )
    of_down = 2 * _BATCH * _TOKENS * _WIDTH * (_LATENT + _TURNED)
    assert flops == counter.get_total_flops() - of_down // 2  # which is split here
    statistics = _BATCH * _TOKENS * 2 * 2  # of the norm: they have 32 bits on GPUs, 16 on CPUs
    elsewhere = _TOKENS * _TURNED // 2 * 2  # half of the cosines that meet columns of ``down``
    theirs = sum(one.nbytes() for one in saved.values())
    assert attention.saved_bytes == theirs + statistics - elsewhere


def test_a_head_that_is_read_beside_attention_is_gathered() -> None:
    attention = _attention(_stage(_First, 2))
    rows = _BATCH * _TOKENS * _WIDTH * 2
    assert sorted(_collectives(attention.forward)) == [("all-gather", rows), ("all-reduce", rows)]


class _Steps(nn.Module):
    """A layer with a bias that runs again on what it made."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, rows: Tensor) -> Tensor:
        for _ in range(3):
            rows = torch.tanh(self.layer(rows))
        return rows


@pytest.mark.parametrize("tp", [2, 4])
def test_a_layer_that_runs_again_is_split_with_its_bias(tp: int) -> None:
    attention = _attention(_stage(_Steps, tp))
    rows = _BATCH * _TOKENS * _WIDTH * 2
    assert _collectives(attention.forward) == [("all-gather", rows)] * 2
    sizes = {one.shared: one.elements for one in attention.parameters}
    assert sizes == {"1.layer.weight": _WIDTH * _WIDTH // tp, "1.layer.bias": _WIDTH // tp}
