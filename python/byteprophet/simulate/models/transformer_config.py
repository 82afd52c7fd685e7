"""The shape of a transformer."""

from __future__ import annotations

from dataclasses import dataclass

from byteprophet.errors import UserError

_MOST_LAYERS = 10_000


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
        qkv_bias: whether queries, keys and values have biases although nothing else has.
        tied: whether the output layer shares the token embedding.
        causal: whether tokens attend to earlier tokens only.
        experts: the number of experts per layer; 0: one MLP.
        active_experts: experts per token.
        fused_attention: whether attention is one kernel that does not write the scores.
        dropout: whether masks of dropout are saved.
        alibi: whether scores have a bias by distance instead of positions, and are not fused.
        fused_loss: whether the loss reads the logits once and writes probabilities. Otherwise it is
            Megatron-LM's cross entropy over vocabulary-parallel ranks: one kernel for each step,
            all with 32 bits.
        width: the width of a head; 0: ``hidden / heads``.
        lora: the rank of LoRA's adapters (Hu et al. 2021) of both projections of attention, that of
            queries, keys and values and that of its output. All else is frozen. 0: all is trained.
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
    alibi: bool = False
    fused_loss: bool = True
    width: int = 0
    qkv_bias: bool = False
    lora: int = 0

    def __post_init__(self) -> None:
        """Raises ``UserError`` if the numbers do not fit together."""
        names = ("layers", "hidden", "heads", "kv_heads", "inner", "vocabulary", "sequence")
        for name in names:
            if getattr(self, name) < 1:
                raise UserError(f"model: {name} is {getattr(self, name)}: must be at least 1")
        if self.layers > _MOST_LAYERS:
            raise UserError(f"model: layers is {self.layers}: must be at most {_MOST_LAYERS}")
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
        if self.alibi and (self.fused_attention or self.positions):
            raise UserError("model: alibi needs fused_attention=0 and positions=0")
        if self.active_experts and not self.experts:
            raise UserError(
                f"model: active_experts is {self.active_experts}, but there are no experts: set "
                "experts, or active_experts=0"
            )
        if self.experts and not 1 <= self.active_experts <= self.experts:
            raise UserError(
                f"model: active_experts is {self.active_experts}: must be from 1 to {self.experts}"
            )
