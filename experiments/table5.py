"""Proteus' Table V: ranks of GPT-2's strategies on two clusters, predicted beside measured.

    python experiments/table5.py

HC1 is a node of 8 Titan Xp on PCIe, and HC2 two nodes of 8 V100 on 100 Gb/s. The global batches are
8 and 64 sequences of 1,024 tokens. The paper says neither the size of GPT-2 nor the precision: the
model is GPT-2 medium, since 12 heads cannot be split over 8 GPUs, in single precision, PyTorch's
default. Peaks are from data sheets, and efficiencies those of `dgx-1v`; nothing is fitted. PCIe is
taken as one link per GPU, without the two sockets and the link between them.
Takes a second.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from rich.table import Table
from scipy.stats import kendalltau
from script import run_script

from byteprophet.report.console import table_console
from byteprophet.simulate.clusters.description import Cluster, find_cluster
from byteprophet.simulate.execute.simulate import simulate
from byteprophet.simulate.models.catalogue import gpt
from byteprophet.simulate.models.transformer import build
from byteprophet.simulate.tree.one_line import parse_strategy

RANKS = {
    "HC1": (8, {"8x1x1(1)": 2, "4x2x1(1)": 1, "2x4x1(1)": 3, "1x8x1(1)": 5, "2x2x2(1)": 6,
                "2x2x2(2)": 4}),
    "HC2": (64, {"16x1x1(1)": 1, "8x2x1(1)": 2, "4x4x1(1)": 3, "2x8x1(1)": 4, "8x1x2(4)": 6,
                 "8x1x2(8)": 5, "2x4x2(4)": 7}),
}  # fmt: skip
"""The global batch, and for DP x MP x PP (micro-batches) the rank that the paper measured."""

_GPT2_MEDIUM = gpt(24, 1024, 16, 1024, 50264)


def cluster(name: str) -> Cluster:
    """One of the paper's clusters.

    The simulator counts two bytes per element. So memory and links have half of their rates, and
    gradients are sent with two bytes, too.
    """
    found = find_cluster("dgx-1v")
    if name == "HC2":
        gpu = replace(
            found.gpu,
            flops_per_s=15_700_000_000_000,
            memory_bytes_per_s=found.gpu.memory_bytes_per_s // 2,
        )
        node = replace(
            found.node,
            gpu_bytes_per_s=found.node.gpu_bytes_per_s // 2,
            link_bytes_per_s=found.node.link_bytes_per_s // 2,
        )
        network = replace(found.network, adapters=1, adapter_bits_per_s=50_000_000_000)
        return replace(found, gpu=gpu, node=node, network=network)
    gpu = replace(
        found.gpu,
        name="Titan Xp",
        multiprocessors=30,
        memory_bytes=12_000_000_000,
        flops_per_s=12_150_000_000_000,
        memory_bytes_per_s=547_700_000_000 // 2,
    )
    node = replace(found.node, links=(), link_bytes_per_s=0, gpu_bytes_per_s=16_000_000_000 // 2)
    return replace(found, gpu=gpu, node=node)


def predict(name: str) -> dict[str, float]:
    """The predicted time of an iteration of each strategy, in nanoseconds."""
    batch, strategies = RANKS[name]
    found = {}
    for text in strategies:
        degrees, _, micro_batches = text.removesuffix(")").partition("(")
        dp, tp, pp = (int(one) for one in degrees.split("x"))
        schedule = f"micro_batches={micro_batches} micro_batch={batch // (dp * int(micro_batches))}"
        settings = f"tp={tp} pp={pp} dp={dp} precision=fp16 {schedule}"
        strategy = parse_strategy(settings, dp * tp * pp)
        model = build("gpt2-medium", _GPT2_MEDIUM, strategy.samples)
        found[text] = float(simulate(model, strategy, cluster(name)).iteration_ns)
    return found


def main(arguments: Sequence[str]) -> None:
    """Print the ranks."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args(arguments)
    table = Table(box=None, pad_edge=False)
    for column in ("cluster", "DP x MP x PP (micro-batches)", "ms", "predicted", "measured"):
        table.add_column(column)
    taus = []
    for name, (_, measured) in RANKS.items():
        predicted = predict(name)
        order = sorted(predicted, key=lambda text: predicted[text])
        for text, rank in measured.items():
            ms = f"{predicted[text] / 1e6:.1f}"
            table.add_row(name, text, ms, str(order.index(text) + 1), str(rank))
        tau = kendalltau(list(predicted.values()), list(measured.values())).statistic
        taus.append(f"{name}: Kendall's tau {tau:.2f}")
    table.caption = ", ".join(taus)
    table.caption_justify = "left"
    table_console().print(table)


if __name__ == "__main__":
    run_script(main)
