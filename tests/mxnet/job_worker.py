"""A worker of a real MXNet job: ``job_worker.py CASE``; CASE is a function below.

It imports ``byteps.mxnet``, as scripts do; each case writes what its test compares to
``$BYTEPROPHET_RUN/results/worker-<rank>.json``.
"""

from __future__ import annotations

import copy
import faulthandler
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

TIMEOUT_S = 200.0  # of a job
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


def train(trainer: Any, net: Any, step: Callable[[Any], None] | None = None) -> None:
    """On batches of this rank's own. ``step`` takes the trainer; None: ``trainer.step()``."""
    batches = np.random.default_rng(bps.rank())
    loss_of = gluon.loss.L2Loss()
    for _ in range(ITERATIONS):
        images = nd.array(batches.normal(size=(BATCH_SIZE, 3, 8, 8)))
        with autograd.record():
            loss = loss_of(net(images), nd.array(batches.normal(size=(BATCH_SIZE, 5))))
        loss.backward()
        if step is None:
            trainer.step(BATCH_SIZE)
        else:
            step(trainer)


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


def train_one(hybrid: bool, step: Callable[[Any], None] | None = None) -> dict[str, Any]:
    """One network, from an agreed begin."""
    net = make_net(hybrid)
    net(nd.zeros((1, 3, 8, 8)))
    train(bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.01}), net, step)
    return {}


def train_imperative() -> dict[str, Any]:
    """Layer by layer."""
    return train_one(hybrid=False)


def train_hybrid() -> dict[str, Any]:
    """As one graph."""
    return train_one(hybrid=True)


def train_clipped() -> dict[str, Any]:
    """With averages that the script changes before the update."""

    def step(trainer: Any) -> None:
        trainer.allreduce_grads()
        trained = [each for each in trainer._params if each.grad_req != "null"]
        gluon.utils.clip_global_norm([each.list_grad()[0] for each in trained], 1.0)
        trainer.update(BATCH_SIZE)

    return train_one(hybrid=False, step=step)


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


def small(name: str, units: int = 3) -> Any:
    """A layer that begins alike on all ranks."""
    mx.random.seed(1)
    net = nn.Dense(units, in_units=4, prefix=f"{name}_")
    net.initialize(mx.init.Xavier())
    return net


def loss_of(net: Any, step: int, rank: int) -> Any:
    inputs = np.random.default_rng(100 * step + rank).normal(size=(BATCH_SIZE, 4))
    return (net(nd.array(inputs)) ** 2).mean(axis=1)


def train_small(trainer: Any, *nets: Any, steps: range = range(3), **options: Any) -> None:
    """On the sum of the losses of ``nets``."""
    for step in steps:
        with autograd.record():
            loss = sum(loss_of(net, step, bps.rank()) for net in nets)
        loss.backward()
        trainer.step(BATCH_SIZE, **options)


def alone(net: Any, steps: range = range(3), **options: Any) -> Any:
    """Train ``net`` in one process, on what all ranks have."""
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, **options}, None)
    for step in steps:
        with autograd.record():
            loss = nd.concat(*(loss_of(net, step, rank) for rank in range(bps.size())), dim=0)
        loss.backward()
        trainer.step(BATCH_SIZE * bps.size())
    return net


def made(*nets: Any, **options: Any) -> Any:
    parameters = gluon.ParameterDict()
    for net in nets:
        parameters.update(net.collect_params())
    return bps.DistributedTrainer(parameters, "sgd", {"learning_rate": 0.1, **options})


def near(one: Any, other: Any) -> bool:
    pairs = zip(one.collect_params().values(), other.collect_params().values(), strict=True)
    return all(np.allclose(a.data().asnumpy(), b.data().asnumpy(), atol=1e-5) for a, b in pairs)


