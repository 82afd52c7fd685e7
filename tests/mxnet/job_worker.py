"""A worker of a real MXNet job: ``job_worker.py CASE``; CASE is a function below.

It imports ``byteps.mxnet``, as scripts do; each case writes what its test compares to
``$BYTEPROPHET_RUN/results/worker-<rank>.json``.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import byteps.mxnet as bps
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

BATCH_SIZE, ITERATIONS = 8, 8
# In the order of the forward pass, which is the opposite of the alphabet's.
LAYERS = ("z_conv", "y_norm", "x_conv", "w_norm", "v_dense", "u_dense")


def make_net(hybrid: bool) -> Any:
    net = nn.HybridSequential(prefix="")
    net.add(
        nn.Conv2D(16, 3, in_channels=3, prefix=f"{LAYERS[0]}_"),
        nn.BatchNorm(prefix=f"{LAYERS[1]}_"),
        nn.Conv2D(32, 3, prefix=f"{LAYERS[2]}_"),
        nn.BatchNorm(prefix=f"{LAYERS[3]}_"),
        nn.Dense(600, activation="relu", prefix=f"{LAYERS[4]}_"),
        nn.Dense(5, prefix=f"{LAYERS[5]}_"),
    )
    if hybrid:
        net.hybridize()
    net.initialize(mx.init.Xavier())
    return net


def train(trainer: Any, net: Any, iterations: int = ITERATIONS) -> None:
    """On batches of this rank's own."""
    batches = np.random.default_rng(bps.rank())
    loss_of = gluon.loss.L2Loss()
    for _ in range(iterations):
        images = nd.array(batches.normal(size=(BATCH_SIZE, 3, 8, 8)))
        with autograd.record():
            loss = loss_of(net(images), nd.array(batches.normal(size=(BATCH_SIZE, 5))))
        loss.backward()
        trainer.step(BATCH_SIZE)


def digest(parameters: Any) -> str:
    """Of all that is trained; running statistics are each rank's own."""
    digest = hashlib.sha256()
    for parameter in parameters.values():
        if parameter.grad_req != "null":
            digest.update(parameter.data().asnumpy().tobytes())
    return digest.hexdigest()


def train_gluon() -> dict[str, Any]:
    """Imperative, hybridized, and a second trainer of the same optimizer's kind beside it."""
    digests, orders = {}, []
    for name, hybrid, optimizer in (
        ("imperative", False, ("sgd", {"learning_rate": 0.05, "momentum": 0.9, "wd": 1e-3})),
        ("hybrid", True, ("lamb", {"learning_rate": 0.01})),
    ):
        mx.random.seed(1 + bps.rank())  # rank 0's parameters are everybody's
        net = make_net(hybrid)
        net(nd.zeros((1, 3, 8, 8)))
        trainer = bps.DistributedTrainer(net.collect_params(), *optimizer)
        train(trainer, net)
        digests[name] = digest(net.collect_params())
        if hasattr(trainer, "forward_order"):
            orders.append(trainer.forward_order)
    return {"digests": digests, "orders": orders}


def train_one(hybrid: bool) -> dict[str, Any]:
    """One network, from an agreed begin."""
    net = make_net(hybrid)
    net(nd.zeros((1, 3, 8, 8)))
    train(bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.01}), net)
    return {}


def train_imperative() -> dict[str, Any]:
    """Layer by layer."""
    return train_one(hybrid=False)


def train_hybrid() -> dict[str, Any]:
    """As one graph."""
    return train_one(hybrid=True)


def other_order() -> dict[str, Any]:
    """Ranks that run their layers in different orders agree on rank 0's."""
    layers = [nn.Dense(4, in_units=4, prefix=f"{name}_") for name in LAYERS]
    parameters = gluon.ParameterDict()
    for layer in layers:
        layer.initialize()
        parameters.update(layer.collect_params())
    trainer = bps.DistributedTrainer(parameters, "sgd", {"learning_rate": 0.05})
    for _ in range(3):
        with autograd.record():
            hidden = nd.ones((BATCH_SIZE, 4))
            for layer in layers if bps.rank() == 0 else layers[::-1]:
                hidden = layer(hidden)
        hidden.backward()
        trainer.step(BATCH_SIZE)
    return {"digest": digest(parameters), "order": trainer.forward_order}


