"""The branches of a transformer layer: attention, MLP, and experts."""

from __future__ import annotations

from dataclasses import replace

from byteprophet.simulate.models.layers import HIDDEN, Layers
from byteprophet.simulate.models.module import Call, Module
from byteprophet.simulate.models.transformer_config import TransformerConfig
from byteprophet.simulate.operation.operator import Access, Kind, Operator

_QUERY = ("batch", "sequence", "heads", "queries", "width")
_KEYS = ("batch", "keys", "heads", "width")
_SCORES = ("batch", "heads", "queries", "sequence", "keys")
_INNER = ("batch", "sequence", "inner")


def attention(config: TransformerConfig, make: Layers) -> Module:
    """Attention, from the normalised hidden state to a branch of it."""
    fused = ("batch", "sequence", "heads", "per_head")
    body: list[Operator | Call] = [
        *_projection(
            "qkv",
            Access("normed", HIDDEN),
            Access("qkv", fused),
            (fused[2:], ("hidden",)),
            config,
            make,
            bias=config.bias or config.qkv_bias,
        )
    ]
    qkv = "qkv"
    if not config.positions and config.causal and not config.alibi:
        body.append(make.memory("rotary", [Access(qkv, fused)], [Access("turned", fused)]))
        qkv = "turned"
    keys = ("batch", "sequence", "heads", "width")
    body.append(
        make.memory(
            "split",
            [Access(qkv, fused)],
            [Access("query", _QUERY), Access("key", keys), Access("value", keys)],
            whole=("per_head", "width"),
            kind=Kind.VIEW,
        )
    )
    core = Module(tuple(_core(config, make)), ("query", "key", "value"), ("context",))
    body.append(Call("core", core, core.inputs, core.outputs))
    body += _projection(
        "output",
        Access("context", _QUERY),
        Access("attended", HIDDEN),
        (("hidden",), _QUERY[2:]),
        config,
        make,
    )
    return Module(tuple(body), ("normed",), ("attended",))


def _projection(
    name: str,
    source: Access,
    output: Access,
    weight: tuple[tuple[str, ...], tuple[str, ...]],
    config: TransformerConfig,
    make: Layers,
    *,
    bias: bool = False,
) -> list[Operator]:
    """A linear layer, and its adapter if there are any. ``weight``: columns and inner dimensions.

    An adapter is two products, from ``inner`` to LoRA's rank and from there to ``columns``.
    """
    columns, inner = weight
    own = columns if bias else ()
    if not config.lora:
        return [make.linear(name, source, output, (*columns, *inner), bias=own)]
    frozen = replace(output, tensor=f"{name}_frozen")
    low = Access(f"{name}_low", ("batch", "sequence", "rank"))
    adapted = replace(output, tensor=f"{name}_adapted")
    adapters = make.trained()
    return [
        make.linear(name, source, frozen, (*columns, *inner), bias=own),
        adapters.linear(f"{name}_lora_a", source, low, ("rank", *inner)),
        adapters.linear(f"{name}_lora_b", low, adapted, (*columns, "rank")),
        make.memory(f"{name}_add", [frozen, adapted], [output]),
    ]


def _core(config: TransformerConfig, make: Layers) -> list[Operator]:
    query, context = Access("query", _QUERY), Access("context", _QUERY)
    key, value = Access("key", _KEYS), Access("value", _KEYS)
    if config.fused_attention:
        return [make.attention("fused", query, key, value, context, causal=config.causal)]
    body = [_biases(query, make)] if config.alibi else []
    body += [
        make.product("scores", [query, key], Access("scores", _SCORES), whole=["width"]),
        make.memory(
            "softmax",
            [Access("scores", _SCORES)],
            [Access("weights", _SCORES)],
            whole=["keys"],
            saves=["weights"],
            causal=config.causal,
        ),
    ]
    weights = "weights"
    if config.dropout:
        weights = "dropped"
        body.append(
            make.memory(
                "dropout",
                [Access("weights", _SCORES)],
                [
                    Access("dropped", _SCORES),
                    Access("dropped_mask", _SCORES, 1, differentiable=False),
                ],
                saves=["dropped_mask"],
            )
        )
    body.append(make.product("mix", [Access(weights, _SCORES), value], context, whole=["keys"]))
    return body


def _biases(query: Access, make: Layers) -> Operator:
    """ALiBi as torch.baddbmm adds it: 2 bytes per score are written, and read by the product."""
    biases = Access("biases", _SCORES, 4, differentiable=False)
    return make.memory("alibi", [replace(query, differentiable=False)], [biases])


def mlp(config: TransformerConfig, make: Layers) -> Module:
    """An MLP, with a gate if the configuration has one."""
    weight: tuple[str, ...] = ("inner", "hidden")
    wide: tuple[str, ...] = _INNER
    if config.gated:
        weight, wide = ("gates", "inner", "hidden"), ("batch", "sequence", "gates", "inner")
    bias = weight[:-1] if config.bias else ()
    return Module(
        (
            make.linear("up", Access("normed", HIDDEN), Access("wide", wide), weight, bias=bias),
            make.memory(
                "activation",
                [Access("wide", wide)],
                [Access("active", _INNER)],
                whole=["gates"],
                saves=["wide"],
            ),
            make.linear(
                "down", Access("active", _INNER), Access("out", HIDDEN), ("hidden", "inner")
            ),
        ),
        ("normed",),
        ("out",),
    )


def experts(config: TransformerConfig, make: Layers) -> Module:
    """Router, exchange of tokens, experts, exchange back. Tokens are spread evenly."""
    density = config.active_experts / config.experts
    sent = ("slots", "batch", "sequence", "hidden")
    at = ("experts", *HIDDEN)
    gates = Access("gates", ("batch", "sequence", "slots"), 4)
    gate_dims = ("gates",) if config.gated else ()
    wide = ("experts", "batch", "sequence", *gate_dims, "inner")
    active = Access("active", ("experts", *_INNER), density=density)
    return Module(
        (
            make.linear(
                "router", Access("normed", HIDDEN), gates, ("slots", "hidden"), whole=["slots"]
            ),
            make.memory(
                "dispatch",
                [Access("normed", HIDDEN), gates],
                [Access("sent", sent, density=density)],
                whole=["slots"],
            ),
            make.linear(
                "up",
                Access("sent", at, density=density),
                Access("wide", wide, density=density),
                ("experts", *gate_dims, "inner", "hidden"),
            ),
            make.memory(
                "activation",
                [Access("wide", wide, density=density)],
                [active],
                whole=["gates"],
                saves=["wide"],
            ),
            make.linear(
                "down",
                active,
                Access("back", at, density=density),
                ("experts", "hidden", "inner"),
            ),
            make.memory(
                "combine",
                [Access("back", sent, density=density), gates],
                [Access("out", HIDDEN)],
                whole=["slots"],
                saves=["back", "gates"],
            ),
        ),
        ("normed",),
        ("out",),
    )
