"""The built-in networks against published numbers."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest

from byteprophet.errors import UserError
from byteprophet.workload import builtin_names, load, parse_toml, to_toml
from byteprophet.workload.networks.bert import bert_base
from byteprophet.workload.networks.densenet import densenet201
from byteprophet.workload.networks.gpt2 import gpt2
from byteprophet.workload.networks.inception import inception_v3, inception_v4
from byteprophet.workload.networks.layers import Parameter
from byteprophet.workload.networks.ncf import ncf
from byteprophet.workload.networks.resnet import resnet18, resnet50, resnet152
from byteprophet.workload.networks.vgg import vgg19

# GPT-2: per token 2 N + 2 layers context width operations (Kaplan et al. 2020, N without
# embeddings, the attention's products beside it), and the head's over the vocabulary.
_GPT2 = 1024 * (12 * 12 * 768**2 + 2 * 12 * 1024 * 768 + 50257 * 768)

# Parameters and multiply-adds: torchvision's model pages for the convolutional networks, timm's for
# Inception-v4 (v3's 27,161,264 parameters there are with the auxiliary classifier, which has
# 3,326,696); for BERT-base transformers' BertModel, and the 22.5 billion operations at 128 tokens
# of the ELECTRA paper; for GPT-2 transformers' GPT2LMHeadModel; for NCF MLPerf's training 0.5.
PUBLISHED = [
    ("resnet18", resnet18(), 62, 11_689_512, 1.81e9),
    ("resnet50", resnet50(), 161, 25_557_032, 4.09e9),
    ("resnet152", resnet152(), 467, 60_192_808, 11.51e9),
    ("inception-v3", inception_v3(), 284, 27_161_264 - 3_326_696, 5.71e9),
    ("inception-v4", inception_v4(), 449, 42_679_816, 12.28e9),
    ("densenet201", densenet201(), 604, 20_013_928, 4.29e9),
    ("vgg19", vgg19(), 38, 143_667_240, 19.63e9),
    ("bert-base", bert_base(), 199, 109_482_240, 22.5e9 / 2),
    ("gpt2", gpt2(), 148, 124_439_808, _GPT2),
    ("ncf", ncf(), 12, 31_832_577, 256 * 256 + 256 * 128 + 128 * 64 + 128),
]


def test_every_built_in_is_checked() -> None:
    assert [row[0] for row in PUBLISHED] == builtin_names()


def shapes(parameters: list[Parameter]) -> dict[str, tuple[int, ...]]:
    return {parameter.name: parameter.shape for parameter in parameters}


@pytest.mark.parametrize(("name", "parameters", "tensors", "count", "multiply_adds"), PUBLISHED)
def test_published_counts(
    name: str, parameters: list[Parameter], tensors: int, count: int, multiply_adds: float
) -> None:
    workload = load(name)
    assert len(workload.tensors) == len(parameters) == tensors
    assert sum(prod(parameter.shape) for parameter in parameters) == count
    assert workload.size_bytes == 4 * count
    counted = sum(parameter.multiply_adds for parameter in parameters)
    assert counted == pytest.approx(multiply_adds, rel=0.02)


@pytest.mark.parametrize(
    ("parameters", "known"),
    [
        (
            resnet50(),
            {
                "conv1.weight": (64, 3, 7, 7),
                "bn1.bias": (64,),
                "layer1.0.conv1.weight": (64, 64, 1, 1),
                "layer1.0.downsample.0.weight": (256, 64, 1, 1),
                "layer2.0.conv2.weight": (128, 128, 3, 3),
                "layer3.5.bn3.weight": (1024,),
                "layer4.0.downsample.0.weight": (2048, 1024, 1, 1),
                "layer4.2.conv3.weight": (2048, 512, 1, 1),
                "fc.weight": (1000, 2048),
                "fc.bias": (1000,),
            },
        ),
        (
            vgg19(),
            {
                "features.0.weight": (64, 3, 3, 3),
                "features.7.bias": (128,),
                "features.34.weight": (512, 512, 3, 3),
                "classifier.0.weight": (4096, 25088),
                "classifier.6.bias": (1000,),
            },
        ),
        (
            bert_base(),
            {
                "bert.embeddings.word_embeddings.weight": (30522, 768),
                "bert.embeddings.position_embeddings.weight": (512, 768),
                "bert.encoder.layer.0.attention.self.query.weight": (768, 768),
                "bert.encoder.layer.11.intermediate.dense.weight": (3072, 768),
                "bert.encoder.layer.11.output.LayerNorm.bias": (768,),
                "bert.pooler.dense.bias": (768,),
            },
        ),
        (
            resnet18(),
            {
                "layer1.0.conv2.weight": (64, 64, 3, 3),
                "layer2.0.downsample.0.weight": (128, 64, 1, 1),
                "fc.weight": (1000, 512),
            },
        ),
        (
            resnet152(),
            {
                "layer2.7.conv2.weight": (128, 128, 3, 3),
                "layer3.35.conv3.weight": (1024, 256, 1, 1),
            },
        ),
        (
            inception_v3(),
            {
                "Conv2d_1a_3x3.conv.weight": (32, 3, 3, 3),
                "Mixed_5b.branch5x5_2.conv.weight": (64, 48, 5, 5),
                "Mixed_6b.branch7x7_2.conv.weight": (128, 128, 1, 7),
                "Mixed_7c.branch3x3dbl_3b.bn.bias": (384,),
                "fc.weight": (1000, 2048),
            },
        ),
        (
            inception_v4(),
            {
                "features.3.conv.conv.weight": (96, 64, 3, 3),
                "features.18.branch1.3.conv.weight": (320, 320, 3, 3),
                "last_linear.weight": (1000, 1536),
            },
        ),
        (
            densenet201(),
            {
                "features.denseblock1.denselayer1.conv1.weight": (128, 64, 1, 1),
                "features.denseblock4.denselayer32.norm1.weight": (1888,),
                "features.transition3.conv.weight": (896, 1792, 1, 1),
                "classifier.weight": (1000, 1920),
            },
        ),
        (
            gpt2(),
            {
                "transformer.wte.weight": (50257, 768),
                "transformer.wpe.weight": (1024, 768),
                "transformer.h.0.attn.c_attn.weight": (768, 2304),
                "transformer.h.11.mlp.c_fc.weight": (768, 3072),
                "transformer.h.11.mlp.c_proj.bias": (768,),
            },
        ),
        (
            ncf(),
            {
                "mf_user_embed.weight": (138_493, 64),
                "mlp_item_embed.weight": (26_744, 128),
                "mlp.0.weight": (256, 256),
                "final.weight": (1, 128),
            },
        ),
    ],
)
def test_known_tensors(parameters: list[Parameter], known: dict[str, tuple[int, ...]]) -> None:
    assert shapes(parameters).items() >= known.items()


def test_forward_order() -> None:
    names = [tensor.name for tensor in load("resnet50").tensors]
    assert names[:4] == ["conv1.weight", "bn1.weight", "bn1.bias", "layer1.0.conv1.weight"]
    last = names.index("layer4.0.bn3.bias")
    assert names[last + 1] == "layer4.0.downsample.0.weight"
    assert names[-2:] == ["fc.weight", "fc.bias"]


@pytest.mark.parametrize("name", builtin_names())
def test_times(name: str) -> None:
    workload = load(name)
    assert abs(workload.backward_ns - 2 * workload.forward_ns) <= 2  # whole nanoseconds
    assert all(tensor.forward_ns > 0 and tensor.backward_ns > 0 for tensor in workload.tensors)
    assert parse_toml(to_toml(workload), name) == workload


def test_times_are_proportional_to_operations() -> None:
    parameters = {parameter.name: parameter for parameter in resnet50()}
    tensors = {tensor.name: tensor for tensor in load("resnet50").tensors}
    operations = sum(parameter.operations for parameter in parameters.values())
    for name, tensor in tensors.items():
        share = parameters[name].operations / operations
        assert tensor.forward_ns == pytest.approx(300_000_000 * share, abs=1)
        assert tensor.backward_ns == pytest.approx(600_000_000 * share, abs=1)


def test_load_prefers_built_in_and_reads_files(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(to_toml(load("vgg19").scaled(5)))
    assert load(path) == load(str(path)) == load("vgg19").scaled(5)


def test_load_says_what_there_is() -> None:
    with pytest.raises(UserError, match=r"'resnet51' is neither built in .*bert-base.* nor a file"):
        load("resnet51")
