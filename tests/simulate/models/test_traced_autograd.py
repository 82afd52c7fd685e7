"""What autograd saves and computes of operators, against real tensors on the CPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from byteprophet.simulate.compile.program import compile_program
from byteprophet.simulate.models.traced import Make, traced
from byteprophet.simulate.tree.one_line import parse_strategy

_BATCH, _TOKENS, _WIDTH = 4, 32, 64
_Call = Callable[["_All", Tensor, Tensor], Tensor]
"""Of the module, a tensor with a gradient and one without."""


def _indices(tensor: Tensor) -> Tensor:
    return torch.arange(_WIDTH, device=tensor.device)


def _filled(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor).index_copy_(-1, _indices(tensor), tensor)


def _gates(tensor: Tensor) -> Tensor:
    return torch.ones(4 * _WIDTH, _WIDTH, dtype=tensor.dtype, device=tensor.device)


def _norm_in_32_bits(own: _All, rows: Tensor, _: Tensor) -> Tensor:
    """As Hugging Face's Llama has it."""
    wide = rows.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
    return own.scale * wide.to(rows.dtype)


_CALLS: Mapping[str, _Call] = {
    "times a number": lambda _, x, c: x * 2.0,
    "over a number": lambda _, x, c: x / 3,
    "from a number": lambda _, x, c: 1 - x,
    "and a number": lambda _, x, c: x + 1,
    "negative": lambda _, x, c: -x,
    "plus": lambda _, x, c: x + c,
    "minus": lambda _, x, c: c - x,
    "times a constant": lambda _, x, c: x * c,
    "over a constant": lambda _, x, c: x / c,
    "constant over": lambda _, x, c: c / x,
    "times itself": lambda _, x, c: x * x,
    "times a parameter": lambda own, x, c: x * own.scale,
    "times a frozen parameter": lambda own, x, c: x * own.frozen,
    "addcmul": lambda _, x, c: torch.addcmul(x, c, c),
    "lerp": lambda _, x, c: torch.lerp(x, c, 0.5),
    "where": lambda _, x, c: torch.where(c > 0, x, 0.0),
    "masked_fill": lambda _, x, c: x.masked_fill(c > 0, 0.0),
    "clamp": lambda _, x, c: x.clamp(0, 1),
    "abs": lambda _, x, c: x.abs(),
    "exp": lambda _, x, c: x.exp(),
    "sqrt": lambda _, x, c: x.sqrt(),
    "pow": lambda _, x, c: x**3,
    "relu": lambda _, x, c: functional.relu(x),
    "relu in place": lambda _, x, c: functional.relu(x + 1, inplace=True),
    "leaky_relu": lambda _, x, c: functional.leaky_relu(x),
    "gelu": lambda _, x, c: functional.gelu(x),
    "silu": lambda _, x, c: functional.silu(x),
    "sigmoid": lambda _, x, c: x.sigmoid(),
    "softplus": lambda _, x, c: functional.softplus(x),
    "softmax": lambda _, x, c: x.softmax(-1),
    "stack": lambda _, x, c: torch.stack([x, x * 2]),
    "cat": lambda _, x, c: torch.cat([x, c], -1),
    "roll": lambda _, x, c: x.roll(1, -1),
    "flip": lambda _, x, c: x.flip(-1),
    "pad": lambda _, x, c: functional.pad(x, (1, 1)),
    "repeat": lambda _, x, c: x.repeat(1, 2, 1),
    "repeat_interleave": lambda _, x, c: x.repeat_interleave(2, 1),
    "cumsum": lambda _, x, c: x.cumsum(-1),
    "tril": lambda _, x, c: x.tril(),
    "index_select": lambda _, x, c: x.index_select(-1, _indices(x)),
    "index_copy": lambda _, x, c: _filled(x),
    "gather": lambda _, x, c: x.gather(-1, c.argsort(-1)),
    "sum": lambda _, x, c: x.sum(-1),
    "mean": lambda _, x, c: x.mean(-1),
    "amax": lambda _, x, c: x.amax(-1),
    "var": lambda _, x, c: x.var(-1),
    "norm": lambda _, x, c: functional.normalize(x, dim=-1),
    "layer_norm": lambda _, x, c: functional.layer_norm(x, (_WIDTH,)),
    "avg_pool1d": lambda _, x, c: functional.avg_pool1d(x, 2),
    "max_pool2d": lambda _, x, c: functional.max_pool2d(x, 2),
    "interpolate": lambda _, x, c: functional.interpolate(x, scale_factor=2),
    "cross_entropy": lambda _, x, c: functional.cross_entropy(x, c),
    "mse_loss": lambda _, x, c: functional.mse_loss(x, c),
    "product with a constant": lambda _, x, c: x @ c.transpose(1, 2),
    "product with itself": lambda _, x, c: x @ x.transpose(1, 2),
    "expanded weight": lambda own, x, c: torch.bmm(x, own.square.expand(x.shape[0], -1, -1)),
    "frozen weight": lambda own, x, c: x @ own.frozen_square,
    "three factors": lambda own, x, c: torch.einsum(
        "bsd,de,ef->bsf", x, own.square, own.frozen_square
    ),
    "a part": lambda _, x, c: x[:, :4].exp() * x[:, 4:8].sigmoid(),
    "repeated heads": lambda _, x, c: (
        x[:, None].expand(-1, 2, -1, -1).reshape(x.shape[0], -1, _WIDTH).sin()
    ),
    "copied by reshape": lambda _, x, c: x.exp().transpose(1, 2).reshape(x.shape[0], -1).sin(),
    "copied and as it was": lambda _, x, c: x.sin() + x.transpose(1, 2).contiguous().cos().sum(),
    "cloned": lambda _, x, c: x.clone().sin() * x,
    "converted to its own type": lambda _, x, c: x.to(x.dtype).sin() * x,
    "dropout of nothing": lambda _, x, c: functional.dropout(x, 0.0).sin(),
    "softmax in 32 bits": lambda _, x, c: x.softmax(-1, dtype=torch.float32).to(x.dtype),
    "norm in 32 bits": _norm_in_32_bits,
    "loss in 32 bits": lambda _, x, c: functional.cross_entropy(
        x.float().flatten(0, 1), c.argmax(-1).flatten()
    ),
    "logsumexp in 32 bits": lambda _, x, c: x.float().logsumexp(-1),
    "layer_norm in 32 bits": lambda _, x, c: functional.layer_norm(x.float(), (_WIDTH,)),
    "gates in one tensor": lambda _, x, c: torch.lstm_cell(
        c[:, 0], [x[:, 0], x[:, 1]], _gates(x), _gates(x)
    )[0],
    "detached": lambda _, x, c: x * x.detach().sin(),
    "without gradient": lambda _, x, c: x + x.argmax(-1, keepdim=True),
}


