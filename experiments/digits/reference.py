"""What the distributed training must give: the same training in one process, without BytePS.

    python experiments/digits/reference.py --out DIRECTORY

For every iteration it takes the batches that the ranks of the job take, one after the other, each
with batch norm's statistics of its own rank, averages the gradients and makes the same update.
Evaluation is with rank 0's running statistics. Writes ``reference.json`` and ``reference.npz``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from data import BATCH_SIZE, Images, batch_indices, load
from model import ResNet
from recipe import (
    ITERATIONS,
    evaluate,
    make_optimizer,
    make_schedule,
    parameters_sha256,
    set_up,
    write_results,
)
from torch.func import functional_call
from torch.nn import functional


def train_alone(model: ResNet, train: Images, ranks: int, iterations: int) -> None:
    """Train ``model`` as ``ranks`` workers together would."""
    optimizer = make_optimizer(model)
    schedule = make_schedule(optimizer, iterations)
    statistics = [
        {name: buffer.clone() for name, buffer in model.named_buffers()} for _ in range(ranks)
    ]
    for iteration in range(iterations):
        optimizer.zero_grad()
        for rank in range(ranks):
            images, labels = train[batch_indices(iteration, rank, ranks, len(train))]
            # The running statistics passed in are those that the forward pass updates.
            logits = functional_call(model, statistics[rank], (images,))
            loss = functional.cross_entropy(logits, labels)
            loss.backward()  # type: ignore[no-untyped-call]
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad /= ranks
        optimizer.step()
        schedule.step()
    for name, buffer in model.named_buffers():
        buffer.copy_(statistics[0][name])


def main() -> None:
    """Train, evaluate, write results."""
    parser = argparse.ArgumentParser(description="Train as several workers would, in one process.")
    parser.add_argument("--out", type=Path, required=True, help="directory for the results")
    parser.add_argument("--iterations", type=int, default=ITERATIONS, help="parameter updates")
    parser.add_argument("--ranks", type=int, default=2, help="how many workers to stand for")
    options = parser.parse_args()
    set_up()
    train, test = load()
    model = ResNet()
    train_alone(model, train, options.ranks, options.iterations)
    final_loss, _ = evaluate(model, train)
    test_loss, test_accuracy = evaluate(model, test)
    write_results(
        options.out,
        "reference",
        {
            "size": options.ranks,
            "batch_size": BATCH_SIZE,
            "updates": options.iterations,
            "final_loss": final_loss,
            "test_loss": test_loss,
            "test_accuracy": test_accuracy,
            "parameters_sha256": parameters_sha256(model),
        },
        model,
    )


if __name__ == "__main__":
    main()
