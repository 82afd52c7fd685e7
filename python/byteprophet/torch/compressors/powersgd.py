"""PowerSGD: a matrix of low rank that is close to the gradient, as its two factors.

Vogels, Karimireddy, Jaggi: "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
Optimization" (NeurIPS 2019), Algorithms 1 and 2. With a gradient M of each rank, and the *query* Q
that the last step has left: P = M Q, averaged over all ranks; its columns are made orthogonal; Q =
the transposed M times P, averaged. The average of all ranks' gradients is P times the transposed Q.

All ranks compute it by elementwise operations, so that they get the same bits. What a rank has sent
is P times its own transposed Q.
"""

from __future__ import annotations

import torch
from torch import Tensor

from byteprophet.job.compression import PowerSgd, matrix_of
from byteprophet.torch.compressors.draws import lot, uniform
from byteprophet.torch.compressors.orthogonal import orthogonalise
from byteprophet.torch.compressors.steps import AllReduce, Averaged, Steps, Turn

QUERY = "query"
"""Under this name, the transposed Q of the last step is kept, (rank, columns)."""


def powersgd(compressor: PowerSgd, turn: Turn) -> Steps:
    """Both factors are all-reduced, one after the other."""
    matrix = turn.values.view(matrix_of(turn.shape))
    rows, columns = matrix.shape
    query = _query(compressor, turn, columns)
    left = yield AllReduce((query @ matrix.T).flatten())
    left = left.view(compressor.rank, rows)
    is_finite = bool(torch.isfinite(left).all())
    if is_finite:
        orthogonalise(left)
    own_right = left @ matrix
    right = yield AllReduce(own_right.flatten().clone())
    right = right.view(compressor.rank, columns)
    if is_finite and torch.isfinite(right).all():
        turn.common[QUERY] = right.clone()
    average = torch.zeros_like(matrix)
    for one, other in zip(left, right, strict=True):
        average += torch.outer(one, other)
    return Averaged(average.flatten(), (matrix - left.T @ own_right).flatten())


def _query(compressor: PowerSgd, turn: Turn, columns: int) -> Tensor:
    """The last step's, with random rows in place of those that are zero; at first, all are."""
    query = turn.common.get(QUERY)
    if query is None or query.shape != (compressor.rank, columns):
        query = torch.zeros(compressor.rank, columns)
    is_zero = ~query.any(dim=1)
    if is_zero.any():
        generator = lot(compressor.seed, turn.name, turn.step)
        random = uniform(generator, query.numel()).view_as(query) * 2 - 1
        query = torch.where(is_zero[:, None], random, query)
    return query
