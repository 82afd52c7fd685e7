"""Transformers: GPT, Llama, Mixtral and BERT from one configuration."""

from __future__ import annotations

from dataclasses import replace

from byteprophet.errors import UserError
from byteprophet.simulate.models.layers import HIDDEN, Layers
from byteprophet.simulate.models.module import Call, Model, Module
from byteprophet.simulate.models.transformer_config import TransformerConfig
from byteprophet.simulate.models.transformer_parts import attention, experts, mlp
from byteprophet.simulate.operation.operator import Access, Kind, Operator

_LOGITS = ("batch", "sequence", "vocabulary")
_TABLE = "embedding"
"""The name of the token embedding, where the output layer shares it."""


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
                "rank": max(1, config.lora),
            },
            frozen=config.lora > 0,
        )

    @property
    def _shared(self) -> str:
        return _TABLE if self._config.tied else ""

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
        table = self._make.parameter("weight", ("vocabulary", "hidden"), self._shared)
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
                    [self._make.parameter("weight", ("positions", "hidden"))],
                )
            )
        return Module(tuple(body), ("tokens",), ("hidden",))

    def _layer(self) -> Module:
        config, make = self._config, self._make
        branch = experts(config, make) if config.experts else mlp(config, make)
        return Module(
            (
                make.norm("norm1", "hidden", "normed1", bias=config.bias),
                Call("attention", attention(config, make), ("normed1",), ("attended",)),
                self._add("add1", "attended", "hidden", "middle"),
                make.norm("norm2", "middle", "normed2", bias=config.bias),
                Call("mlp", branch, ("normed2",), ("transformed",)),
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
            [self._make.parameter("bias", ("hidden",))] if config.bias else [],
            saves=[f"{name}_mask"] if config.dropout else [],
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
                    shared=self._shared,
                ),
                *(self._loss(logits) if config.fused_loss else self._loss_in_steps(logits)),
            ),
            ("hidden",),
            ("loss",),
        )

    def _loss(self, *inputs: Access) -> tuple[Operator, ...]:
        """The loss from ``inputs``; the probabilities are kept for the backward pass."""
        outputs = [
            Access("probabilities", _LOGITS, 4, differentiable=False),
            Access("loss", ("batch", "sequence"), 4),
        ]
        return (self._make.memory("loss", inputs, outputs, saves=["probabilities"]),)

    def _loss_in_steps(self, logits: Access) -> tuple[Operator, ...]:
        """Megatron-LM's cross entropy: each step reads and writes all logits, with 32 bits.

        Vocabulary-parallel ranks find the maximum and the sum of each token together. Besides the
        probabilities and the gradient of the logits, there is a third tensor of that size: forward,
        the logits; backward in PyTorch's own loss, the gradient of logarithms.
        """
        memory = self._make.memory
        wide = Access("wide_logits", _LOGITS, 4)
        read = replace(wide, differentiable=False)

        def made(name: str) -> Access:
            return Access(name, _LOGITS, 4, differentiable=False)

        def found(name: str) -> Access:
            return Access(name, ("batch", "sequence"), 4, differentiable=False)

        return (
            memory("widen", [logits], [wide]),
            memory("maximum", [read], [found("maximum")]),
            memory("shift", [read, found("maximum")], [made("shifted")]),
            memory("exponentials", [made("shifted")], [made("exponentials")]),
            memory("sum", [made("exponentials")], [found("sum")]),
            *(
                replace(one, temporary=(made("logarithms"),))
                for one in self._loss(wide, made("exponentials"), found("sum"))
            ),
        )