def module() -> dict[str, Any]:
    """The symbolic interface with ``DistributedOptimizer``; parameters come by broadcast."""
    mx.random.seed(1 + bps.rank())
    data = mx.sym.Variable("data")
    for number, name in enumerate(LAYERS):
        data = mx.sym.FullyConnected(data, num_hidden=20 + number, name=name)
    symbol = mx.sym.LinearRegressionOutput(data, mx.sym.Variable("label"))
    batches = np.random.default_rng(bps.rank())
    shape = (4 * BATCH_SIZE, 20 + len(LAYERS) - 1)
    iterator = mx.io.NDArrayIter(
        batches.normal(size=(4 * BATCH_SIZE, 30)),
        batches.normal(size=shape),
        BATCH_SIZE,
        label_name="label",
    )
    network = mx.mod.Module(symbol, label_names=["label"])
    network.bind(iterator.provide_data, iterator.provide_label)
    network.init_params(mx.init.Xavier())
    arguments, _ = network.get_params()
    bps.broadcast_parameters(arguments)
    network.set_params(arguments, {})
    rescale = 1.0 / BATCH_SIZE
    optimizer = mx.optimizer.create("sgd", learning_rate=0.05, momentum=0.9, rescale_grad=rescale)
    network.init_optimizer(kvstore=None, optimizer=bps.DistributedOptimizer(optimizer))
    for batch in iterator:
        network.forward_backward(batch)
        network.update()
    arguments, _ = network.get_params()
    digest = hashlib.sha256()
    for _, values in sorted(arguments.items()):
        digest.update(values.asnumpy().tobytes())
    return {"digest": digest.hexdigest()}


def after_inference() -> dict[str, Any]:
    """Weights that inference has laid out anew are sent as they were."""
    mx.random.seed(1 + bps.rank())
    convolution = nn.Conv2D(64, 3, padding=1, in_channels=32)
    convolution.initialize(mx.init.Xavier())
    before = convolution.weight.data().asnumpy()
    for _ in range(2):
        convolution(nd.ones((16, 32, 8, 8)))
    bps.broadcast_parameters({"weight": convolution.weight.data()})
    after = convolution.weight.data().asnumpy()
    return {"same": bool((before == after).all()), "sum": float(np.abs(after).sum())}


def unfinished() -> dict[str, Any]:
    """The script ends, and does not say so, while everything is still under way."""
    net = nn.Dense(1000, in_units=1000)
    net.initialize()
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.05})
    for _ in range(ITERATIONS):
        with autograd.record():
            loss = net(nd.ones((BATCH_SIZE, 1000)))
        loss.backward()
        trainer.step(BATCH_SIZE)
    return {}


def uneven() -> dict[str, Any]:
    """Worker 1 has fewer batches: what worker 0 is told, also of a tensor that it alone has."""
    net = nn.Dense(100, in_units=100)
    net.initialize()
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.05})
    bps.byteps_declare_tensor("alone")  # on both: its key is its place among the declared
    if bps.rank() == 1:
        train_dense(trainer, net, ITERATIONS - 3)
        return {"told": []}
    return {
        "told": [
            failure(lambda: train_dense(trainer, net, ITERATIONS)),
            failure(lambda: bps.byteps_push_pull(nd.ones(3), name="alone")),
        ]
    }


def failure(action: Callable[[], Any]) -> str:
    """What ``action``, or the wait for what it began, raises."""
    try:
        action()
        mx.nd.waitall()
    except mx.MXNetError as error:
        return str(error)
    return ""


def train_dense(trainer: Any, net: Any, iterations: int) -> None:
    for _ in range(iterations):
        with autograd.record():
            loss = net(nd.ones((BATCH_SIZE, 100)))
        loss.backward()
        trainer.step(BATCH_SIZE)


def failing() -> dict[str, Any]:
    """One rank's script has a fault, while gradients are on their way."""
    net = nn.Dense(100, in_units=100)
    net.initialize()
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.05})
    for iteration in range(100):
        with autograd.record():
            loss = net(nd.ones((BATCH_SIZE, 100)))
        loss.backward()
        if iteration == 5 and bps.rank() == 1:
            raise ArithmeticError("a fault of this script")
        trainer.step(BATCH_SIZE)
    return {}


if __name__ == "__main__":
    bps.init()
    outcome = globals()[sys.argv[1]]()
    ours = sys.modules.get("byteprophet.mxnet")
    outcome["scheduled_partitions"] = ours.scheduled_partitions() if ours else 0
    path = Path(os.environ["BYTEPROPHET_RUN"]) / "results" / f"worker-{bps.rank()}.json"
    path.write_text(json.dumps(outcome))
