"""Chains of modules, found in one forward pass."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

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


@dataclass
class Output:
    logits: Tensor
    hidden: Tensor


class Telling(nn.Module):
    """Returns what one of its modules returned in a dataclass, too."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = (nn.Linear(4, 4) for _ in range(2))

    def forward(self, data: Tensor) -> Output:
        hidden = self.one(data)
        return Output(self.other(hidden), hidden)


def test_what_a_dataclass_tells_is_in_no_region_with_what_follows() -> None:
    runs = found(Telling(), torch.randn(2, 4))
    assert [("one",)] in runs
    assert [("other",)] in runs
    assert not any(len(run) > 1 for run in runs)


class Nested(nn.Module):
    """Its encoder is called by keyword and returns a dataclass, as those of transformers are."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = Encoder(), nn.Linear(4, 2)

    def forward(self, data: Tensor) -> Tensor:
        logits: Tensor = self.head(self.encoder(data=data).hidden)
        return logits


class Encoder(nn.Module):
    """Layers in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, data: Tensor) -> Output:
        for layer in self.layers:
            data = layer(data)
        return Output(data.sum(), data)


def test_what_can_be_in_no_chain_is_looked_into() -> None:
    layers = [("encoder.layers.0",), ("encoder.layers.1",), ("encoder.layers.2",)]
    assert found(Nested(), torch.randn(2, 4)) == [[("",)], layers, [("head",)]]


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


class Around(nn.Module):
    """A block whose first output is added to, looked at, returned or kept behind its second."""

    def __init__(self, use: str) -> None:
        super().__init__()
        self.use = use
        self.one, self.act, self.other = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)

    def forward(self, data: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        first = self.one(data)
        last: Tensor = self.other(self.act(first))
        if self.use == "add":
            return last + first
        if self.use == "look":
            return last.view(first.shape)
        return (last, first) if self.use == "return" else last


@pytest.mark.parametrize("use", ["add", "look", "return"])
def test_what_others_use_too_is_in_no_chain_with_the_next(use: str) -> None:
    assert found(Around(use), torch.randn(2, 4)) == [[("",)], [("one",)]]
    assert found(Around("not"), torch.randn(2, 4))[1] == [("one", "act"), ("other",)]


class Stepping(Tower):
    """Changes the second input of its blocks in place, before one of them."""

    def forward(self, data: Tensor) -> Tensor:
        data = self.first(data)
        for number, block in enumerate(self.blocks):
            if number == 2:
                self.scale += 1
            data = block(data, self.scale)
        output: Tensor = self.last(data)
        return output


def test_a_further_input_that_is_changed_in_place_ends_a_chain() -> None:
    runs = found(Stepping(), torch.randn(2, 8))
    assert [("blocks.0",), ("blocks.1",)] in runs
    assert [("blocks.2",), ("blocks.3",)] in runs


class Again(nn.Module):
    """Its blocks run without gradients, and again with them in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.block, self.last = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, data: Tensor) -> Tensor:
        output: Tensor = self.last(checkpoint(self.block, self.first(data), use_reentrant=True))
        return output


def test_what_runs_without_gradients_is_in_no_chain() -> None:
    assert found(Again(), torch.randn(2, 4)) == [[("",)], [("first",)], [("last",)]]


def test_modules_that_work_in_place_are_in_chains() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    assert found(model, torch.randn(2, 4)) == [[("",)], [("0", "1"), ("2",)]]


def test_a_pass_that_fails_or_evaluates_is_not_recorded() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    calls: list[ModuleCall] = []
    CallRecorder(model, calls.append)
    with pytest.raises(RuntimeError):
        model(torch.randn(2, 3))
    assert not torch.overrides._get_current_function_mode_stack()
    with torch.no_grad():
        model(torch.randn(2, 4))
    model.eval()(torch.randn(2, 4))
    assert not calls
    model.train()(torch.randn(2, 4))
    assert [call.path for call in calls[0].calls] == ["0", "1"]