def as_one_process() -> dict[str, Any]:
    """What scripts do with trainers; each must end with the parameters of one process."""
    found = {}

    net = small("copied")
    trainer = made(net)
    net_copy = copy.deepcopy(net)
    net_copy.weight.set_data(nd.zeros((3, 4)))
    train_small(trainer, net)
    found["a copy before the first step"] = near(net, alone(small("a"))) and not bool(
        net_copy(nd.ones((1, 4))).asnumpy().any()
    )

    net = small("twice")
    first, second = made(net), made(net)
    train_small(first, net)
    train_small(second, net, steps=range(3, 5))
    found["two trainers of one network"] = near(net, alone(small("b"), range(5)))

    net, more = small("part"), small("rest")
    train_small(made(net), net)
    train_small(made(net, more), net, more, steps=range(3, 5))
    found["a trainer of more parameters"] = near(net, alone(small("c"), range(5)))

    net, same = small("same"), small("same", 7)
    one, other = made(net), made(same)
    train_small(one, net)
    train_small(other, same)
    found["two networks with the same names"] = near(net, alone(small("d"))) and near(
        same, alone(small("e", 7))
    )

    net = small("thawed")
    net.weight.grad_req = "null"
    trainer = made(net)
    train_small(trainer, net, steps=range(0))
    net.weight.grad_req = "write"
    train_small(trainer, net)
    found["a parameter is unfrozen"] = near(net, alone(small("f")))

    net = small("rescaled")
    train_small(made(net, rescale_grad=0.25), net)
    found["rescale_grad"] = near(net, alone(small("g"), rescale_grad=0.25))
    return found


def stale() -> dict[str, Any]:
    """Ranks use a part of the network in turn."""
    net, part = small("always"), small("at_times")
    trainer = made(net, part)
    for step in range(6):
        with autograd.record():
            loss = loss_of(net, step, bps.rank())
            if (step + bps.rank()) % 2:
                loss = loss + loss_of(part, step, bps.rank())
        loss.backward()
        trainer.step(BATCH_SIZE, ignore_stale_grad=True)
    return {"digest": digest(part.collect_params()), "began": digest(small("x").collect_params())}


def refused() -> dict[str, Any]:
    """What would be silently wrong, or end the process."""
    wide = nn.Dense(3, in_units=4, prefix="wide_")
    wide.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    sparse = nn.Embedding(10, 4, sparse_grad=True, prefix="sparse_")
    sparse.initialize()
    return {"told": [refusal(wide), refusal(sparse)]}


def refusal(net: Any) -> str:
    try:
        made(net)
    except ValueError as error:
        return str(error)
    return ""


def modules_of_one_shape() -> dict[str, Any]:
    """Two modules, whose parameters have the same numbers: each must train as if it were alone."""
    found = []
    for start in ([1], [2], [1, 2]):
        modules = [symbolic(seed) for seed in start]
        for step in range(5):
            inputs = np.random.default_rng(100 * step + bps.rank()).normal(size=(BATCH_SIZE, 40))
            for each in modules:
                each.forward_backward(
                    mx.io.DataBatch([nd.array(inputs)], [nd.ones((BATCH_SIZE, 300))])
                )
            for each in modules:
                each.update()
        found += [each.get_params()[0]["layer_weight"].asnumpy() for each in modules]
    return {"same": [bool((found[n] == found[n + 2]).all()) for n in range(2)]}


def symbolic(seed: int) -> Any:
    layer = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=300, name="layer")
    symbol = mx.sym.LinearRegressionOutput(layer, mx.sym.Variable("label"))
    module = mx.mod.Module(symbol, label_names=["label"])
    module.bind([("data", (BATCH_SIZE, 40))], [("label", (BATCH_SIZE, 300))])
    mx.random.seed(seed)
    module.init_params(mx.init.Xavier())
    optimizer = mx.optimizer.create("sgd", learning_rate=0.05, rescale_grad=1.0 / BATCH_SIZE)
    module.init_optimizer(kvstore=None, optimizer=bps.DistributedOptimizer(optimizer))
    return module


if __name__ == "__main__":
    faulthandler.dump_traceback_later(0.75 * TIMEOUT_S)  # where it hangs, if it does
    bps.init()
    outcome = globals()[sys.argv[1]]()
    ours = sys.modules.get("byteprophet.mxnet")
    outcome["scheduled_partitions"] = ours.scheduled_partitions() if ours else 0
    path = Path(os.environ["BYTEPROPHET_RUN"]) / "results" / f"worker-{bps.rank()}.json"
    path.write_text(json.dumps(outcome))
