"""The built-in networks by their names, each as a function that makes its list of parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from byteprophet.workload.networks.bert import bert_base
from byteprophet.workload.networks.densenet import densenet201
from byteprophet.workload.networks.gpt2 import gpt2
from byteprophet.workload.networks.inception import inception_v3, inception_v4
from byteprophet.workload.networks.layers import Parameter
from byteprophet.workload.networks.ncf import ncf
from byteprophet.workload.networks.resnet import resnet18, resnet50, resnet152
from byteprophet.workload.networks.vgg import vgg19

NETWORKS: Mapping[str, Callable[[], list[Parameter]]] = {
    "resnet18": resnet18,
    "resnet50": resnet50,
    "resnet152": resnet152,
    "inception-v3": inception_v3,
    "inception-v4": inception_v4,
    "densenet201": densenet201,
    "vgg19": vgg19,
    "bert-base": bert_base,
    "gpt2": gpt2,
    "ncf": ncf,
}
