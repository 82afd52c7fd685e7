"""Operators as people write them: FLOPs and parameters are those that PyTorch counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.flop_counter import FlopCounterMode

from byteprophet.errors import UserError
from byteprophet.simulate.clusters.description import find_cluster
from byteprophet.simulate.compile.program import compile_program
from byteprophet.simulate.compile.steps import Collective, Compute, Phase
from byteprophet.simulate.costs.roofline import Roofline
from byteprophet.simulate.models.traced import Make, traced
from byteprophet.simulate.operation.mesh import Mesh
from byteprophet.simulate.tree.one_line import parse_strategy

_WIDTH, _HEADS, _TOKENS = 64, 4, 12


class _Rows(nn.Module):
    """A layer of one parameter; ``forward`` is that of a test's function."""

    def __init__(self, shape: tuple[int, ...], call: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.call = nn.Parameter(torch.zeros(shape)), call

    def forward(self, rows: Tensor) -> Tensor:
        return self.call(rows, self.weight)


class _Cross(nn.Module):
    """Attention whose keys come from elsewhere; its projections are pieces of one parameter."""

    def __init__(self, *, values: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(_WIDTH, _HEADS, batch_first=True)
        self.values = values

    def forward(self, rows: Tensor) -> Tensor:
        keys = rows.flip(1)
        values = keys * 2 if self.values else keys
        made: Tensor = self.attention(rows, keys, values, need_weights=False)[0]
        return made


class _Transposed(nn.Module):
    """As OpenAI's GPT-2: weights as (inner, columns), in ``addmm``."""

    def __init__(self, inner: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(inner, columns))
        self.bias = nn.Parameter(torch.zeros(columns))

    def forward(self, rows: Tensor) -> Tensor:
        made = torch.addmm(self.bias, rows.view(-1, rows.shape[-1]), self.weight)
        return made.view(*rows.shape[:-1], made.shape[-1])


class _Scores(nn.Module):
    """Attention by ``einsum`` and ``baddbmm``."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(_WIDTH, 3 * _WIDTH)

    def forward(self, rows: Tensor) -> Tensor:
        queries, keys, values = (
            one.unflatten(-1, (_HEADS, -1)) for one in self.qkv(rows).chunk(3, -1)
        )
        scores = torch.einsum("b i h d, b j h d -> b h i j", queries, keys).softmax(-1)
        made = torch.einsum("bhij,bjhd->bihd", scores, values).flatten(2)
        return torch.baddbmm(made, scores.mean(1), made)


class _Learned(nn.Module):
    """Queries that are learned meet those of a buffer in one layer each."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.layer = nn.Parameter(torch.zeros(8, _WIDTH)), nn.Linear(_WIDTH, _WIDTH)
        self.register_buffer("times", torch.zeros(1, _WIDTH))
        self.of_times = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, rows: Tensor) -> Tensor:
        return rows @ self.layer(self.queries).t() + self.of_times(self.times).sum()


class _Settings(nn.Module):
    """Parts in autocast, without autocast, and without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.fixed = (nn.Linear(_WIDTH, _WIDTH) for _ in range(3))

    def forward(self, rows: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            rows = self.first(rows)
        with torch.no_grad():
            target = self.fixed(rows)
        with torch.autocast("cpu", enabled=False):
            return self.second(rows.to(target.dtype)) - target


def _layer(module: Callable[[], nn.Module]) -> Make:
    def make(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
        return module(), (torch.zeros(batch, _TOKENS, _WIDTH),)

    return make


def _images(module: Callable[[], nn.Module]) -> Make:
    def make(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
        return module(), (torch.zeros(batch, 8, 6, 6),)

    return make


_MODULES: dict[str, Make] = {
    "cross attention": _layer(lambda: _Cross(values=False)),
    "cross attention with other values": _layer(lambda: _Cross(values=True)),
    "transposed": _layer(lambda: _Transposed(_WIDTH, 3 * _WIDTH)),
    "matmul": _layer(lambda: _Rows((_WIDTH, 48), lambda rows, own: rows @ own)),
    "matmul of a transposed weight": _layer(
        lambda: _Rows((48, _WIDTH), lambda rows, own: torch.matmul(rows, own.t()))
    ),
    "einsum with a parameter": _layer(
        lambda: _Rows((_WIDTH, 48), lambda rows, own: torch.einsum("bsd,de->bse", rows, own))
    ),
    "scores": _layer(_Scores),
    "learned": _layer(_Learned),
    "settings": _layer(_Settings),
    "weight norm": _layer(lambda: parametrizations.weight_norm(nn.Linear(_WIDTH, 48))),
    "a weight twice": _layer(
        lambda: _Rows((_WIDTH, _WIDTH), lambda rows, own: rows + functional.linear(own, own)[:1])
    ),
    "transposed convolution": _images(lambda: nn.ConvTranspose2d(8, 12, 3, stride=2, groups=2)),
    "convolution with weight norm": _images(
        lambda: parametrizations.weight_norm(nn.Conv2d(8, 12, 3))
    ),
}


@pytest.fixture(params=_MODULES)
def make(request: pytest.FixtureRequest) -> Make:
    return _MODULES[request.param]


def test_flops_and_parameters_are_those_of_pytorch(make: Make) -> None:
    with torch.device("meta"):
        module, inputs = make(6)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(*inputs)
    ours = traced("own", make)(6)
    assert sum(one.flops for _, one in ours.root.operators()) == counter.get_total_flops() > 0
    assert ours.parameters() == sum(parameter.numel() for parameter in module.parameters())


def test_each_can_be_simulated(make: Make) -> None:
    strategy = parse_strategy("dp=2 micro_batch=2", 2)
    program = compile_program(traced("own", make)(strategy.samples), strategy)
    assert program.stages[0].blocks


@pytest.mark.parametrize(
    "look_up",
    [
        lambda numbers, table: functional.embedding(numbers, table).sum(1),
        lambda numbers, table: functional.embedding_bag(numbers, table, mode="sum"),
        lambda numbers, table: table[numbers].sum(1),
        lambda numbers, table: table.index_select(0, numbers.flatten()),
        lambda numbers, table: table.gather(0, numbers.reshape(-1, 1).expand(-1, _WIDTH)),
    ],
)
def test_lookups_read_rows_and_not_the_whole_table(
    look_up: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """A bag reads as many rows as an embedding, and writes fewer."""
    samples, many, rows = 128, 50, 100_000

    def make(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
        return _Rows((rows, _WIDTH), look_up), (torch.zeros(batch, many, dtype=torch.long),)

    operators = traced("own", make)(samples).root.operators()
    (lookup,) = (one for _, one in operators if one.parameters)
    roofline = Roofline(find_cluster("dgx-a100").gpu, Mesh())
    forward, backward = (
        roofline.time_ns(Compute(lookup, (), phase)) for phase in (Phase.FORWARD, Phase.BACKWARD)
    )
    read_ns = roofline.memory_ns(samples * many * _WIDTH * 2)
    assert read_ns < forward <= 2 * read_ns
    assert backward == pytest.approx(forward + roofline.memory_ns(rows * _WIDTH * 2))


def _collectives(make: Make, *, backward: bool = False) -> list[tuple[str, int]]:
    strategy = parse_strategy("tp=2", 2)
    blocks = compile_program(traced("own", make)(strategy.samples), strategy).stages[0].blocks
    compiled = [block.compiled for block in blocks]
    steps = [step for one in compiled for step in (one.backward if backward else one.forward)]
    return [(one.kind.value, one.size_bytes) for one in steps if isinstance(one, Collective)]


@pytest.mark.parametrize("values", [False, True])
def test_pieces_of_a_weight_are_split_by_heads(values: bool) -> None:
    make = _layer(lambda: _Cross(values=values))
    assert _collectives(make) == [("all-reduce", _TOKENS * _WIDTH * 2)]
    strategy = parse_strategy("tp=2", 2)
    (stage,) = compile_program(traced("own", make)(strategy.samples), strategy).stages
    own = sum(one.elements for block in stage.blocks for one in block.compiled.parameters)
    # All but the bias of the last layer, which is added to a sum over ranks.
    assert own == (4 * _WIDTH * _WIDTH + 3 * _WIDTH) // 2 + _WIDTH


def test_layers_by_addmm_are_a_pair() -> None:
    def mlp() -> nn.Module:
        return nn.Sequential(
            _Transposed(_WIDTH, 4 * _WIDTH), nn.GELU(), _Transposed(4 * _WIDTH, _WIDTH)
        )

    assert _collectives(_layer(mlp)) == [("all-reduce", _TOKENS * _WIDTH * 2)]


def test_a_table_that_is_transposed_at_the_end_is_split_by_words() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(256, _WIDTH)

        def forward(self, words: Tensor) -> Tensor:
            return functional.gelu(self.words(words)) @ self.words.weight.t()

    def make(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
        return Tied(), (torch.zeros(batch, _TOKENS, dtype=torch.long),)

    strategy = parse_strategy("tp=2", 2)
    (stage,) = compile_program(traced("own", make)(strategy.samples), strategy).stages
    shared = {one.elements for block in stage.blocks for one in block.compiled.parameters}
    assert shared == {256 * _WIDTH // 2}


def test_pieces_that_overlap_are_no_parameters_of_their_own() -> None:
    def overlapping(rows: Tensor, own: Tensor) -> Tensor:
        return functional.linear(rows, own[:48]) * functional.linear(rows, own[16:])

    model = traced("own", _layer(lambda: _Rows((_WIDTH, _WIDTH), overlapping)))(2)
    assert model.parameters() == _WIDTH * _WIDTH


def test_dropout_of_nothing_is_no_operator() -> None:
    def operators(probability: float) -> list[str]:
        def layers() -> nn.Module:
            return nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.Dropout(probability), nn.ReLU())

        return [one.name for _, one in traced("own", _layer(layers))(2).root.operators()]

    assert operators(0.0) == ["linear", "relu"]
    assert operators(0.1) == ["linear", "dropout", "relu"]


class _Widened(nn.Module):
    """Its layers read 32 bits, which ``narrows`` converts as autocast does."""

    def __init__(self, narrows: bool) -> None:
        super().__init__()
        self.narrows = narrows
        self.layer, self.cut = nn.Linear(_WIDTH, _WIDTH), nn.Conv1d(_WIDTH, _WIDTH, 1)
        self.attention = nn.MultiheadAttention(_WIDTH, _HEADS, batch_first=True)

    def forward(self, rows: Tensor) -> Tensor:
        wide = rows + torch.arange(_WIDTH, device=rows.device).float().sin()
        read = self._read(wide)
        wide = self.attention(read, read, read, need_weights=False)[0].float()
        made = self.layer(self._read(wide)).float().exp()
        made = self.cut(self._read(made.mT))
        scores: Tensor = made @ self._read(wide)
        return scores

    def _read(self, wide: Tensor) -> Tensor:
        return wide.to(self.layer.weight.dtype) if self.narrows else wide


def test_products_of_16_and_32_bits_compute_in_16_as_under_autocast() -> None:
    rows = torch.rand(2, _TOKENS, _WIDTH, dtype=torch.bfloat16)
    mixed, narrow = _Widened(narrows=False).bfloat16(), _Widened(narrows=True).bfloat16()
    narrow.load_state_dict(mixed.state_dict())
    with pytest.raises(RuntimeError, match="dtype"):
        mixed(rows)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(mixed(rows), narrow(rows))
    found = [
        traced("own", _layer(lambda narrows=narrows: nn.Sequential(_Widened(narrows))))(2)
        for narrows in (False, True)
    ]
    first, second = (
        [each.flops for _, each in one.root.operators() if each.flops] for one in found
    )
    assert first == second
    assert len(first) > 3
    strategy = parse_strategy("micro_batch=2", 1)
    saved = [compile_program(one, strategy).stages[0].saved_bytes for one in found]
    assert saved[0] == saved[1]


def test_other_products_of_different_types_are_refused_with_the_module() -> None:
    class Contracted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(_WIDTH, _WIDTH)

        def forward(self, rows: Tensor) -> Tensor:
            return torch.ops.aten.linear(rows.float(), self.layer.weight)

    with pytest.raises(UserError, match=r"own: 0\.linear: multiplies .*bfloat16 and .*32"):
        traced("own", _layer(lambda: nn.Sequential(Contracted())))


def test_what_has_no_gradient_needs_no_backward_pass() -> None:
    model = traced("own", _layer(_Settings))(2)
    fixed = [one for path, one in model.root.operators() if path.startswith("fixed")]
    assert [access.differentiable for one in fixed for access in one.outputs] == [False]
