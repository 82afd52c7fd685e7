"""Which parameters DistributedDataParallel reduces: torch is asked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from byteprophet.torch.recording.ddp_buckets import reduced_parameters


class Tied(nn.Module):
    """With a parameter of the root, and one of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.embed, self.middle = nn.Embedding(5, 3), nn.Linear(3, 3)
        self.decode = nn.Linear(3, 5)
        self.decode.weight = self.embed.weight
        self.middle.bias.requires_grad_(False)


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("ignored", "reduced"),
    [
        ([], ["scale", "embed.weight", "middle.weight", "decode.bias"]),
        (["scale", "middle.weight"], ["scale", "embed.weight", "decode.bias"]),
        ([".scale", "decode.bias"], ["embed.weight", "middle.weight"]),
        (["embed.weight"], ["scale", "middle.weight", "embed.weight", "decode.bias"]),
        (["embed.weight", "decode.weight"], ["scale", "middle.weight", "decode.bias"]),
    ],
)
def test_reduced_parameters_are_those_of_the_reducer_in_its_order(
    ignored: list[str], reduced: list[str]
) -> None:
    model = Tied()
    model._ddp_params_and_buffers_to_ignore = ignored  # type: ignore[assignment]
    found = reduced_parameters(model)
    assert [*found] == reduced
    wrapped = DistributedDataParallel(model)
    of_torch = wrapped._build_params_for_reducer()[0]  # type: ignore[no-untyped-call]
    assert [*map(id, found.values())] == [*map(id, of_torch)]
