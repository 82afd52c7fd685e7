"""FLOPs and parameters of models are those of the same models in PyTorch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from byteprophet.errors import UserError
from byteprophet.simulate.models.catalogue import MODELS, find_model
from byteprophet.simulate.models.transformer import build
from byteprophet.simulate.models.transformer_config import TransformerConfig


class _Layer(nn.Module):
    """A layer as its authors describe it, written independently of ours."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        hidden, bias = config.hidden, config.bias
        self.config = config
        norm = nn.LayerNorm if bias else nn.RMSNorm
        self.norm1, self.norm2 = norm(hidden), norm(hidden)
        key_width = config.kv_heads * config.width
        self.query = nn.Linear(hidden, config.heads * config.width, bias=bias)
        self.key = nn.Linear(hidden, key_width, bias=bias)
        self.value = nn.Linear(hidden, key_width, bias=bias)
        self.output = nn.Linear(config.heads * config.width, hidden, bias=bias)
        self.up = nn.Linear(hidden, config.inner, bias=bias)
        self.gate = nn.Linear(hidden, config.inner, bias=bias) if config.gated else None
        self.down = nn.Linear(config.inner, hidden, bias=bias)

    def forward(self, hidden: Tensor) -> Tensor:
        config = self.config
        batch, sequence, _ = hidden.shape
        normed = self.norm1(hidden)

        def heads(linear: nn.Linear, count: int) -> Tensor:
            made = linear(normed).view(batch, sequence, count, config.width).transpose(1, 2)
            return made.repeat_interleave(config.heads // count, 1)

        query = heads(self.query, config.heads)
        key, value = heads(self.key, config.kv_heads), heads(self.value, config.kv_heads)
        weights = torch.softmax(query @ key.transpose(-1, -2), -1)
        mixed = (weights @ value).transpose(1, 2).reshape(batch, sequence, -1)
        hidden = hidden + self.output(mixed)
        normed = self.norm2(hidden)
        wide = self.up(normed)
        wide = functional.silu(self.gate(normed)) * wide if self.gate else functional.gelu(wide)
        return hidden + self.down(wide)


class _Model(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.hidden)
        rows = config.positions
        self.positions = nn.Embedding(rows, config.hidden) if rows else None
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.layers))
        self.norm = (nn.LayerNorm if config.bias else nn.RMSNorm)(config.hidden)
        self.head = nn.Linear(config.hidden, config.vocabulary, bias=False)
        if config.tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.tokens(tokens)
        if self.positions is not None:
            hidden = hidden + self.positions.weight[: tokens.shape[1]]
        for layer in self.layers:
            hidden = layer(hidden)
        return functional.cross_entropy(
            self.head(self.norm(hidden)).flatten(0, 1), tokens.flatten()
        )


_GPT = TransformerConfig(3, 64, 4, 4, 256, 500, 32, positions=40)
_LLAMA = TransformerConfig(2, 64, 8, 2, 160, 300, 48, gated=True, bias=False, tied=False)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("config", [_GPT, _LLAMA], ids=["gpt", "llama"])
def test_flops_and_parameters_are_those_of_pytorch(config: TransformerConfig, fused: bool) -> None:
    values = {name: getattr(config, name) for name in config.__dataclass_fields__}
    ours = build("small", TransformerConfig(**{**values, "fused_attention": fused}), 2)
    with torch.device("meta"):
        model = _Model(config)
        tokens = torch.zeros(2, config.sequence, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(tokens).backward()
    assert ours.flops() == counter.get_total_flops()
    assert ours.parameters() == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # As printed by transformers for the published checkpoints.
        ("gpt2", 124_439_808),
        ("gpt2-xl", 1_557_611_200),
        ("llama2-7b", 6_738_415_616),
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("mixtral-8x7b", 46_702_792_704),
    ],
)
def test_built_in_models_have_the_published_number_of_parameters(
    name: str, parameters: int
) -> None:
    assert build(name, MODELS[name], 1).parameters() == parameters


def test_experts_that_are_not_there_are_not_active() -> None:
    for text in ("gpt:layers=2,hidden=64,heads=2,active_experts=2", "mixtral-8x7b:experts=0"):
        with pytest.raises(UserError, match="active_experts is 2, but there are no experts"):
            find_model(text)


def test_qwen2_has_biases_of_queries_keys_and_values(tmp_path: Path) -> None:
    """Qwen2-0.5B, as its authors published it, has 494,032,768 parameters."""
    path = tmp_path / "config.json"
    config = {
        "model_type": "qwen2",
        "num_hidden_layers": 24,
        "hidden_size": 896,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "intermediate_size": 4864,
        "vocab_size": 151936,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
    }
    path.write_text(json.dumps(config), encoding="utf-8")
    assert build(*find_model(str(path)), 1).parameters() == 494_032_768


@pytest.mark.parametrize("family", ["mistral", "mixtral", "qwen2"])
def test_null_heads_of_keys_are_as_many_as_those_of_queries(family: str, tmp_path: Path) -> None:
    """As transformers reads it. A key that is missing is another number in each family."""
    path = tmp_path / "config.json"
    config = {
        "model_type": family,
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 256,
        "max_position_embeddings": 512,
        "sliding_window": None,
        "num_local_experts": 4,
    }
    path.write_text(json.dumps(config | {"num_key_value_heads": None}), encoding="utf-8")
    assert find_model(str(path))[1].kv_heads == 4
    path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UserError, match="num_key_value_heads is missing"):
        find_model(str(path))
