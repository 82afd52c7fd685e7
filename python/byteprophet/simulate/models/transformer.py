"""Transformers: GPT, Llama, Mixtral and BERT from one configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace

from byteprophet.errors import UserError
from byteprophet.simulate.models.layers import HIDDEN, Layers
from byteprophet.simulate.models.module import Call, Model, Module
from byteprophet.simulate.operation.operator import Access, Kind, Operator

_QUERY = ("batch", "sequence", "heads", "queries", "width")
_KEYS = ("batch", "keys", "heads", "width")
_SCORES = ("batch", "heads", "queries", "sequence", "keys")
_INNER = ("batch", "sequence", "inner")
_LOGITS = ("batch", "sequence", "vocabulary")


@dataclass(frozen=True)
class TransformerConfig:
    """The shape of a transformer.

    Attributes:
        layers: the number of layers.
        hidden: the width of the hidden state.
        heads: the number of query heads.
        kv_heads: the number of key and value heads.
        inner: the width of the MLP.
        vocabulary: rows of the token embedding.
        sequence: tokens per sample, unless another length is asked for.
        positions: rows of the learned position embedding; 0: rotary embeddings, or none.
        gated: whether the MLP has a gate (SwiGLU).
        bias: whether linear layers and norms have biases.
        tied: whether the output layer shares the token embedding.
        causal: whether tokens attend to earlier tokens only.
        experts: the number of experts per layer; 0: one MLP.
        active_experts: experts per token.
        fused_attention: whether attention is one kernel that does not write the scores.
        dropout: whether masks of dropout are saved.
        width: the width of a head; 0: ``hidden / heads``.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int
    sequence: int
    positions: int = 0
    gated: bool = False
    bias: bool = True
    tied: bool = True
    causal: bool = True
    experts: int = 0
    active_experts: int = 0
    fused_attention: bool = True
    dropout: bool = False
    width: int = 0

    def __post_init__(self) -> None:
        """Raises ``UserError`` if the numbers do not fit together."""
        names = ("layers", "hidden", "heads", "kv_heads", "inner", "vocabulary", "sequence")
        for name in names:
            if getattr(self, name) < 1:
                raise UserError(f"model: {name} is {getattr(self, name)}: must be at least 1")
        if self.width == 0:
            if self.hidden % self.heads:
                raise UserError(
                    f"model: hidden {self.hidden} is no multiple of the {self.heads} heads"
                )
            object.__setattr__(self, "width", self.hidden // self.heads)
        if self.heads % self.kv_heads:
            raise UserError(
                f"model: {self.heads} heads are no multiple of the {self.kv_heads} kv_heads"
            )
        if self.experts and not 1 <= self.active_experts <= self.experts:
            raise UserError(
                f"model: active_experts is {self.active_experts}: must be from 1 to {self.experts}"
            )


def build(name: str, config: TransformerConfig, samples: int, sequence: int | None = None) -> Model:
    """The model, with ``samples`` sequences per micro-batch over all data-parallel ranks."""
    if sequence is not None:
        config = replace(config, sequence=sequence)
    tokens = config.sequence
    if config.positions and tokens > config.positions:
        raise UserError(
            f"model {name}: a sequence of {tokens} tokens is longer than its "
            f"{config.positions} position embeddings"
        )
    return Model(name, _Builder(config, samples).root(), samples, tokens)


class _Builder:
    def __init__(self, config: TransformerConfig, samples: int) -> None:
        self._config = config
        self._make = Layers(
            {
                "batch": samples,
                "sequence": config.sequence,
                "keys": config.sequence,
                "hidden": config.hidden,
                "heads": config.kv_heads,
                "queries": config.heads // config.kv_heads,
                "width": config.width,
                "per_head": (config.heads // config.kv_heads + 2) * config.width,
                "inner": config.inner,
                "gates": 2 if config.gated else 1,
                "vocabulary": config.vocabulary,
                "positions": max(1, config.positions),
                "experts": max(1, config.experts),
                "slots": max(1, config.experts),
            }
        )

    def root(self) -> Module:
        layer = self._layer()
        calls = [Call("embedding", self._embedding(), ("tokens",), ("hidden.0",))]
        calls += [
            Call(f"layers.{at}", layer, (f"hidden.{at}",), (f"hidden.{at + 1}",))
            for at in range(self._config.layers)
        ]
        last = f"hidden.{self._config.layers}"
        calls.append(Call("head", self._head(), (last,), ("loss",)))
        return Module(tuple(calls), ("tokens",), ("loss",))

    def _embedding(self) -> Module:
        tokens = Access("tokens", ("batch", "sequence"), 8, differentiable=False)
        table = Access("weight", ("vocabulary", "hidden"))
        output = "looked_up" if self._config.positions else "hidden"
        body = [
            self._make.memory(
                "tokens", [tokens], [Access(output, HIDDEN)], [table], kind=Kind.LOOKUP
            )
        ]
        if self._config.positions:
            body.append(
                self._make.memory(
                    "positions",
                    [Access("looked_up", HIDDEN)],
                    [Access("hidden", HIDDEN)],
                    [Access("weight", ("positions", "hidden"))],
                )
            )
        return Module(tuple(body), ("tokens",), ("hidden",))

    def _layer(self) -> Module:
        config, make = self._config, self._make
        mlp = self._experts() if config.experts else self._mlp()
        return Module(
            (
                make.norm("norm1", "hidden", "normed1", bias=config.bias),
                Call("attention", self._attention(), ("normed1",), ("attended",)),
                self._add("add1", "attended", "hidden", "middle"),
                make.norm("norm2", "middle", "normed2", bias=config.bias),
                Call("mlp", mlp, ("normed2",), ("transformed",)),
                self._add("add2", "transformed", "middle", "out"),
            ),
            ("hidden",),
            ("out",),
        )

    def _add(self, name: str, branch: str, stem: str, output: str) -> Operator:
        """Bias, dropout and residual sum. The bias belongs to the preceding linear layer.

        It is added here because that layer's output may be a partial sum.
        """
        config = self._config
        outputs = [Access(output, HIDDEN)]
        if config.dropout:
            outputs.append(Access(f"{name}_mask", HIDDEN, 1, differentiable=False))
        return self._make.memory(
            name,
            [Access(branch, HIDDEN), Access(stem, HIDDEN)],
            outputs,
            [Access("bias", ("hidden",))] if config.bias else [],
            saves=[f"{name}_mask"] if config.dropout else [],
        )

    def _attention(self) -> Module:
        config, make = self._config, self._make
        fused = ("batch", "sequence", "heads", "per_head")
        weight = ("heads", "per_head", "hidden")
        body: list[Operator | Call] = [
            make.linear(
                "qkv",
                Access("normed", HIDDEN),
                Access("qkv", fused),
                weight,
                bias=weight[:2] if config.bias else (),
            )
        ]
        qkv = "qkv"
        if not config.positions and config.causal:
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
        core = Module(tuple(self._core()), ("query", "key", "value"), ("context",))
        body.append(Call("core", core, core.inputs, core.outputs))
        output = ("hidden", "heads", "queries", "width")
        body.append(
            make.linear("output", Access("context", _QUERY), Access("attended", HIDDEN), output)
        )
        return Module(tuple(body), ("normed",), ("attended",))

    def _core(self) -> list[Operator]:
        config, make = self._config, self._make
        query, context = Access("query", _QUERY), Access("context", _QUERY)
        key, value = Access("key", _KEYS), Access("value", _KEYS)
        if config.fused_attention:
            return [make.attention("fused", query, key, value, context, causal=config.causal)]
        body = [
            make.product("scores", [query, key], Access("scores", _SCORES), whole=["width"]),
            make.memory(
                "softmax",
                [Access("scores", _SCORES)],
                [Access("weights", _SCORES)],
                whole=["keys"],
                saves=["weights"],
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

    def _mlp(self) -> Module:
        config, make = self._config, self._make
        weight: tuple[str, ...] = ("inner", "hidden")
        wide: tuple[str, ...] = _INNER
        if config.gated:
            weight, wide = ("gates", "inner", "hidden"), ("batch", "sequence", "gates", "inner")
        bias = weight[:-1] if config.bias else ()
        return Module(
            (
                make.linear(
                    "up", Access("normed", HIDDEN), Access("wide", wide), weight, bias=bias
                ),
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

    def _experts(self) -> Module:
        """Router, exchange of tokens, experts, exchange back. Tokens are spread evenly."""
        config, make = self._config, self._make
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

    def _head(self) -> Module:
        config, make = self._config, self._make
        logits = Access("logits", _LOGITS)
        return Module(
            (
                make.norm("norm", "hidden", "normed", bias=config.bias),
                make.linear(
                    "logits",
                    Access("normed", HIDDEN),
                    logits,
                    ("vocabulary", "hidden"),
                    tied="embedding.tokens" if config.tied else "",
                ),
                make.memory(
                    "loss",
                    [logits],
                    [
                        Access("probabilities", _LOGITS, 4, differentiable=False),
                        Access("loss", ("batch", "sequence"), 4),
                    ],
                    saves=["probabilities"],
                ),
            ),
            ("hidden",),
            ("loss",),
        )
