"""The built-in networks against published numbers."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest

from byteprophet.errors import UserError
from byteprophet.workload import builtin_names, load, parse_toml, to_toml
from byteprophet.workload.bert import bert_base
from byteprophet.workload.layers import Parameter
from byteprophet.workload.resnet import resnet50
from byteprophet.workload.vgg import vgg19

# Parameters and multiply-adds: torchvision's model pages for ResNet-50 and VGG-19; for BERT-base
# transformers' BertModel, and the 22.5 billion operations at 128 tokens of the ELECTRA paper.
PUBLISHED = [
    ("resnet50", resnet50(), 161, 25_557_032, 4.09e9),
    ("vgg19", vgg19(), 38, 143_667_240, 19.63e9),
    ("bert-base", bert_base(), 199, 109_482_240, 22.5e9 / 2),
]


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
    assert workload.backward_ns == 2 * workload.forward_ns
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
