"""The memory of kernels: an operator whose scratch memory is known, and what is not run at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from byteprophet.memory.kernels import Kernel, KernelMemory, Layout, kernel_of

SCRATCH = 1 << 20


@pytest.fixture(scope="module")
def roomy() -> Iterator[Any]:
    """Copies its argument, and takes ``SCRATCH`` bytes meanwhile."""
    with torch.library._scoped_library("byteprophet_test", "FRAGMENT") as library:
        library.define("roomy(Tensor values) -> Tensor")
        library.define("picky(Tensor values) -> Tensor")

        def run(values: Tensor) -> Tensor:
            scratch = torch.empty(SCRATCH, dtype=torch.uint8)
            result = values.clone()
            del scratch
            return result

        def refuse(values: Tensor) -> Tensor:
            raise RuntimeError("zeros are not what I want")

        library.impl("roomy", run, "CPU")
        library.impl("picky", refuse, "CPU")
        yield torch.ops.byteprophet_test


def kernel(operator: Any, *args: Any, made_bytes: int = 1 << 20) -> Kernel | None:
    leaves, tree = tree_flatten((args, {}))
    return kernel_of(operator, leaves, tree, made_bytes)


def test_scratch_memory_and_results_are_measured(roomy: Any) -> None:
    values = torch.ones(1 << 16)
    memory = KernelMemory()
    called = kernel(roomy.roomy.default, values)
    assert called is not None
    memory.measure([called, None, called])
    assert memory.extra_bytes == {called: SCRATCH + values.nbytes}
    assert not memory.refused


def test_a_kernel_that_refuses_zeros_is_named(roomy: Any) -> None:
    memory = KernelMemory()
    called = kernel(roomy.picky.default, torch.ones(1 << 16))
    memory.measure([called])
    assert memory.refused == {called}


def test_what_needs_no_memory_of_its_own_is_not_run() -> None:
    large, small = torch.ones(1 << 16), torch.ones(4)
    add, matmul = torch.ops.aten.add.Tensor, torch.ops.aten.mm.default
    assert kernel(add, large, large) is None
    assert kernel(add, large, large.double()) is not None  # it converts one of them
    assert kernel(matmul, small.view(2, 2), small.view(2, 2), made_bytes=16) is None
    assert kernel(torch.ops.aten.view.default, large, [256, 256], made_bytes=0) is None
    assert kernel(torch.ops.aten.mm.default, large.view(256, 256), large.view(256, 256)) is not None


def test_a_layout_shares_memory_as_its_original_does() -> None:
    made = Layout((3, 4), (0, 2), torch.float32).zeros()
    assert made.shape == (3, 4)
    assert made.stride() == (0, 2)
    assert made.untyped_storage().nbytes() == 7 * 4
    assert Layout((0, 4), (4, 1), torch.float32).zeros().numel() == 0
