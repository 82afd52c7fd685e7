"""Models by name, by a description in one line, or from a Hugging Face ``config.json``.

The shapes are those that their authors published: GPT-3 (Brown et al. 2020, Table 2.1), GPT-2
(Radford et al. 2019), Llama 2 and 3 (Touvron et al. 2023; Dubey et al. 2024), BERT (Devlin et al.
2019), Mixtral (Jiang et al. 2024). GPT's vocabulary is padded to a multiple of 128 x tp = 1,024,
as Megatron-LM does for tp = 8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from byteprophet.errors import UserError
from byteprophet.input_files import is_there, read_json
from byteprophet.simulate.models.transformer_config import TransformerConfig

_GPT_VOCABULARY = 51200
_INNER = 4
"""The width of the MLP of a GPT over that of the hidden state."""
FAMILIES = ("gpt", "llama")
"""Of descriptions."""
DESCRIPTION = "gpt:layers=24,hidden=2048,heads=16"
"""An example of a description, for messages and help."""


def gpt(
    layers: int, hidden: int, heads: int, sequence: int = 2048, vocabulary: int = _GPT_VOCABULARY
) -> TransformerConfig:
    """A GPT with learned positions and tied embeddings."""
    return TransformerConfig(
        layers, hidden, heads, heads, _INNER * hidden, vocabulary, sequence, positions=sequence
    )


def llama(
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    inner: int,
    vocabulary: int,
    sequence: int,
) -> TransformerConfig:
    """A Llama: rotary positions, gated MLP, no biases, its own output layer."""
    return TransformerConfig(
        layers,
        hidden,
        heads,
        kv_heads,
        inner,
        vocabulary,
        sequence,
        gated=True,
        bias=False,
        tied=False,
    )


def _bert(layers: int, hidden: int, heads: int) -> TransformerConfig:
    return TransformerConfig(
        layers, hidden, heads, heads, _INNER * hidden, 30522, 512, positions=512, causal=False
    )


def _mixtral(layers: int, hidden: int, heads: int, inner: int) -> TransformerConfig:
    return TransformerConfig(
        layers,
        hidden,
        heads,
        8,
        inner,
        32000,
        4096,
        gated=True,
        bias=False,
        tied=False,
        experts=8,
        active_experts=2,
    )


MODELS: Mapping[str, TransformerConfig] = {
    "gpt2": gpt(12, 768, 12, 1024, 50257),
    "gpt2-xl": gpt(48, 1600, 25, 1024, 50257),
    "gpt3-1.3b": gpt(24, 2048, 16),
    "gpt3-6.7b": gpt(32, 4096, 32),
    "gpt3-13b": gpt(40, 5120, 40),
    "gpt3-175b": gpt(96, 12288, 96),
    "llama2-7b": llama(32, 4096, 32, 32, 11008, 32000, 4096),
    "llama2-13b": llama(40, 5120, 40, 40, 13824, 32000, 4096),
    "llama2-70b": llama(80, 8192, 64, 8, 28672, 32000, 4096),
    "llama3-8b": llama(32, 4096, 32, 8, 14336, 128256, 8192),
    "llama3-70b": llama(80, 8192, 64, 8, 28672, 128256, 8192),
    "llama3-405b": llama(126, 16384, 128, 8, 53248, 128256, 8192),
    "mixtral-8x7b": _mixtral(32, 4096, 32, 14336),
    "mixtral-8x22b": _mixtral(56, 6144, 48, 16384),
    "bert-base": _bert(12, 768, 12),
    "bert-large": _bert(24, 1024, 16),
}


def find_model(text: str, others: Sequence[str] = ()) -> tuple[str, TransformerConfig]:
    """The name and configuration of a model.

    Args:
        text: a name in ``MODELS``, also with other sizes (``llama2-70b:lora=16``), a description
            such as ``DESCRIPTION``, or the path of a Hugging Face ``config.json``.
        others: names of models that are found elsewhere, for the error.

    Raises:
        UserError: there is no such model, or its description is wrong.
    """
    if text in MODELS:
        return text, MODELS[text]
    family, colon, description = text.partition(":")
    if colon and family in MODELS:
        return text, _changed(family, description)
    if colon and family in FAMILIES:
        return text, _described(family, description)
    if is_there(text):
        return Path(text).stem, _from_hugging_face(Path(text))
    raise UserError(
        f"model {text}: not built in and no such file: use one of "
        f"{', '.join([*MODELS, *others])}, a description like {DESCRIPTION}, a Hugging Face "
        "config.json, or module:function"
    )


def _changed(name: str, description: str) -> TransformerConfig:
    """A built-in model with some sizes of a description.

    Raises:
        UserError: ``hidden`` changes, but the width of the MLP does not follow from it.
    """
    values, model = _values(name, description), MODELS[name]
    if values.get("hidden", model.hidden) != model.hidden and "inner" not in values:
        if model.inner != _INNER * model.hidden:
            raise UserError(
                f"model {name}: hidden={values['hidden']}: give inner, too, the width of the MLP: "
                f"{model.inner} belongs to hidden={model.hidden}"
            )
        values["inner"] = _INNER * values["hidden"]
    if values.keys() & {"hidden", "heads"}:
        values.setdefault("width", 0)  # that of a head follows from both
    if "heads" in values and model.kv_heads == model.heads:
        values.setdefault("kv_heads", values["heads"])
    return replace(model, **_typed(values))


def _values(family: str, description: str) -> dict[str, int]:
    """The sizes in a description."""
    values: dict[str, int] = {}
    known = {field.name for field in fields(TransformerConfig)}
    for item in description.split(","):
        name, _, number = item.partition("=")
        if name not in known or not number.isdecimal() or len(number) > 9:
            raise UserError(
                f"model {family}: {item}: expected NAME=NUMBER, where NAME is one of "
                f"{', '.join(sorted(known))}"
            )
        values[name] = int(number)
    return values


def _typed(values: Mapping[str, int]) -> dict[str, Any]:
    """The same as fields of a ``TransformerConfig``."""
    booleans = {field.name for field in fields(TransformerConfig) if field.type == "bool"}
    return {name: bool(one) if name in booleans else one for name, one in values.items()}


def _described(family: str, description: str) -> TransformerConfig:
    values = _values(family, description)
    for name in ("layers", "hidden", "heads"):
        if name not in values:
            raise UserError(f"model {family}: {name} is missing, e.g. {DESCRIPTION}")
    hidden, sequence = values["hidden"], values.get("sequence", 2048)
    defaults = {
        "kv_heads": values["heads"],
        "inner": _INNER * hidden,
        "vocabulary": _GPT_VOCABULARY,
        "sequence": sequence,
    }
    of_family = (
        {"positions": sequence}
        if family == "gpt"
        else {"gated": True, "bias": False, "tied": False}
    )
    arguments: dict[str, Any] = {**of_family, **_typed({**defaults, **values})}
    return TransformerConfig(**arguments)


_FAMILIES = ("llama", "mistral", "qwen2", "mixtral", "gpt2", "bert")
_NOT_MODELLED = {
    "llama": ("attention_bias", "mlp_bias", "num_local_experts"),
    "mistral": ("sliding_window",),
    "mixtral": ("sliding_window",),
    "qwen2": ("use_sliding_window",),
    "gpt2": ("add_cross_attention",),
    "bert": ("is_decoder", "add_cross_attention"),
}
"""Fields by family that change what is computed, unless they are false, 0 or null."""
_MOST_TOKENS = 8192
"""Per sample, where only the most positions are known: models are mostly trained on fewer."""
_MISTRALS_WINDOW = 4096
"""Of a Mistral whose file does not tell."""


def _from_hugging_face(path: Path) -> TransformerConfig:
    config = read_json(path)
    family = config.get("model_type") if isinstance(config, dict) else None
    if family not in _FAMILIES:
        raise UserError(f"{path}: model_type is {family!r}: use one of {', '.join(_FAMILIES)}")

    def number(*names: str, default: int | None = None) -> int:
        for name in names:
            value = config.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 31:
                return value
            if value is not None:
                raise UserError(f"{path}: {name} is {value!r}: must be a positive number")
        if default is None:
            raise UserError(f"{path}: {names[0]} is missing")
        return default

    defaults = {"sliding_window": _MISTRALS_WINDOW} if family == "mistral" else {}
    for flag in _NOT_MODELLED.get(family, ()):
        value = config.get(flag, defaults.get(flag))
        if value:
            raise UserError(
                f"{path}: {flag} is {value!r}, which is not simulated: if it makes no difference "
                "to your sequences, set it to null"
            )
    old = family in ("gpt2", "bert")
    tied = config.get("tie_word_embeddings", old)
    if not isinstance(tied, bool):
        raise UserError(f"{path}: tie_word_embeddings is {tied!r}: must be true or false")
    layers = number("num_hidden_layers", "n_layer")
    hidden = number("hidden_size", "n_embd")
    heads = number("num_attention_heads", "n_head")
    # Where a family's default is a number of its own, the file must have it.
    most = 2048 if family == "llama" else None
    positions = number("max_position_embeddings", "n_positions", default=most)
    # Null means the heads of queries in every family.
    kv_heads = heads if family == "llama" or "num_key_value_heads" in config else None
    inner = _INNER * hidden if family == "gpt2" else None
    return TransformerConfig(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads if old else number("num_key_value_heads", default=kv_heads),
        inner=number("intermediate_size", "n_inner", default=inner),
        vocabulary=number("vocab_size"),
        sequence=min(positions, _MOST_TOKENS),
        positions=positions if old else 0,
        gated=not old,
        bias=old,
        tied=tied,
        causal=family != "bert",
        experts=number("num_local_experts") if family == "mixtral" else 0,
        active_experts=number("num_experts_per_tok", default=2) if family == "mixtral" else 0,
        width=0 if old else number("head_dim", default=hidden // heads),
        qkv_bias=family == "qwen2",
    )
