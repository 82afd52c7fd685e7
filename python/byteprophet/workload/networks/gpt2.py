"""GPT-2, the small one (Radford et al. 2019), with its head tied to the token embedding.

148 tensors, 124,439,808 parameters, 146 billion multiply-adds per sample of 1,024 tokens. Names and
shapes are those of the published checkpoint under ``transformer.``; its dense layers hold their
weights as (inputs, outputs).

The token embedding is the first that forward needs. As the head uses it too, its gradient is
complete only when backward has come to the embedding, so it is one tensor in first place, and the
head's product is counted for the last normalisation, which runs right before it.
"""

from __future__ import annotations

from dataclasses import replace

from byteprophet.workload.networks.layers import (
    Parameter,
    embedding,
    linear,
    normalisation,
    with_products,
)

TOKENS = 1024
_LAYERS, _WIDTH, _INNER = 12, 768, 3072
_VOCABULARY = 50257


def gpt2() -> list[Parameter]:
    """The parameters in forward order."""
    parameters = [
        *embedding("transformer.wte", _VOCABULARY, _WIDTH, TOKENS),
        *embedding("transformer.wpe", TOKENS, _WIDTH, TOKENS),
    ]
    for layer in range(_LAYERS):
        parameters += _block(f"transformer.h.{layer}")
    head = TOKENS * _VOCABULARY * _WIDTH
    return parameters + with_products(normalisation("transformer.ln_f", _WIDTH, TOKENS), head)


def _block(name: str) -> list[Parameter]:
    scores_and_mix = 2 * TOKENS * TOKENS * _WIDTH  # queries x keys, then weights x values
    return [
        *normalisation(f"{name}.ln_1", _WIDTH, TOKENS),
        *with_products(_dense(f"{name}.attn.c_attn", _WIDTH, 3 * _WIDTH), scores_and_mix),
        *_dense(f"{name}.attn.c_proj", _WIDTH, _WIDTH),
        *normalisation(f"{name}.ln_2", _WIDTH, TOKENS),
        *_dense(f"{name}.mlp.c_fc", _WIDTH, _INNER),
        *_dense(f"{name}.mlp.c_proj", _INNER, _WIDTH),
    ]


def _dense(name: str, inputs: int, outputs: int) -> list[Parameter]:
    weight, bias = linear(name, inputs, outputs, positions=TOKENS)
    return [replace(weight, shape=(inputs, outputs)), bias]
