"""BERT-base uncased (Devlin et al. 2018), the encoder with its pooler and without a task's head.

199 tensors, 109,482,240 parameters, 11.2 billion multiply-adds per sample of 128 tokens. Names are
those of the published checkpoint (the model's own names under ``bert.``). The order is forward's,
in which the token-type embedding is looked up before the position embedding.
"""

from __future__ import annotations

from byteprophet.workload.networks.layers import (
    Parameter,
    embedding,
    linear,
    normalisation,
    with_products,
)

TOKENS = 128
_LAYERS, _WIDTH, _INNER = 12, 768, 3072
_VOCABULARY, _POSITIONS, _TOKEN_TYPES = 30522, 512, 2


def bert_base() -> list[Parameter]:
    """The parameters in forward order."""
    parameters = [
        *embedding("bert.embeddings.word_embeddings", _VOCABULARY, _WIDTH, TOKENS),
        *embedding("bert.embeddings.token_type_embeddings", _TOKEN_TYPES, _WIDTH, TOKENS),
        *embedding("bert.embeddings.position_embeddings", _POSITIONS, _WIDTH, TOKENS),
        *normalisation("bert.embeddings.LayerNorm", _WIDTH, TOKENS),
    ]
    for layer in range(_LAYERS):
        parameters += _encoder_layer(f"bert.encoder.layer.{layer}")
    return parameters + linear("bert.pooler.dense", _WIDTH, _WIDTH)


def _encoder_layer(name: str) -> list[Parameter]:
    attention = f"{name}.attention"
    scores_and_mix = 2 * TOKENS * TOKENS * _WIDTH  # queries x keys, then weights x values
    return [
        *_dense(f"{attention}.self.query", _WIDTH, _WIDTH),
        *_dense(f"{attention}.self.key", _WIDTH, _WIDTH),
        *with_products(_dense(f"{attention}.self.value", _WIDTH, _WIDTH), scores_and_mix),
        *_dense(f"{attention}.output.dense", _WIDTH, _WIDTH),
        *normalisation(f"{attention}.output.LayerNorm", _WIDTH, TOKENS),
        *_dense(f"{name}.intermediate.dense", _WIDTH, _INNER),
        *_dense(f"{name}.output.dense", _INNER, _WIDTH),
        *normalisation(f"{name}.output.LayerNorm", _WIDTH, TOKENS),
    ]


def _dense(name: str, inputs: int, outputs: int) -> list[Parameter]:
    return linear(name, inputs, outputs, positions=TOKENS)
