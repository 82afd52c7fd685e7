"""What compressors are to compute, for all ranks in one process: by numpy, and without a network.

Dot products are sums of exact products, rounded once. Where a rank computes something that only
travels (a mean, a norm, a product of matrices), this uses torch as the rank does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]
QUERY = "query"


def lot(seed: int, name: str, *numbers: int) -> np.random.Generator:
    digest = blake2b(name.encode(), digest_size=8).digest()
    return np.random.default_rng([seed, int.from_bytes(digest, "little"), *numbers])


def mean(of_ranks: Sequence[Array]) -> Array:
    """In rank order, and times 1 over their number, in float32."""
    total = np.zeros_like(of_ranks[0])
    for each in of_ranks:
        total = total + each
    return total * np.float32(1.0 / len(of_ranks))


class Reference:
    """All ranks' gradients of the parameter ``name``, under a rule of a strategy file."""

    def __init__(self, name: str, rule: dict[str, Any], ranks: int, feedback: bool) -> None:
        self.name, self.rule, self.ranks, self.feedback = name, rule, ranks, feedback
        self.errors: list[Array] | None = None
        self.steps = 0
        self.query: Array | None = None

    def average(self, gradients: Sequence[Tensor]) -> Tensor:
        shape = gradients[0].shape
        values = [each.numpy().astype(np.float32).reshape(-1) for each in gradients]
        if self.errors is not None:
            values = [each + error for each, error in zip(values, self.errors, strict=True)]
        average, sent = getattr(self, self.rule["type"])(values, shape)
        if self.feedback:
            self.errors = [each - own for each, own in zip(values, sent, strict=True)]
        self.steps += 1
        return torch.from_numpy(average).reshape(shape)

    def _count(self, elements: int) -> int:
        k = self.rule["k"]
        return k if k >= 1 else max(1, math.floor(k * elements))

    def topk(self, values: list[Array], _: torch.Size) -> tuple[Array, list[Array]]:
        sent = []
        for each in values:
            largest = np.argsort(-np.abs(each), kind="stable")[: self._count(each.size)]
            own = np.zeros_like(each)
            own[largest] = each[largest]
            sent.append(own)
        return mean(sent), sent

    def randomk(self, values: list[Array], _: torch.Size) -> tuple[Array, list[Array]]:
        elements = values[0].size
        chosen = lot(self.rule.get("seed", 1), self.name, self.steps).choice(
            elements, self._count(elements), replace=False, shuffle=False
        )
        sent = []
        for each in values:
            own = np.zeros_like(each)
            own[chosen] = each[chosen]
            sent.append(own)
        return mean(sent), sent

    def onebit(self, values: list[Array], _: torch.Size) -> tuple[Array, list[Array]]:
        sent = []
        for each in values:
            scale = torch.from_numpy(each).abs().mean().numpy()
            sent.append(np.where(each < 0, -scale, scale).astype(np.float32))
        return mean(sent), sent

    def dithering(self, values: list[Array], _: torch.Size) -> tuple[Array, list[Array]]:
        k, sent = self.rule["k"], []
        for rank, each in enumerate(values):
            tensor = torch.from_numpy(each)
            by_max = self.rule.get("normalize", "max") == "max"
            norm = (tensor.abs().max() if by_max else tensor.norm()).numpy()
            seed = self.rule.get("seed", 1)
            draws = lot(seed, self.name, self.steps, rank).random(each.size, dtype=np.float32)
            parts = np.minimum(np.abs(each) / norm, np.float32(1))
            if self.rule.get("partition", "linear") == "linear":
                steps = [np.float32(level) / np.float32(k) for level in range(k + 1)]
            else:
                steps = [np.float32(0), *(np.float32(2.0 ** (j - k)) for j in range(1, k + 1))]
            levels = np.array(
                [self._level(part, draw, k) for part, draw in zip(parts, draws, strict=True)]
            )
            sent.append(np.sign(each) * np.array(steps, np.float32)[levels] * norm)
        return mean(sent), sent

    def _level(self, part: np.float32, draw: np.float32, k: int) -> int:
        if self.rule.get("partition", "linear") == "linear":
            exact = part * np.float32(k)
            below = math.floor(exact)
            return min(k, below + bool(draw < exact - np.float32(below)))
        if part < 2.0 ** (1 - k):
            return int(draw < part * np.float32(2.0 ** (k - 1)))
        below = math.floor(math.log2(part)) + k
        low = np.float32(2.0 ** (below - k))
        return below + bool(draw < (part - low) / low)

    def powersgd(self, values: list[Array], shape: torch.Size) -> tuple[Array, list[Array]]:
        rank, rows = self.rule["rank"], shape[0]
        matrices = [torch.from_numpy(each).view(rows, -1) for each in values]
        columns = matrices[0].shape[1]
        query = np.zeros((rank, columns), np.float32) if self.query is None else self.query
        random = lot(self.rule.get("seed", 1), self.name, self.steps).random(
            rank * columns, dtype=np.float32
        )
        random = (random * 2 - 1).reshape(rank, columns)
        query = np.where((query == 0).all(axis=1)[:, None], random, query)
        left = mean([(torch.from_numpy(query) @ each.T).numpy() for each in matrices])
        for number, row in enumerate(left):
            before = _dot(row, row)
            for _ in range(2):
                for former in left[:number]:
                    row -= former * np.float32(_dot(former, row))
            after = _dot(row, row)
            row[:] = 0 if after <= before * 1e-12 else row / np.float32(math.sqrt(after))
        own = [torch.from_numpy(left) @ each for each in matrices]
        self.query = mean([each.numpy() for each in own])
        average = np.zeros((rows, columns), np.float32)
        for one, other in zip(left, self.query, strict=True):
            average += np.outer(one, other)
        sent = [(torch.from_numpy(left).T @ each).numpy().reshape(-1) for each in own]
        return average.reshape(-1), sent


def _dot(one: Array, other: Array) -> float:
    return math.fsum((one.astype(np.float64) * other.astype(np.float64)).tolist())
