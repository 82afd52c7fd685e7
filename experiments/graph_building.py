"""Large graphs built in Python and replayed: how long it takes, and how much memory.

    python experiments/graph_building.py

Each graph is built and replayed in a process of its own:

- *job*: a parameter-server job under prophet, 8 workers, 2 servers, 50 tensors of 2 MB in
  partitions of 512 KiB, as many iterations as make a million operations;
- *arrays*: a million operations in a few arrays: gradients, each computed, pushed behind a gate
  over a connection, acknowledged and applied;
- *one by one*: a tenth as many operations, each added and connected by calls of its own.

Printed per graph: operations and dependencies, seconds to build it and to replay it (the shortest
of three), and the most memory that the process had when it was built and when it was replayed.
Half a minute.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from script import run_script

from byteprophet.errors import JobFailed, UserError
from byteprophet.graph import Graph, GraphBuilder, Kind, Label, ps_graph
from byteprophet.graph.model import Int64Array
from byteprophet.job import (
    Cluster,
    Costs,
    Host,
    Job,
    Model,
    Parameter,
    Policy,
    Strategy,
    Times,
)
from byteprophet.replay import replay

REPEATS = 3
TIMEOUT_S = 600
TENSORS, TENSOR_BYTES, PARTITION_BYTES = 50, 2_000_000, 512 << 10
WORKERS, SERVERS, LANES = 8, 2, 64
LINK_BPS = 10_000_000_000
LAYER_NS = 1_000_000
DELAY_NS = 50_000

_Result = TypeVar("_Result")


def main(arguments: Sequence[str]) -> None:
    """Measure each graph in a process of its own, and print."""
    options = _parse(arguments)
    if options.operations < 1:
        raise UserError(f"--operations {options.operations}: must be at least 1")
    if options.graph:
        print(json.dumps(measure(GRAPHS[options.graph], options.operations)))
        return
    print(
        f"{'graph':12}{'operations':>12}{'dependencies':>14}{'build':>10}{'replay':>10}{'memory':>18}"
    )
    for name in GRAPHS:
        command = [sys.executable, __file__, "--graph", name]
        command += ["--operations", str(options.operations)]
        print(_line(name, json.loads(_output_of(name, command))), flush=True)


def _output_of(name: str, command: Sequence[str]) -> str:
    """What the process that measures graph ``name`` prints."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise JobFailed(
            f"{name}: not built and replayed within {TIMEOUT_S} s; give fewer --operations"
        ) from None
    if done.returncode:
        raise JobFailed(f"{name}: {done.stderr.strip()}")
    return done.stdout


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Build large graphs and replay them.",
        epilog="example: python experiments/graph_building.py --operations 5000000",
    )
    parser.add_argument("--operations", type=int, default=1_000_000, help="about so many")
    parser.add_argument("--graph", choices=GRAPHS, help="only this one, in this process, as JSON")
    return parser.parse_args(arguments)


def measure(make: Callable[[int], Graph], operations: int) -> dict[str, Any]:
    """Seconds, operations, and memory in bytes."""
    build_s, graph = _shortest(lambda: make(operations))
    built_bytes = _peak_bytes()
    replay_s, _ = _shortest(lambda: replay(graph))
    return {
        "operations": len(graph),
        "dependencies": len(graph.successor),
        "build_s": build_s,
        "replay_s": replay_s,
        "built_bytes": built_bytes,
        "replayed_bytes": _peak_bytes(),
    }


def _shortest(do: Callable[[], _Result]) -> tuple[float, _Result]:
    """Seconds of the shortest of ``REPEATS``, and what the last one gave."""
    shortest_s, result = _timed(do)
    for _ in range(REPEATS - 1):
        del result  # two at a time would need twice the memory
        took_s, result = _timed(do)
        shortest_s = min(shortest_s, took_s)
    return shortest_s, result


def _timed(do: Callable[[], _Result]) -> tuple[float, _Result]:
    began = time.perf_counter()
    result = do()
    return time.perf_counter() - began, result


