"""What the operations of a job's graph are called, and that labels and blocks say the same."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteprophet import schedulers
from byteprophet.errors import UserError
from byteprophet.graph import Graph, GraphBuilder, Kind, Label, Labels
from byteprophet.graph.ps_graph import PsGraph, build
from byteprophet.job import Costs, Job, Times
from byteprophet.replay import replay

from ..measure.server_jobs import cluster_of, server_job
from .test_ps_graph import random_job

BLOCKS = {
    "begin": Kind.ITERATION,
    "forward": Kind.FORWARD,
    "backward": Kind.BACKWARD,
    "ready": Kind.BACKWARD,
    "update": Kind.UPDATE,
    "push": Kind.PUSH,
    "sum": Kind.SUM,
    "answer": Kind.ANSWER,
}
OF_TENSORS = ("forward", "ready", "update")
OF_PARTITIONS = ("push", "sum", "answer")


def small_job(scheduler: str, worker_bps: int = 10**9) -> Job:
    """One worker and iteration, two servers, two tensors: the first in two partitions."""
    known, _ = schedulers.resolve(scheduler, {})
    shape = (1, 1, 2)
    return server_job(
        ["embedding", "head"],
        [8192, 4096],
        Times(
            forward_ns=np.full(shape, 10),
            ready_ns=np.array([20, 10]).reshape(shape),
            backward_ns=np.full(shape[:2], 30),
            update_ns=np.full(shape, 5),
        ),
        cluster_of((worker_bps,), (10**9, 10**9), Costs(request_lags_ns=(7,), answers_bytes=1)),
        scheduler,
        4096,
        known,
    )


def described(graph: Graph) -> list[str]:
    return [graph.labels.describe(operation) for operation in range(len(graph))]


def test_a_job_behind_gates() -> None:
    built = build(small_job("p3"))
    assert built.partitions.server.tolist() == [1, 0, 0]
    parts = (
        ("embedding part 0", 1),
        ("embedding part 1", 0),
        ("head part 0", 0),
    )

    def to_servers(words: str) -> list[str]:
        return [f"{words} of {part}, worker 0 to server {s}, iteration 0" for part, s in parts]

    def to_workers(words: str) -> list[str]:
        return [f"{words} of {part}, server {s} to worker 0, iteration 0" for part, s in parts]

    assert described(built.graph) == [
        "begin, worker 0, iteration 0",
        "forward of embedding, worker 0, iteration 0",
        "forward of head, worker 0, iteration 0",
        "backward of head, worker 0, iteration 0",
        "backward of embedding, worker 0, iteration 0",
        "backward, worker 0, iteration 0",
        *to_servers("push"),
        *to_servers("hand-over"),
        *to_servers("lag before the request"),
        *to_servers("request"),
        *to_workers("sum"),
        *to_workers("acknowledgement"),
        *to_workers("answer"),
        *to_workers("hand-over of the answer"),
        "update of embedding, worker 0, iteration 0",
        "update of head, worker 0, iteration 0",
    ]


def test_a_job_without_gates() -> None:
    graph = build(small_job("stock")).graph
    kinds = [Kind(int(kind)).name for kind in graph.labels.kind]
    assert kinds == [
        "ITERATION",
        *["FORWARD"] * 2,
        *["BACKWARD"] * 3,
        *["PUSH"] * 3,
        *["SUM"] * 3,
        *["ANSWER"] * 3,
        *["ACKNOWLEDGEMENT"] * 3,
        *["REQUEST"] * 3,
        *["UPDATE"] * 2,
        "BARRIER",
    ]


@settings(max_examples=60)
@given(st.data())
def test_no_two_operations_are_the_same_and_blocks_agree(data: st.DataObject) -> None:
    job = data.draw(st.composite(random_job)())
    costs = dataclasses.replace(
        job.cluster.costs,
        request_lags_ns=data.draw(st.sampled_from([(), (0, 5)])),
        answers_bytes=data.draw(st.sampled_from([0, 1000])),
    )
    cluster = dataclasses.replace(job.cluster, costs=costs)
    built = build(dataclasses.replace(job, cluster=cluster))
    labels = built.graph.labels
    rows = np.transpose([vars(labels)[name] for name in Label._fields])
    assert len(np.unique(rows, axis=0)) == len(built.graph)
    for name, kind in BLOCKS.items():
        check_block(built, name, kind)
    assert labels.names == tuple(job.model.names)


def check_block(built: PsGraph, name: str, kind: Kind) -> None:
    labels, block = built.graph.labels, getattr(built, name)
    workers, iterations = np.indices(block.shape)[:2]
    assert (labels.kind[block] == kind).all()
    assert (labels.iteration[block] == iterations).all()
    worker = labels.peer if kind.rank_is == "server" else labels.rank
    assert (worker[block] == workers).all()
    if name in OF_TENSORS:
        assert (labels.tensor[block] == np.arange(block.shape[2])).all()
    if name in OF_PARTITIONS:
        server = labels.rank if kind.rank_is == "server" else labels.peer
        assert (server[block] == built.partitions.server).all()
        key = (labels.tensor[block].astype(np.int64) << 16) + labels.part[block]
        assert (key == built.partitions.key).all()


def test_the_head_of_a_large_answer_has_a_label_of_its_own() -> None:
    graph = build(small_job("p3", worker_bps=1000)).graph  # a window of nearly nothing
    heads = np.flatnonzero(graph.labels.kind == Kind.ANSWER_HEAD)
    assert len(heads) == 3
    text = "head of the answer of head part 0, server 0 to worker 0, iteration 0"
    assert graph.labels.describe(int(heads[-1])) == text


def test_what_is_refused_is_named_by_its_label() -> None:
    built = build(small_job("p3"))
    duration_ns = built.graph.duration_ns.copy()
    duration_ns[built.push[0, 0, 1]] = -1
    name = "push of embedding part 1, worker 0 to server 0, iteration 0"
    with pytest.raises(UserError, match=rf"duration_ns .* \(operation \d+ is '{name}'\)"):
        replay(dataclasses.replace(built.graph, duration_ns=duration_ns))


def test_labels_in_words() -> None:
    builder = GraphBuilder(["first"])
    builder.add("mine")
    builder.add("first", label=Label(Kind.ALL_GATHER, rank=2, peer=0, part=5))
    builder.add("mine", label=Label(Kind.REDUCE_SCATTER_END, iteration=3))
    builder.add("")
    graph = builder.freeze()
    assert graph.labels.names == ("first", "mine")
    assert described(graph) == [
        "mine",
        "all-gather of first part 5, worker 2 to worker 0",
        "end of the reduce-scatter of mine, iteration 3",
        "",
    ]
    assert Labels().describe(0) == ""


def test_labels_refer_to_what_there_is() -> None:
    for label, text in (
        (Label(len(Kind)), rf"operation 1 refers to number {len(Kind)} of {len(Kind)} kinds"),
        (Label(tensor=[0, 2]), "operation 2 refers to number 2 of 2 names"),
    ):
        builder = GraphBuilder(["first"])
        builder.add("second")
        builder.add_block(2, label=label)
        with pytest.raises(UserError, match=text):
            builder.freeze()
