"""Units of an output depend on the same units of the inputs alone, as PyTorch computes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from byteprophet.simulate.models.traced_flow import passed_on
from byteprophet.simulate.models.traced_spans import Span, Spans

_BATCH, _TOKENS, _HEADS, _WIDTH = 2, 3, 4, 6
_COLUMNS = _HEADS * _WIDTH
_Input = tuple[tuple[int, ...], int]  # its shape, and the axis of which ranks have units
_ROWS: _Input = (_BATCH, _TOKENS, _COLUMNS), 2
_LAST_FIRST: _Input = (_BATCH, _TOKENS, _HEADS, _WIDTH), 2
_BY_HEAD: _Input = (_BATCH, _HEADS, _TOKENS, _WIDTH), 1


@dataclass
class _Given:
    shape: tuple[int, ...]
    spans: Spans
    is_free: bool = False

    @property
    def own_shape(self) -> tuple[int, ...]:
        return self.shape


@dataclass
class _Case:
    """A call of ``target``. ``passes``: whether its output has the units of its inputs."""

    target: str
    inputs: Sequence[_Input]
    call: Callable[..., Tensor]
    others: Mapping[str, Any]
    passes: bool = True


def _case(
    target: str, inputs: Sequence[_Input], call: Callable[..., Tensor], **others: Any
) -> _Case:
    return _Case(target, inputs, call, others)


def _stops(
    target: str, inputs: Sequence[_Input], call: Callable[..., Tensor], **others: Any
) -> _Case:
    return _Case(target, inputs, call, others, passes=False)


_CASES = [
    _case("view", [_ROWS], lambda x: x.view(_BATCH, _TOKENS, _HEADS, _WIDTH)),
    _case("reshape", [_LAST_FIRST], lambda x: x.reshape(_BATCH, _TOKENS, _COLUMNS)),
    _case("gelu", [_ROWS], functional.gelu),
    _case("mul", [_ROWS, _ROWS], torch.mul),
    _case("add", [_BY_HEAD, _BY_HEAD], torch.add),
    _case("transpose", [_LAST_FIRST], lambda x: x.transpose(1, 2), dim0=1, dim1=2),
    _case("movedim", [_BY_HEAD], lambda x: x.movedim(1, 3), source=1, destination=3),
    _case("mT", [_LAST_FIRST], lambda x: x.mT),
    _case("swapaxes", [_LAST_FIRST], lambda x: x.swapaxes(1, 2), axis0=1, axis1=2),
    _case("t", [((4, 6), 1)], lambda x: x.t()),
    _case("permute", [_BY_HEAD], lambda x: x.permute(2, 0, 1, 3), dims=[2, 0, 1, 3]),
    _case("softmax", [_BY_HEAD], lambda x: x.softmax(-1), dim=-1),
    _stops("softmax", [_ROWS], lambda x: x.softmax(-1), dim=-1),
    _case("cumsum", [_ROWS], lambda x: x.cumsum(1), dim=1),
    _case("layer_norm", [_BY_HEAD], lambda x: functional.layer_norm(x, [6]), normalized_shape=[6]),
    _stops("layer_norm", [_ROWS], lambda x: functional.layer_norm(x, [24]), normalized_shape=[24]),
    _case("scaled_dot_product_attention", [_BY_HEAD] * 3, functional.scaled_dot_product_attention),
    _stops("scaled_dot_product_attention", [_ROWS] * 3, functional.scaled_dot_product_attention),
    _case("matmul", [_BY_HEAD, ((_BATCH, _HEADS, _WIDTH, 5), 1)], torch.matmul),
    _stops("matmul", [_ROWS, ((_BATCH, _COLUMNS, 5), 1)], torch.matmul),
    _case("bmm", [((4, 3, 5), 0), ((4, 5, 2), 0)], torch.bmm),
    _case("sum", [_ROWS], lambda x: x.sum(1), dim=[1]),
    _stops("sum", [_ROWS], lambda x: x.sum(2), dim=[2]),
    _stops("sum", [_ROWS], lambda x: x.sum(), dim=None),
    _case("mean", [_BY_HEAD], lambda x: x.mean(-1, True), dim=[-1], keepdim=True),
    _case("select", [_ROWS], lambda x: x.select(1, 2), dim=1, index=2),
    _stops("select", [_BY_HEAD], lambda x: x.select(1, 2), dim=1, index=2),
    _case("slice", [_ROWS], lambda x: x[:, 1:], dim=1, start=1),
    _case("cat", [_BY_HEAD, _BY_HEAD], lambda *x: torch.cat(x, -1), dim=-1),
    _stops("cat", [_BY_HEAD, _BY_HEAD], lambda *x: torch.cat(x, 1), dim=1),
    _case("stack", [_ROWS, _ROWS], lambda *x: torch.stack(x, 1), dim=1),
    _case("repeat_interleave", [_BY_HEAD], lambda x: x.repeat_interleave(3, 1), repeats=3, dim=1),
    _case("expand", [((_BATCH, _HEADS, 1, _WIDTH), 1)], lambda x: x.expand(-1, -1, 5, -1)),
    _stops("no_such_operator", [_ROWS], torch.neg),
]


def _span(shape: Sequence[int], axis: int) -> Span:
    stride = prod(shape[axis + 1 :])
    return stride, stride * shape[axis]


def _unit_of(span: Span, shape: Sequence[int]) -> Tensor:
    """The unit of each element."""
    low, high = span
    return torch.arange(prod(shape)).view(*shape) // low % (high // low)


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case.target)
def test_units_depend_on_the_same_units_alone(case: _Case) -> None:
    torch.manual_seed(1)
    inputs = [torch.randn(shape, dtype=torch.float64) for shape, _ in case.inputs]
    spans = [_span(shape, axis) for shape, axis in case.inputs]
    given = [_Given(shape, (span,)) for (shape, _), span in zip(case.inputs, spans, strict=True)]
    before = case.call(*inputs)
    shape, axis = case.inputs[0]
    found = passed_on(case.target, {**case.others, "tensors": given}, tuple(before.shape))
    if not case.passes:
        assert found.spans == ()
        return
    assert found.units == shape[axis]
    assert [any(one is each for each in found.shared) for one in given] == [True] * len(given)
    span = found.spans[0]
    assert span[1] // span[0] == found.units
    for unit in range(found.units):
        changed = [
            one + (_unit_of(own, one.shape) == unit) for one, own in zip(inputs, spans, strict=True)
        ]
        differs = case.call(*changed) != before
        assert differs.any()
        assert not differs[_unit_of(span, before.shape) != unit].any()


def test_parts_of_fused_columns_have_all_units() -> None:
    """Each rank has its part of queries, of keys and of values."""
    fused = _Given((_BATCH, _TOKENS, 3 * _COLUMNS), ((1, 3 * _COLUMNS),))
    found = passed_on("chunk", {"self": fused, "chunks": 3, "dim": -1}, _ROWS[0])
    assert (found.spans, found.units) == (((1, _COLUMNS),), _COLUMNS)
    uneven = (_BATCH, _TOKENS, _COLUMNS // 2 * 3)
    found = passed_on("split", {"self": fused, "dim": 2}, uneven)
    assert found.units == _COLUMNS // 2 * 3


def test_a_part_begins_with_a_unit() -> None:
    heads = _Given(_ROWS[0], ((_WIDTH, _COLUMNS),))
    two = (_BATCH, _TOKENS, 2 * _WIDTH)
    for start, passes in ((_WIDTH, True), (-2 * _WIDTH, True), (_WIDTH // 2, False)):
        given = {"self": heads, "dim": 2, "start": start, "end": start + 2 * _WIDTH}
        assert bool(passed_on("slice", given, two).spans) == passes
    by_head = _Given(_BY_HEAD[0], (_span(*_BY_HEAD), (1, _WIDTH)))
    pairs = {"self": by_head, "dim": 3, "start": 1, "end": None, "step": 2}
    found = passed_on("slice", pairs, (*_BY_HEAD[0][:3], _WIDTH // 2))
    assert found.units == _HEADS
    assert len(found.spans) == 1
    every_other = {"self": heads, "dim": 2, "start": 0, "end": None, "step": 2}
    assert passed_on("slice", every_other, (_BATCH, _TOKENS, _COLUMNS // 2)).spans == ()


def test_a_fused_tensor_is_taken_apart_into_heads() -> None:
    fused = _Given((_BATCH, _TOKENS, 3, _HEADS, _WIDTH), ((1, 3 * _COLUMNS),))
    found = passed_on("select", {"self": fused, "dim": 2, "index": 1}, _LAST_FIRST[0])
    assert found.units == _HEADS
    assert found.spans[0] == (_WIDTH, _COLUMNS)
    # Not so if it is a sum over them.
    assert passed_on("sum", {"self": fused, "dim": [2]}, _LAST_FIRST[0]).spans == ()


def test_what_is_the_same_for_all_units_is_read_whole() -> None:
    rows = _Given(_ROWS[0], ((1, _COLUMNS),))
    gate = _Given((_BATCH, _TOKENS, 1), ())
    found = passed_on("mul", {"self": rows, "other": gate}, _ROWS[0])
    assert found.spans == rows.spans
    assert found.shared == [rows]
    queries = _Given(_BY_HEAD[0], (_span(*_BY_HEAD),))
    keys = _Given((_BATCH, 1, _WIDTH, _TOKENS), ((_TOKENS, _WIDTH * _TOKENS),))
    found = passed_on(
        "matmul", {"self": queries, "other": keys}, (_BATCH, _HEADS, _TOKENS, _TOKENS)
    )
    assert found.units == _HEADS
    assert found.shared == [queries]


def test_tensors_that_ranks_can_cut_do_not_stop_units() -> None:
    rows = _Given(_ROWS[0], ((1, _COLUMNS),))
    scale, everywhere = _Given((_COLUMNS,), (), is_free=True), _Given((1,), (), is_free=True)
    found = passed_on("mul", {"self": rows, "other": scale}, _ROWS[0])
    assert (found.spans, found.shared) == (rows.spans, [rows, scale])
    assert passed_on("mul", {"self": rows, "other": everywhere}, _ROWS[0]).shared == [rows]
    whole = _Given(_ROWS[0], ())
    assert passed_on("add", {"self": rows, "other": whole}, _ROWS[0]).spans == ()


def test_tensors_without_elements_pass_nothing_on() -> None:
    rows = _Given(_ROWS[0], ((1, _COLUMNS),))
    nothing = (_BATCH, 0, _COLUMNS)
    assert passed_on("slice", {"self": rows, "dim": 1, "start": 0}, nothing).spans == ()
    empty = _Given(nothing, ((1, _COLUMNS),))
    assert passed_on("cat", {"tensors": [empty, rows], "dim": 1}, _ROWS[0]).spans == ()
