"""DLRM (Naumov et al. 2019), which recommends: embeddings of categories, and two MLPs.

The sizes are those of FlexFlow's example (``examples/cpp/DLRM``), in which embeddings and dense
features are concatenated. Each table is looked up once per sample. With ``ep`` ranks, tables are
divided among them, as hybrid-parallel DLRMs do; the MLPs stay data-parallel.
"""

from __future__ import annotations

from collections.abc import Sequence

from byteprophet.simulate.models.layers import Layers
from byteprophet.simulate.models.module import Call, Model, Module
from byteprophet.simulate.operation.operator import Access, Kind, Operator

NAME = "dlrm"
_TABLES, _ROWS, _WIDTH = 8, 1_000_000, 64
_BOTTOM = (64, 512, 512, 64)
_TOP = (_TABLES * _WIDTH + _BOTTOM[-1], 1024, 1024, 1024, 1)


def dlrm(samples: int) -> Model:
    """DLRM, with ``samples`` per micro-batch."""
    sizes = {"batch": samples, "tables": _TABLES, "rows": _ROWS, "width": _WIDTH}
    sizes |= {f"bottom{at}": size for at, size in enumerate(_BOTTOM)}
    sizes |= {f"top{at}": size for at, size in enumerate(_TOP)}
    make = Layers(sizes)
    calls = (
        Call("embeddings", _embeddings(make), ("categories",), ("embedded",)),
        Call("bottom", _mlp(make, "bottom", _BOTTOM, "dense"), ("dense",), ("made",)),
        Call("joint", _joint(make), ("embedded", "made"), ("joined",)),
        Call("top", _mlp(make, "top", _TOP, "joined"), ("joined",), ("click",)),
        Call("loss", _loss(make), ("click",), ("loss",)),
    )
    return Model(NAME, Module(calls, ("categories", "dense"), ("loss",)), samples, 1)


def _embeddings(make: Layers) -> Module:
    lookup = make.memory(
        "tables",
        [Access("categories", ("batch", "tables"), 8, differentiable=False)],
        [Access("embedded", ("batch", "tables", "width"))],
        [Access("weight", ("tables", "rows", "width"))],
        kind=Kind.LOOKUP,
    )
    return Module((lookup,), ("categories",), ("embedded",))


def _mlp(make: Layers, name: str, sizes: Sequence[int], source: str) -> Module:
    """Linear layers, each but the last with a ReLU."""
    body: list[Operator] = []
    dims = [("batch", f"{name}{at}") for at in range(len(sizes))]
    tensor = source
    for at in range(1, len(sizes)):
        weight = (f"{name}{at}", f"{name}{at - 1}")
        made = f"made{at}"
        body.append(
            make.linear(
                f"linear{at}",
                Access(tensor, dims[at - 1]),
                Access(made, dims[at]),
                weight,
                bias=weight[:1],
            )
        )
        tensor = made
        if at < len(sizes) - 1:
            tensor = f"active{at}"
            body.append(
                make.memory(
                    f"relu{at}",
                    [Access(made, dims[at])],
                    [Access(tensor, dims[at])],
                    saves=[tensor],
                )
            )
    return Module(tuple(body), (source,), (tensor,))


def _joint(make: Layers) -> Module:
    concatenate = make.memory(
        "concatenate",
        [
            Access("embedded", ("batch", "tables", "width")),
            Access("made", ("batch", f"bottom{len(_BOTTOM) - 1}")),
        ],
        [Access("joined", ("batch", "top0"))],
        whole=["tables", "width", "top0", f"bottom{len(_BOTTOM) - 1}"],
    )
    return Module((concatenate,), ("embedded", "made"), ("joined",))


def _loss(make: Layers) -> Module:
    last = f"top{len(_TOP) - 1}"
    loss = make.memory(
        "loss",
        [Access("click", ("batch", last))],
        [Access("loss", ("batch",), 4)],
        whole=[last],
        saves=["click"],
    )
    return Module((loss,), ("click",), ("loss",))
