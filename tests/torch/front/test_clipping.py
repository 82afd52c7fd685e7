"""What gradients are clipped by where each rank has a shard: as torch clips all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from byteprophet.torch.front.clipping import by_norm
from byteprophet.torch.sync.alone import Alone


def front_of(parameters: list[Tensor], shard: slice | None) -> Any:
    """A front of one rank, which has ``shard`` of each gradient."""

    @contextmanager
    def averages(_: Any) -> Iterator[list[tuple[Tensor, slice | None]]]:
        yield [(each.grad, shard) for each in parameters if each.grad is not None]

    return SimpleNamespace(averages=averages, synchroniser=Alone(), timeout_s=10.0)


@pytest.mark.parametrize("shard", [None, slice(0, 2)])
@pytest.mark.parametrize("second", [torch.float32, torch.complex64])
def test_the_norm_has_the_type_of_all_parts(second: torch.dtype, shard: slice | None) -> None:
    """Of the first one's alone, half precision, it would be infinite, and all would become 0."""
    ours, plain = ([torch.ones(2, dtype=t) for t in (torch.float16, second)] for _ in range(2))
    for parameters in (ours, plain):
        for each in parameters:
            each.grad = torch.full_like(each, 4e4)
    total = by_norm(front_of(ours, shard), ours, clip_grad_norm_, 1.0)
    expected = clip_grad_norm_(plain, 1.0)
    assert total.dtype == expected.dtype == torch.float32
    assert total.isfinite()
    torch.testing.assert_close(total, expected)
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one.grad, other.grad)