class _One(nn.Module):
    """One call."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, every: _All, rows: Tensor, constant: Tensor) -> Tensor:
        return _CALLS[self.name](every, rows, constant)


class _All(nn.Module):
    """All calls, each of a tensor of its own. ``around``: a context for each."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(_WIDTH, _WIDTH)
        self.scale = nn.Parameter(torch.zeros(_WIDTH))
        self.square = nn.Parameter(torch.zeros(_WIDTH, _WIDTH))
        self.frozen = nn.Parameter(torch.zeros(_WIDTH), requires_grad=False)
        self.frozen_square = nn.Parameter(torch.zeros(_WIDTH, _WIDTH), requires_grad=False)
        self.calls = nn.ModuleList(_One(name) for name in _CALLS)
        self.around: Callable[[str], Any] = nullcontext

    def forward(self, rows: Tensor, constant: Tensor) -> tuple[Tensor, ...]:
        found = []
        for call in self.calls:
            given = self.layer(rows)
            with self.around(call.name):
                found.append(call(self, given, constant))
        return tuple(found)


def _all(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
    return _All(), tuple(torch.ones(batch, _TOKENS, _WIDTH) for _ in range(2))


def test_each_operator_keeps_what_autograd_keeps() -> None:
    module, inputs = _all(_BATCH)
    module, inputs = module.bfloat16(), tuple(one.bfloat16() for one in inputs)
    known = {one.untyped_storage().data_ptr() for one in module.parameters()}
    saved: dict[str, dict[int, Any]] = defaultdict(dict)

    def around(name: str) -> Any:
        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in known:
                saved[name][storage.data_ptr()] = storage
            return tensor

        return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)

    module.around = around
    module(*inputs)
    theirs = {name: sum(one.nbytes() for one in saved[name].values()) for name in _CALLS}
    ours: dict[str, dict[str, int]] = defaultdict(dict)
    for path, operator in traced("all", _all)(_BATCH).root.operators():
        if path.startswith("calls."):
            name = list(_CALLS)[int(path.split(".")[1])]
            for access in (*operator.inputs, *operator.outputs):
                if access.tensor in operator.saved:
                    ours[name][access.tensor] = operator.elements(access) * access.element_bytes
    found = {name: sum(ours[name].values()) for name in _CALLS}
    # A norm's statistics of rows with 16 bits have 32 bits on GPUs, and 16 on CPUs.
    theirs["layer_norm"] += _BATCH * _TOKENS * 2 * 2
    assert found == theirs
    assert max(found.values()) > 0


