"""Handwritten digits: 1797 pictures of 8 by 8 pixels that come with scikit-learn.

The split into 1437 pictures for training and 360 for testing is fixed, and so is every batch: it
depends on iteration, rank and number of ranks only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from torch import Tensor

TEST_IMAGES = 360
BATCH_SIZE = 64  # per worker
_SPLIT_SEED = 20


@dataclass(frozen=True)
class Images:
    """``images`` is ``(n, 1, 8, 8)``, normalised by the training set; ``labels`` is ``(n,)``."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.images[indices], self.labels[indices]


def load() -> tuple[Images, Images]:
    """The training set and the test set."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target)
    order = _shuffled(len(labels), _SPLIT_SEED)
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    images = (images - images[train].mean()) / images[train].std()
    return Images(images[train], labels[train]), Images(images[test], labels[test])


def batch_indices(iteration: int, rank: int, ranks: int, images: int) -> Tensor:
    """Which of ``images`` training images rank ``rank`` takes in ``iteration`` (from 0).

    Each epoch is a new permutation, cut into global batches of ``ranks`` times BATCH_SIZE; of each
    every rank takes its share. What is left at the end of an epoch is left out of it.
    """
    global_batch = ranks * BATCH_SIZE
    epoch, number = divmod(iteration, images // global_batch)
    batch = _shuffled(images, 1000 + epoch)[number * global_batch : (number + 1) * global_batch]
    return batch[rank::ranks]


def _shuffled(count: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))
