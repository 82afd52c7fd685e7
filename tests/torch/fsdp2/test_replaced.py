"""A parameter that the script kept from before its model was sharded."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from byteprophet.torch.fsdp2.replaced import is_replaced, replace


def test_any_use_of_it_is_an_error() -> None:
    parameter = nn.Parameter(torch.ones(1000))
    alias = parameter.data
    replace(parameter)
    assert is_replaced(parameter)
    assert {parameter: 1}[parameter] == 1
    for use in (
        lambda: nn.utils.clip_grad_norm_([parameter], 1.0),
        lambda: parameter.grad,
        lambda: parameter.data,
        lambda: parameter + 1,
        lambda: torch.optim.SGD([parameter], lr=0.1),
    ):
        with pytest.raises(RuntimeError, match="was replaced when sync='fsdp2'"):
            use()
    assert len(alias) == 1000