def _peak_bytes() -> int:
    """The most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _line(name: str, row: dict[str, Any]) -> str:
    built, replayed = (row[key] / 1e6 for key in ("built_bytes", "replayed_bytes"))
    return (
        f"{name:12}{row['operations']:12,}{row['dependencies']:14,}{row['build_s']:8.2f} s"
        f"{row['replay_s']:8.2f} s{built:8.0f},{replayed:6.0f} MB"
    )


def job(operations: int) -> Graph:
    """A parameter-server job with gates of workers and servers, and threads that hand over."""
    partitions = TENSORS * -(-TENSOR_BYTES // PARTITION_BYTES)
    per_iteration = WORKERS * (8 * partitions + 3 * TENSORS + 2)
    shape = (WORKERS, -(-operations // per_iteration), TENSORS)
    random = np.random.default_rng(0)
    given = Job(
        Model(tuple(Parameter(f"layer{n}.weight", TENSOR_BYTES) for n in range(TENSORS))),
        Times(
            forward_ns=random.integers(1, LAYER_NS, shape),
            ready_ns=np.cumsum(random.integers(1, 2 * LAYER_NS, shape), axis=2)[..., ::-1],
            backward_ns=np.full(shape[:2], 2 * LAYER_NS * TENSORS),
            update_ns=np.full(shape, LAYER_NS // 10),
        ),
        Cluster(
            (Host(LINK_BPS, LINK_BPS),) * WORKERS,
            (Host(LINK_BPS, LINK_BPS),) * SERVERS,
            Costs(
                message_cost_ns=10_000,
                delay_ns=DELAY_NS,
                sum_ns_per_byte=0.1,
                hand_over_ns=5_000,
                request_lags_ns=(0, 20_000, 50_000),
                answers_bytes=4 << 20,
            ),
        ),
        Strategy(partition_bytes=PARTITION_BYTES),
        Policy("prophet"),
    )
    return ps_graph.build(given).graph


def in_arrays(operations: int) -> Graph:
    """Steps of ``LANES`` tensors: each computed, pushed behind its worker's gate, acknowledged."""
    builder = GraphBuilder(f"layer{number}.weight" for number in range(LANES))
    links = [builder.link(f"worker {worker}", LINK_BPS) for worker in range(WORKERS)]
    computes = [builder.serial(f"worker {worker} computes") for worker in range(WORKERS)]
    connections = [builder.connection(f"worker {w} pushes", (links[w],)) for w in range(WORKERS)]
    gates = [builder.gate(f"worker {w}", "p3", {}) for w in range(WORKERS)]
    shape = (-(-operations // (LANES * 4)), LANES)
    steps, lanes = np.arange(shape[0])[:, None], np.arange(LANES)
    worker = lanes % WORKERS

    def block(kind: Kind, **columns: npt.ArrayLike) -> Int64Array:
        rank, peer = (0, worker) if kind.rank_is == "server" else (worker, -1)
        label = Label(kind, rank, peer, iteration=steps, tensor=lanes)
        return builder.add_block(shape, 1000, label=label, **columns)

    computed = block(Kind.BACKWARD, device=np.array(computes)[worker])
    pushed = block(
        Kind.PUSH, device=np.array(connections)[worker], size_bytes=TENSOR_BYTES // LANES
    )
    acked, updated = block(Kind.ACKNOWLEDGEMENT), block(Kind.UPDATE)
    builder.depend_each(computed, pushed)
    builder.depend_each(pushed, acked)
    builder.depend_each(pushed, updated)
    for ahead in (0, 1, 2, 3, 4):
        builder.depend_each(updated[:-1], np.roll(computed[1:], ahead, axis=1))
    builder.guard_block(
        pushed,
        np.array(gates)[worker],
        key=(lanes << 16) + steps % 2**16,
        server=0,
        priority=-1 - lanes,
        acked_by=acked,
    )
    return builder.freeze()


def one_by_one(operations: int) -> Graph:
    """Chains on 64 devices, each operation of which also waits for a neighbour's."""
    builder = GraphBuilder()
    devices = [builder.serial(f"device {number}") for number in range(64)]
    for number in range(operations // 10):
        after = (number - 64, number - 63) if number >= 64 else ()
        builder.add("work", 1000, device=devices[number % 64], after=after)
    return builder.freeze()


GRAPHS: dict[str, Callable[[int], Graph]] = {
    "job": job,
    "arrays": in_arrays,
    "one by one": one_by_one,
}


if __name__ == "__main__":
    run_script(main)
