"""Handwritten digits: 1797 pictures of 8 by 8 pixels that come with scikit-learn.

The split into 1437 pictures for training and 360 for testing is fixed, and so is every batch: it
depends on iteration, rank and number of ranks only.

The file is read without scikit-learn, whose import takes a second in each process.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
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
    rows = torch.from_numpy(np.loadtxt(_file(), delimiter=","))  # 64 pixels and the label
    images = rows[:, :-1].float().reshape(-1, 1, 8, 8)
    labels = rows[:, -1].long()
    order = _shuffled(len(labels), _SPLIT_SEED)
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    images = (images - images[train].mean()) / images[train].std()
    return Images(images[train], labels[train]), Images(images[test], labels[test])


def _file() -> Path:
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("the digits come with scikit-learn: pip install scikit-learn")
    return Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"


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
