"""``tp=N`` of a user's own modules: Megatron-LM's pairs of layers, however they are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from byteprophet.errors import UserError
from byteprophet.simulate.compile.program import Program, compile_program
from byteprophet.simulate.compile.steps import Collective, Compute, Phase, Step
from byteprophet.simulate.models.load import load_source
from byteprophet.simulate.models.traced import Make, traced
from byteprophet.simulate.operation.mesh import Mesh
from byteprophet.simulate.operation.operator import Kind
from byteprophet.simulate.tree.node import Tree
from byteprophet.simulate.tree.one_line import parse_strategy

from ...thorough import pairs

_WIDTH, _HEADS, _TOKENS, _WORDS = 64, 8, 16, 256
_HEAD = _WIDTH // _HEADS


def _heads(rows: Tensor) -> Tensor:
    return rows.view(*rows.shape[:2], -1, _HEAD).transpose(1, 2)


def _joined(heads: Tensor) -> Tensor:
    return heads.transpose(1, 2).flatten(2)


class _Fused(nn.Module):
    """One layer for queries, keys and values, divided as timm's ViT does."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.norm: nn.Module | None = nn.LayerNorm(_HEAD)

    def forward(self, rows: Tensor) -> Tensor:
        made = self.qkv(rows).reshape(*rows.shape[:2], 3, _HEADS, _HEAD).permute(2, 0, 3, 1, 4)
        queries, keys, values = made.unbind(0)
        assert self.norm is not None
        found = functional.scaled_dot_product_attention(self.norm(queries), keys, values)
        output: Tensor = self.out(_joined(found))
        return output


