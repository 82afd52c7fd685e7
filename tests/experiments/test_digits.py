"""The digits experiment's model, data, and calibration."""

from __future__ import annotations

import copy

import pytest
import torch
from calibrate import calibrate
from data import BATCH_SIZE, TEST_IMAGES, batch_indices, load
from model import ResNet


def test_model_is_as_large_as_documented() -> None:
    parameters = list(ResNet().parameters())
    assert len(parameters) == 47
    assert sum(p.nbytes for p in parameters) == pytest.approx(6.2e6, rel=0.01)
    assert ResNet()(torch.zeros(3, 1, 8, 8)).shape == (3, 10)


def test_data_is_split_once_and_normalised_by_the_training_set() -> None:
    train, test = load()
    assert (len(train), len(test)) == (1797 - TEST_IMAGES, TEST_IMAGES)
    assert train.images.mean().item() == pytest.approx(0, abs=1e-5)
    assert train.images.std().item() == pytest.approx(1, abs=1e-5)
    assert set(test.labels.tolist()) == set(range(10))
    again, _ = load()
    assert torch.equal(train.images, again.images)
    distinct = {image.numpy().tobytes() for image in [*train.images, *test.images]}
    assert len(distinct) == 1797  # so nothing of the test set was trained on


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_share_each_global_batch_and_no_image_comes_twice_in_an_epoch(ranks: int) -> None:
    images = 1437
    per_epoch = images // (ranks * BATCH_SIZE)
    seen: list[int] = []
    for iteration in range(per_epoch):
        for rank in range(ranks):
            batch = batch_indices(iteration, rank, ranks, images)
            assert len(batch) == BATCH_SIZE
            seen += batch.tolist()
    assert len(seen) == len(set(seen)) == per_epoch * ranks * BATCH_SIZE
    assert set(seen) <= set(range(images))
    first, next_epoch = (batch_indices(i, 0, ranks, images) for i in (0, per_epoch))
    assert not torch.equal(first, next_epoch)


def test_the_global_batch_does_not_depend_on_the_number_of_ranks() -> None:
    alone = batch_indices(0, 0, 1, 1437).tolist()
    shared = [batch_indices(0, rank, 2, 1437).tolist() for rank in range(2)]
    interleaved = [index for pair in zip(*shared, strict=True) for index in pair]
    assert interleaved[:BATCH_SIZE] == alone


def test_calibration_has_every_tensor_in_forward_order_and_leaves_the_model_alone() -> None:
    torch.manual_seed(0)
    model = ResNet(widths=(4, 8, 8))
    before = copy.deepcopy(model.state_dict())
    profile = calibrate(model, torch.randn(4, 1, 8, 8), torch.arange(4))
    assert all(torch.equal(values, before[name]) for name, values in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())

    tensors = profile["tensors"]
    sizes = {name: parameter.nbytes for name, parameter in model.named_parameters()}
    assert {t["name"]: t["size_bytes"] for t in tensors} == sizes
    names = [t["name"] for t in tensors]
    assert names[0] == "stem.0.weight"
    assert names[-2:] == ["classifier.weight", "classifier.bias"]
    assert sum(t["forward_ns"] for t in tensors) == profile["forward_ns"] > 0
    assert all(t["forward_ns"] > 0 for t in tensors if not t["name"].endswith("bias"))
    ready_ns = [t["ready_ns"] for t in tensors]
    assert 0 < ready_ns[-1] < ready_ns[0] <= profile["backward_ns"]
