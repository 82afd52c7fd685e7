"""Trains a small ResNet on handwritten digits with Gluon and BytePS, as any such script would.

    byteprophet run --workers 2 --bandwidth 500mbit -- python experiments/gluon/train.py

It uses ``byteps.mxnet`` as upstream's examples do and knows nothing of schedulers: with
``BYTEPS_SCHEDULER`` set, byteprophet comes in by itself. Data: 1797 pictures of 8 by 8 pixels that
come with scikit-learn, of which 360 are kept for testing; each worker takes its share of every
batch. Batch norm keeps running statistics per rank.

Writes ``$BYTEPROPHET_RUN/results/worker-<rank>.json`` (fields: at the end of ``main``).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import byteps.mxnet as bps
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from mxnet.gluon.model_zoo.vision import BasicBlockV1
from sklearn.datasets import load_digits

BATCH_SIZE = 64  # per worker
WIDTHS = (48, 96, 192)
BLOCKS_PER_STAGE = 2
TEST_IMAGES = 360


def make_net() -> Any:
    """1.6 million parameters, 6.2 MB per exchange; most of them in the last layers."""
    net = nn.HybridSequential()
    net.add(nn.Conv2D(WIDTHS[0], 3, padding=1, use_bias=False, in_channels=1))
    net.add(nn.BatchNorm(), nn.Activation("relu"))
    inputs = WIDTHS[0]
    for stage, outputs in enumerate(WIDTHS):
        for number in range(BLOCKS_PER_STAGE):
            stride = 2 if stage and not number else 1
            net.add(BasicBlockV1(outputs, stride, outputs != inputs, in_channels=inputs))
            inputs = outputs
    net.add(nn.GlobalAvgPool2D(), nn.Dense(10))
    return net


def load() -> tuple[np.ndarray, np.ndarray]:
    """Images ``(n, 1, 8, 8)``, normalised, and labels ``(n,)``, in a fixed random order."""
    digits = load_digits()
    order = np.random.default_rng(20).permutation(len(digits.target))
    images = digits.images[order, None].astype("float32")
    train = images[TEST_IMAGES:]
    return (images - train.mean()) / train.std(), digits.target[order].astype("float32")


def main() -> None:
    """Train, evaluate, write results."""
    parser = argparse.ArgumentParser(description="Train a small ResNet on handwritten digits.")
    parser.add_argument("--iterations", type=int, default=44, help="parameter updates")
    parser.add_argument("--warmup", type=int, default=0, help="of these, how many not to time")
    options = parser.parse_args()
    images, labels = load()
    test, train = slice(0, TEST_IMAGES), slice(TEST_IMAGES, None)

    bps.init()
    rank, size = bps.rank(), bps.size()
    mx.random.seed(1)
    net = make_net()
    net.initialize(mx.init.Xavier())
    schedule = mx.lr_scheduler.CosineScheduler(options.iterations, base_lr=0.1, final_lr=0.0)
    trainer = bps.DistributedTrainer(
        net.collect_params(),
        "sgd",
        {"learning_rate": 0.1, "lr_scheduler": schedule, "momentum": 0.9, "wd": 5e-4},
    )
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

    starts_ns = []
    batches = np.random.default_rng(1)
    for iteration in range(options.iterations):
        starts_ns.append(time.monotonic_ns())
        batch = batches.permutation(len(labels) - TEST_IMAGES)[rank : size * BATCH_SIZE : size]
        with autograd.record():
            loss = loss_of(net(nd.array(images[train][batch])), nd.array(labels[train][batch]))
        loss.backward()
        trainer.step(BATCH_SIZE)
        mean = loss.mean().asscalar()  # waits for the forward pass, as any metric does
        if iteration % 10 == 0:
            print(f"iteration {iteration}: loss {mean:.4f}", flush=True)
    nd.waitall()
    starts_ns.append(time.monotonic_ns())

    guesses = net(nd.array(images[test])).asnumpy().argmax(axis=1)
    accuracy = float((guesses == labels[test]).mean())
    print(f"loss {mean:.4f}, test accuracy {accuracy:.4f}", flush=True)
    ours = sys.modules.get("byteprophet.mxnet")
    digest = hashlib.sha256()
    for parameter in net.collect_params().values():
        if parameter.grad_req != "null":
            digest.update(parameter.data().asnumpy().astype("<f4").tobytes())
    results = {
        "schema": 1,
        "rank": rank,
        "size": size,
        "batch_size": BATCH_SIZE,
        "updates": options.iterations,
        "iteration_ns": [b - a for a, b in pairwise(starts_ns[options.warmup :])],
        "final_loss": float(mean),
        "test_accuracy": accuracy,
        "parameters_sha256": digest.hexdigest(),
        "scheduled_partitions": ours.scheduled_partitions() if ours else 0,
    }
    directory = Path(os.environ.get("BYTEPROPHET_RUN", ".")) / "results"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"worker-{rank}.json").write_text(json.dumps(results, indent=1) + "\n")
    bps.shutdown()


if __name__ == "__main__":
    main()