class _Ways(nn.Module):
    """Layers that get gradients, and layers that do not although they require them."""

    def __init__(self) -> None:
        super().__init__()
        names = ("quiet", "cut", "chosen", "unread", "both", "layer")
        for name in names:
            setattr(self, name, nn.Linear(_WIDTH, _WIDTH))
        self.fixed = nn.Linear(_WIDTH, _WIDTH).requires_grad_(False)

    def forward(self, rows: Tensor) -> Tensor:
        with torch.no_grad():
            rows = self.both(self.quiet(rows))
        rows = self.layer(rows + self.cut(rows).detach())
        self.unread(rows).sum()
        rows = rows + self.chosen(rows).argmax(-1, keepdim=True)
        made: Tensor = self.both(self.fixed(rows))
        return made


def _ways(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
    return _Ways(), (torch.ones(batch, _TOKENS, _WIDTH),)


def test_parameters_are_trained_that_have_a_gradient() -> None:
    module, inputs = _ways(_BATCH)
    with FlopCounterMode(display=False) as counter:
        module(*inputs).sum().backward()
    with_gradient = [one.numel() for one in module.parameters() if one.grad is not None]
    assert 0 < len(with_gradient) < len(list(module.parameters())) - 2
    model = traced("ways", _ways)(_BATCH)
    (stage,) = compile_program(model, parse_strategy(f"micro_batch={_BATCH}", 1)).stages
    kept = [one for block in stage.blocks for one in block.compiled.parameters if not one.repeated]
    assert sum(one.elements for one in kept if one.trained) == sum(with_gradient)
    assert model.flops() == counter.get_total_flops()


class _Product(nn.Module):
    def __init__(self, call: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.call = nn.Linear(_WIDTH, _WIDTH), call

    def forward(self, rows: Tensor) -> Tensor:
        return self.call(self.layer(rows), rows)


def _attention(*learns: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """Attention of which some of queries, keys and values have gradients."""

    def call(learned: Tensor, fixed: Tensor) -> Tensor:
        given = [(learned if one else fixed).unsqueeze(1) for one in learns]
        return functional.scaled_dot_product_attention(*given)

    return call


@pytest.mark.parametrize(
    ("call", "products"),
    [
        (_attention(False, False, True), 1),
        (_attention(True, False, False), 2),
        (_attention(True, True, True), 4),
        (lambda x, c: x @ c.transpose(1, 2), 1),
        (lambda x, c: x @ x.transpose(1, 2), 2),
    ],
)
def test_backward_flops_are_those_of_gradients_that_are_wanted(
    call: Callable[[Tensor, Tensor], Tensor], products: int
) -> None:
    """``products``: how many products of all tokens with all tokens there are, by hand."""
    make: Make = lambda batch: (_Product(call), (torch.ones(batch, _TOKENS, _WIDTH),))  # noqa: E731
    (layer, *_), (*_, last) = (
        [one for _, one in traced("own", make)(_BATCH).root.operators() if one.flops] for _ in "12"
    )
    assert layer.backward_flops == layer.flops
    assert last.backward_flops == products * 2 * _BATCH * _TOKENS * _TOKENS * _WIDTH
