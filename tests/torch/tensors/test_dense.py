"""Elements in memory order, whatever shape and strides say."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from byteprophet.torch.tensors.dense import arranged, flat, is_dense


def some() -> dict[str, tuple[Tensor, bool]]:
    whole = torch.arange(24.0).reshape(2, 3, 2, 2)
    return {
        "contiguous": (whole, True),
        "channels last": (whole.to(memory_format=torch.channels_last), True),
        "transposed": (whole.reshape(4, 6).T, True),
        "a row of another": (whole.reshape(4, 6)[1], True),
        "a scalar": (torch.tensor(3.0), True),
        "empty": (torch.empty(0, 5), True),
        "of size one with any stride": (torch.zeros(10).as_strided((1, 3), (7, 1)), True),
        "a column": (whole.reshape(4, 6)[:, 1], False),
        "repeated": (torch.ones(3).expand(2, 3), False),
    }


@pytest.mark.parametrize("name", some())
def test_what_is_dense(name: str) -> None:
    tensor, dense = some()[name]
    assert is_dense(tensor) == dense


@pytest.mark.parametrize("name", [name for name, (_, dense) in some().items() if dense])
def test_a_flat_view_is_the_memory(name: str) -> None:
    tensor, _ = some()[name]
    view = flat(tensor)
    assert view.data_ptr() == tensor.data_ptr()
    assert sorted(view.tolist()) == sorted(tensor.flatten().tolist())
    view.fill_(7)
    assert (tensor == 7).all()


def test_arranged_as_another() -> None:
    like = some()["channels last"][0]
    tensor = torch.randn(like.shape)
    made = arranged(tensor, like)
    assert made.stride() == like.stride()
    assert torch.equal(made, tensor)
    assert arranged(made, like) is made
    half = tensor.half()
    assert arranged(half, like).dtype == torch.float16
