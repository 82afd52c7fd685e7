"""What the distributed script and the one-process reference must have in common: the recipe."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from data import Images
from model import ResNet
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

SEED = 1
ITERATIONS = 44  # four epochs of two workers


def set_up() -> None:
    """Make torch compute the same in every process: one thread, fixed seed and algorithms."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(SEED)


def make_optimizer(model: nn.Module) -> torch.optim.SGD:
    """SGD with momentum and weight decay."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)


def make_schedule(optimizer: torch.optim.Optimizer, iterations: int) -> LRScheduler:
    """The learning rate falls to zero along a cosine."""
    return CosineAnnealingLR(optimizer, iterations)


@torch.no_grad()
def evaluate(model: nn.Module, images: Images) -> tuple[float, float]:
    """Mean cross-entropy and accuracy, with the running statistics of batch norm."""
    model.eval()
    logits = model(images.images)
    loss = functional.cross_entropy(logits, images.labels).item()
    accuracy = (logits.argmax(1) == images.labels).double().mean().item()
    model.train()
    return loss, accuracy


def parameters_sha256(model: nn.Module) -> str:
    """SHA-256 over all parameters, without buffers, in ``state_dict`` order, little-endian."""
    digest = hashlib.sha256()
    for values in model.parameters():
        digest.update(np.ascontiguousarray(values.detach().numpy(), dtype="<f4").data)
    return digest.hexdigest()


def write_results(
    directory: Path, name: str, results: Mapping[str, Any], model: ResNet | None
) -> None:
    """Write ``<name>.json``, and with a ``model`` its parameters by name as ``<name>.npz``."""
    directory.mkdir(parents=True, exist_ok=True)
    if model is not None:
        arrays: dict[str, Any] = {
            key: values.detach().numpy() for key, values in model.named_parameters()
        }
        np.savez(directory / f"{name}.npz", **arrays)
    text = json.dumps({"schema": 1, **results}, indent=1) + "\n"
    (directory / f"{name}.json").write_text(text, encoding="utf-8")