class _Split(_Fused):
    """Divided as GPT-2 does, with scores as matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = None

    def forward(self, rows: Tensor) -> Tensor:
        queries, keys, values = (_heads(one) for one in self.qkv(rows).split(_WIDTH, 2))
        scores = (queries @ keys.transpose(-2, -1) * 0.3).softmax(-1)
        output: Tensor = self.out(_joined(scores @ values))
        return output


class _Grouped(nn.Module):
    """Half as many heads of keys and values, repeated as Hugging Face's Llama does."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.out = nn.Linear(_WIDTH, _WIDTH, False), nn.Linear(_WIDTH, _WIDTH, False)
        self.k, self.v = (nn.Linear(_WIDTH, _WIDTH // 2, False) for _ in range(2))

    def forward(self, rows: Tensor) -> Tensor:
        keys, values = (_heads(layer(rows)) for layer in (self.k, self.v))
        keys, values = (self._repeated(one) for one in (keys, values))
        found = functional.scaled_dot_product_attention(_heads(self.q(rows)), keys, values)
        output: Tensor = self.out(_joined(found))
        return output

    @staticmethod
    def _repeated(heads: Tensor) -> Tensor:
        batch, count, tokens, width = heads.shape
        wide = heads[:, :, None].expand(batch, count, 2, tokens, width)
        return wide.reshape(batch, 2 * count, tokens, width)


class _Layer(nn.Module):
    def __init__(self, attention: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.attention, self.norm = attention(), nn.LayerNorm(_WIDTH)
        self.up, self.gate = (nn.Linear(_WIDTH, 4 * _WIDTH, False) for _ in range(2))
        self.down = nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, rows: Tensor) -> Tensor:
        rows = rows + self.attention(self.norm(rows))
        gated = functional.silu(self.gate(rows)) * self.up(rows)
        output: Tensor = rows + self.down(gated)
        return output


class _Transformer(nn.Module):
    def __init__(self, attention: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(_WORDS, _WIDTH), nn.Embedding(_TOKENS, _WIDTH)
        self.layers = nn.ModuleList(_Layer(attention) for _ in range(2))
        self.head = nn.Linear(_WIDTH, _WORDS, False)

    def forward(self, words: Tensor) -> Tensor:
        rows = self.words(words) + self.places(torch.arange(words.shape[1]))
        for layer in self.layers:
            rows = layer(rows)
        return functional.log_softmax(self.head(rows), -1)


def _transformer(attention: Callable[[], nn.Module]) -> Make:
    def make(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
        return _Transformer(attention), (torch.zeros(batch, _TOKENS, dtype=torch.long),)

    return make


def _program(make: Make, line: str, gpus: int) -> Program:
    strategy = parse_strategy(line, gpus)
    return compile_program(traced("own", make)(strategy.samples), strategy)


def _collectives(steps: Iterable[Step]) -> list[tuple[str, int]]:
    return [(one.kind.value, one.size_bytes) for one in steps if isinstance(one, Collective)]


@pytest.mark.parametrize(("attention", "tp"), pairs((_Fused, _Split, _Grouped), (2, 4)))
def test_layers_have_the_collectives_of_megatron(
    attention: Callable[[], nn.Module], tp: int
) -> None:
    make = _transformer(attention)
    blocks = _program(make, f"tp={tp} micro_batch=3", tp).stages[0].blocks
    rows = 3 * _TOKENS * _WIDTH * 2
    by_path = {block.path: block.compiled for block in blocks}
    layer = by_path["layers.1"]
    assert _collectives(layer.forward) == [("all-reduce", rows)] * 2
    assert _collectives(layer.backward) == [("all-reduce", rows)] * 2
    first = [list(by_path).index(path) for path in ("words", "layers.0")]
    before = [step for one in blocks[slice(*first)] for step in one.compiled.forward]
    assert _collectives(before) == [("all-reduce", rows)]  # of the words, not of the places
    module, _ = make(1)
    split = {"q", "k", "v", "qkv", "up", "gate", "down", "out"}
    own = 0
    for path, parameter in module.layers[1].named_parameters():  # type: ignore[union-attr,index]
        owner, kind = path.split(".")[-2:]
        # All but norms, and biases that are added to a sum over ranks, are divided.
        whole = owner not in split or (kind == "bias" and owner in ("down", "out"))
        own += parameter.numel() // (1 if whole else tp)
    assert sum(one.elements for one in layer.parameters) == own
    # Of norms of heads, each rank has gradients of its own heads. Biases have whole gradients.
    summed = {one.path.split(".")[-2] for one in layer.parameters if "tp" in one.summed}
    assert summed == ({"norm"} if attention is _Fused else set())


def test_what_needs_whole_rows_gathers_them() -> None:
    class Between(nn.Module):
        """A norm between two layers, so that their columns and rows are no pair."""

        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)
            self.norm = nn.LayerNorm(4 * _WIDTH)

        def forward(self, rows: Tensor) -> Tensor:
            output: Tensor = self.down(self.norm(self.up(rows)))
            return output

    program = _program(lambda batch: (Between(), (torch.zeros(batch, _WIDTH),)), "tp=4", 4)
    wide = 4 * _WIDTH * 2
    steps = [step for block in program.stages[0].blocks for step in block.compiled.forward]
    assert _collectives(steps) == [("all-gather", wide)]


class _OneHead(nn.Module):
    """Multi-query attention: all heads of queries have the same keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.out = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.k, self.v = nn.Linear(_WIDTH, _HEAD), nn.Linear(_WIDTH, _HEAD)

    def forward(self, rows: Tensor) -> Tensor:
        keys, values = (_heads(layer(rows)) for layer in (self.k, self.v))
        scores = (_heads(self.q(rows)) @ keys.transpose(-2, -1)).softmax(-1)
        output: Tensor = self.out(_joined(scores @ values))
        return output


class _Turned(_Fused):
    """Rotary positions, as complex numbers and made without gradients."""

    def forward(self, rows: Tensor) -> Tensor:
        queries, keys, values = (_heads(one) for one in self.qkv(rows).chunk(3, -1))
        with torch.no_grad():
            places = torch.arange(rows.shape[1], device=rows.device).float()
            angles = torch.outer(places, places[: _HEAD // 2])
        turn = torch.polar(torch.ones_like(angles), angles)
        queries, keys = (self._turned(one, turn) for one in (queries, keys))
        found = functional.scaled_dot_product_attention(queries, keys, values)
        output: Tensor = self.out(_joined(found))
        return output

    @staticmethod
    def _turned(heads: Tensor, turn: Tensor) -> Tensor:
        pairs = torch.view_as_complex(heads.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * turn).flatten(-2).type_as(heads)


class _Gated(_Fused):
    """A linear layer on each head, and a bias for each pair of places and head."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.places = nn.Linear(_HEAD, _HEAD), nn.Embedding(_TOKENS, _HEADS)

    def forward(self, rows: Tensor) -> Tensor:
        queries, keys, values = (_heads(one) for one in self.qkv(rows).chunk(3, -1))
        bias = self.places(torch.arange(_TOKENS)).t()[:, None]
        scores = (queries @ keys.transpose(-2, -1) + bias).softmax(-1)
        output: Tensor = self.out(_joined(scores @ values * self.gate(queries).sigmoid()))
        return output


def _steps(attention: Callable[[], nn.Module], *, backward: bool = False) -> list[tuple[str, int]]:
    def make(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
        whole = nn.Sequential(nn.LayerNorm(_WIDTH), attention())
        return whole, (torch.zeros(batch, _TOKENS, _WIDTH),)

    blocks = [block.compiled for block in _program(make, "tp=2", 2).stages[0].blocks]
    return _collectives(
        step for one in blocks for step in (one.backward if backward else one.forward)
    )


@pytest.mark.parametrize("attention", [_Turned, _Gated])
def test_attention_has_one_sum_each_way(attention: Callable[[], nn.Module]) -> None:
    total = ("all-reduce", _TOKENS * _WIDTH * 2)
    assert _steps(attention) == [total]
    # Each rank has gradients of the bias of its heads, and the table that it is made of is whole.
    bias = [("all-gather", _TOKENS * _HEADS * 2)] if attention is _Gated else []
    assert _steps(attention, backward=True) == [*bias, total]


def test_heads_that_all_ranks_need_are_gathered() -> None:
    size = _TOKENS * _HEAD * 2
    assert _steps(_OneHead)[:2] == [("all-gather", size)] * 2
    assert ("reduce-scatter", size) in _steps(_OneHead, backward=True)


def test_a_shared_weight_is_split_one_way() -> None:
    """The table of words is split by words, so the rows that meet it at the end are gathered."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.up = nn.Embedding(_WORDS, _WIDTH), nn.Linear(_WIDTH, _WIDTH)

        def forward(self, words: Tensor) -> Tensor:
            rows = functional.gelu(self.up(self.words(words)))
            return functional.linear(rows, self.words.weight)

    def make(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
        return Tied(), (torch.zeros(batch, _TOKENS, dtype=torch.long),)

    blocks = [block.compiled for block in _program(make, "tp=2", 2).stages[0].blocks]
    rows = _TOKENS * _WIDTH * 2
    assert _collectives(blocks[0].forward) == [("all-reduce", rows)]
    assert _collectives(blocks[-1].forward) == [("all-gather", rows)]
    shared = [one for block in blocks for one in block.parameters if one.shared]
    assert {one.elements for one in shared} == {_WORDS * _WIDTH // 2}


def test_a_weight_that_not_all_can_split_is_whole() -> None:
    class Tied(nn.Module):
        """The output is a product with the transposed table, as in OpenAI's Whisper."""

        def __init__(self) -> None:
            super().__init__()
            self.words, self.up = nn.Embedding(_WORDS, _WIDTH), nn.Linear(_WIDTH, _WIDTH, False)

        def forward(self, words: Tensor) -> Tensor:
            rows = self.up(self.words(words))
            return rows @ self.words.weight.to(torch.float64).to(rows.dtype).t()

    def make(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
        return Tied(), (torch.zeros(batch, _TOKENS, dtype=torch.long),)

    (stage,) = _program(make, "tp=2", 2).stages
    parameters = [one for block in stage.blocks for one in block.compiled.parameters]
    assert {one.elements for one in parameters if one.shared} == {_WORDS * _WIDTH}
    steps = [step for block in stage.blocks for step in block.compiled.forward]
    assert _collectives(steps) == [("all-gather", _TOKENS * _WIDTH * 2)]  # of the layer's columns


def test_what_cannot_be_counted_is_refused_in_one_line() -> None:
    class Chosen(nn.Module):
        def forward(self, rows: Tensor) -> Tensor:
            return rows[rows > 0].sum()

    with pytest.raises(UserError, match="model own: "):
        traced("own", lambda batch: (Chosen(), (torch.zeros(batch, 1, _WIDTH),)))


def test_data_parallel_ranks_all_do_what_depends_on_parameters_alone() -> None:
    class Prompted(nn.Module):
        """Learned rows that a layer transforms, and a loss."""

        def __init__(self) -> None:
            super().__init__()
            self.prompt = nn.Parameter(torch.zeros(_TOKENS, _WIDTH))
            self.layer = nn.Linear(_WIDTH, _WIDTH)

        def forward(self, rows: Tensor) -> Tensor:
            return (rows * self.layer(torch.tanh(self.prompt))).square().mean()

    def flops(ranks: int) -> int:  # of the layer, on one rank
        def make(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
            return Prompted(), (torch.zeros(batch, _TOKENS, _WIDTH),)

        program = _program(make, f"dp={ranks} micro_batch=4", ranks)
        blocks = [block.compiled for block in program.stages[0].blocks]
        steps = [step for one in blocks for step in (*one.forward, *one.backward)]
        assert _collectives([*steps, *program.stages[0].last]) == []
        summed = {one.summed for block in blocks for one in block.parameters}
        assert summed == ({("dp",)} if ranks > 1 else {()})
        (layer,) = (
            step
            for step in steps
            if isinstance(step, Compute)
            and step.operator.kind is Kind.MATMUL
            and step.phase is Phase.FORWARD
        )
        assert layer.splits == ()
        return layer.operator.flops

    assert flops(1) == flops(4) == 2 * _TOKENS * _WIDTH * _WIDTH


def test_heads_that_ranks_cannot_share_are_refused_with_a_way_out() -> None:
    make = _transformer(_Grouped)
    with pytest.raises(UserError, match=r"heads has size 4, .* 8 equal .* split = \{ tp = \[\] \}"):
        _program(make, "tp=8", 8)


def test_sequence_parallelism_without_a_sequence_is_refused() -> None:
    with pytest.raises(UserError, match="sequence parallelism: model own has no sequence"):
        _program(_transformer(_Fused), "tp=2 sp=1", 2)


def test_only_traced_models_have_features() -> None:
    tree = Tree(Mesh(tp=2))
    tree.split("features", "tp")
    model = traced("own", _transformer(_Fused))(1)
    assert compile_program(model, tree.strategy()).stages
    with pytest.raises(UserError, match="tp splits features, but no operator of gpt2 has such"):
        compile_program(load_source("gpt2")(1), tree.strategy())
