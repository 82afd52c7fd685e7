"""Neural collaborative filtering (He et al. 2017), NeuMF of MLPerf's training benchmark 0.5.

12 tensors, 31,832,577 parameters for MovieLens-20M, 107 thousand multiply-adds per pair of a user
and an item. Nearly all bytes are the four embeddings, which the forward pass needs first and the
backward pass finishes last: their exchange cannot hide behind any computation. Their gradients are
dense. Names are those of the benchmark's PyTorch model.
"""

from __future__ import annotations

from itertools import pairwise

from byteprophet.workload.networks.layers import Parameter, embedding, linear

_USERS, _ITEMS = 138_493, 26_744
_FACTORS, _WIDTH = 64, 128
_LAYERS = (256, 256, 128, 64)


def ncf() -> list[Parameter]:
    """The parameters in forward order."""
    parameters = [
        *embedding("mf_user_embed", _USERS, _FACTORS, 1),
        *embedding("mf_item_embed", _ITEMS, _FACTORS, 1),
        *embedding("mlp_user_embed", _USERS, _WIDTH, 1),
        *embedding("mlp_item_embed", _ITEMS, _WIDTH, 1),
    ]
    for number, (inputs, outputs) in enumerate(pairwise(_LAYERS)):
        parameters += linear(f"mlp.{number}", inputs, outputs)
    return parameters + linear("final", _FACTORS + _LAYERS[-1], 1)
