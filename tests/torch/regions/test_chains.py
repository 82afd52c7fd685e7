"""Chains of modules, found in one forward pass."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from byteprophet.torch.regions.calls import CallRecorder, ModuleCall
from byteprophet.torch.regions.chains import chains

from .models import Tower, convolutions


def found(model: nn.Module, data: Tensor) -> list[list[tuple[str, ...]]]:
    """The units of the model's chains."""
    calls: list[ModuleCall] = []
    CallRecorder(model, calls.append)
    model(data)
    model(data)  # only one pass is recorded
    (root,) = calls
    return [[unit.paths for unit in chain] for chain in chains(root)]


def test_modules_with_a_common_further_input_are_a_chain() -> None:
    """The layers around them get no such input, so they are chains of their own."""
    whole, *others = found(Tower(), torch.randn(2, 8))
    assert whole == [("",)]
    assert [("blocks.0",), ("blocks.1",), ("blocks.2",), ("blocks.3",)] in others
    assert [("first",)] in others


def test_sequences_are_opened_down_to_small_blocks() -> None:
    """What has no parameters joins what is before it."""
    chain = [
        ("0", "1"),
        ("2.0.0",),
        ("2.0.1",),
        ("2.1.0",),
        ("2.1.1", "3", "4"),
        ("5",),
    ]
    assert found(convolutions(), torch.randn(2, 3, 8, 8)) == [[("",)], chain]


def test_what_a_hook_sees_is_in_no_chain_with_its_neighbours() -> None:
    model = Tower()
    model.blocks[1].register_forward_hook(lambda module, inputs, output: None)
    runs = found(model, torch.randn(2, 8))
    assert [("blocks.2",), ("blocks.3",)] in runs
    assert not any(len(run) > 1 and ("blocks.1",) in run for run in runs)


class Twice(nn.Module):
    """Calls one of its modules twice, and changes what another one returned."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.one, self.other = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, data: Tensor) -> Tensor:
        data = self.one(self.shared(self.shared(data)))
        output: Tensor = self.other(torch.relu(data))
        return output


def test_only_what_is_called_once_and_right_behind_is_in_a_chain() -> None:
    assert found(Twice(), torch.randn(2, 4)) == [[("",)], [("one",)], [("other",)]]
