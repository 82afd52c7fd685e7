"""Operators of which costs are measured one by one: most are limited by memory.

They have the names and the tensors that the built-in and the traced models give them. ``name_of``
says by what name an operator of a model is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from byteprophet.errors import UserError
from byteprophet.simulate.models.layers import HIDDEN, Layers
from byteprophet.simulate.operation.operator import Access, Kind, Operator

VOCABULARY = 4096
"""Rows of the table of embeddings."""
_INNER = ("batch", "sequence", "inner")
_LOGITS = ("batch", "sequence", "vocabulary")


def name_of(operator: Operator) -> str:
    """The name by which measured costs know an operator that memory limits."""
    name = operator.name.rstrip("0123456789_")
    if name == "norm":
        return "layer norm" if len(operator.parameters) > 1 else "rms norm"
    if name == "add" and operator.parameters:
        return "biased add"
    if name == "activation" and operator.size.get("gates", 1) > 1:
        return "gated activation"
    return name


def reference(name: str, rows: int, columns: int) -> Operator:
    """The operator of this name on so many tokens, each with so many elements.

    Raises:
        UserError: there is none.
    """
    if name not in _MAKERS:
        raise UserError(f"costs: no operator {name}: use one of {', '.join(_MAKERS)}")
    sizes = dict.fromkeys(("hidden", "inner", "vocabulary", "per_head"), columns)
    sizes |= {"batch": 1, "sequence": rows, "heads": 1, "gates": 1}
    if name == "tokens":
        sizes["vocabulary"] = VOCABULARY
    if name == "gated activation":
        sizes["gates"] = 2
    return _MAKERS[name](Layers(sizes))


def names() -> tuple[str, ...]:
    """All names."""
    return tuple(_MAKERS)


def _activation(make: Layers) -> Operator:
    wide = Access("wide", _INNER)
    return make.memory("activation", [wide], [Access("active", _INNER)], saves=["wide"])


def _gated(make: Layers) -> Operator:
    wide = Access("wide", ("batch", "sequence", "gates", "inner"))
    return make.memory(
        "activation", [wide], [Access("active", _INNER)], whole=["gates"], saves=["wide"]
    )


def _add(make: Layers, *, bias: bool) -> Operator:
    given = [Access(name, HIDDEN) for name in ("branch", "stem")]
    parameters = [Access("bias", ("hidden",))] if bias else []
    return make.memory("add", given, [Access("out", HIDDEN)], parameters)


def _loss(make: Layers) -> Operator:
    return make.memory(
        "loss",
        [Access("logits", _LOGITS)],
        [
            Access("probabilities", _LOGITS, 4, differentiable=False),
            Access("loss", ("batch", "sequence"), 4),
        ],
        saves=["probabilities"],
    )


def _tokens(make: Layers) -> Operator:
    tokens = Access("tokens", ("batch", "sequence"), 8, differentiable=False)
    table = Access("weight", ("vocabulary", "hidden"))
    return make.memory("tokens", [tokens], [Access("out", HIDDEN)], [table], kind=Kind.LOOKUP)


def _rotary(make: Layers) -> Operator:
    fused = ("batch", "sequence", "heads", "per_head")
    return make.memory("rotary", [Access("qkv", fused)], [Access("turned", fused)])


def _batch_norm(make: Layers) -> Operator:
    given, made = Access("images", HIDDEN), Access("normed", HIDDEN)
    parameters = [Access(name, ("hidden",)) for name in ("weight", "bias")]
    return make.memory("batch_norm", [given], [made], parameters, saves=["images"])


def _relu(make: Layers) -> Operator:
    given, made = Access("images", HIDDEN), Access("positive", HIDDEN)
    return make.memory("relu", [given], [made], saves=["positive"])


def reference_attention(
    samples: int, heads: int, tokens: int, width: int, *, causal: bool
) -> Operator:
    """Fused attention of as many heads of keys as of queries."""
    sizes = {"batch": samples, "heads": heads, "queries": 1, "width": width}
    make = Layers({**sizes, "sequence": tokens, "keys": tokens})
    query, context = (
        Access(name, ("batch", "sequence", "heads", "queries", "width"))
        for name in ("query", "context")
    )
    key, value = (Access(name, ("batch", "keys", "heads", "width")) for name in ("key", "value"))
    return make.attention("fused", query, key, value, context, causal=causal)


def reference_convolution(
    samples: int, inputs: int, outputs: int, kernel: int, stride: int, side: int
) -> Operator:
    """A square convolution whose output has a side of ``side / stride``, rounded up."""
    places = (-(-side // stride)) ** 2
    inner = inputs * kernel**2
    dims = {"batch": samples, "read": inputs * side**2, "made": outputs * places}
    flops = 2 * samples * outputs * places * inner
    return Operator(
        name="conv2d",
        kind=Kind.CONVOLUTION,
        sizes=tuple({**dims, "weights": outputs * inner}.items()),
        inputs=(Access("images", ("batch", "read")),),
        outputs=(Access("convolved", ("batch", "made")),),
        parameters=(Access("weight", ("weights",)),),
        flops=flops,
        backward_flops=2 * flops,
        saved=("images",),
    )


_MAKERS: Mapping[str, Callable[[Layers], Operator]] = {
    "layer norm": lambda make: make.norm("norm", "hidden", "normed", bias=True),
    "rms norm": lambda make: make.norm("norm", "hidden", "normed", bias=False),
    "activation": _activation,
    "gated activation": _gated,
    "add": partial(_add, bias=False),
    "biased add": partial(_add, bias=True),
    "loss": _loss,
    "tokens": _tokens,
    "rotary": _rotary,
    "batch_norm": _batch_norm,
    "relu": _relu,
}
