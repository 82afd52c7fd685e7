"""Measured costs from the tables that NVIDIA's package aiconfigurator-core carries.

The package is optional (``pip install byteprophet[costs]``), and only its data files are read; none
of its code runs. Used are bf16 matrix products, the forward pass of fused attention, and NCCL's
collectives in one node. Its message sizes count elements, and its times are milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np

from byteprophet.errors import UserError
from byteprophet.simulate.costs.table import CostTable

NAME = "aiconfigurator"
_PACKAGE = "aiconfigurator-core"
_DATA = "aiconfigurator_core/systems/data"
_MOST_BYTES = 64 << 20
_LARGE = 1e12
"""FLOPs of attention that show what a device reaches."""


def read(gpu: str, gpus: int) -> CostTable:
    """The costs of a GPU, of which ``gpus`` are in a node.

    Raises:
        UserError: the package is missing, or knows no such GPU.
    """
    try:
        package = distribution(_PACKAGE)
    except PackageNotFoundError:
        raise UserError(
            f"--costs {NAME}: needs the package {_PACKAGE}, for Python 3.11 and later: "
            "pip install byteprophet[costs]"
        ) from None
    data = Path(str(package.locate_file(_DATA)))
    known = sorted(path.name for path in data.iterdir() if (path / "gemm").is_dir())
    system = next((each for each in known if _is(each, gpu)), None)
    if system is None:
        raise UserError(f"--costs {NAME}: has no GPU {gpu}: it has {', '.join(known)}")
    products, described = _products(data / system)
    bandwidth, latency = _collectives(data / system, gpus)
    return CostTable(
        source=f"{_PACKAGE} {package.version}, {system}, {described}",
        products=products,
        attention_flops_per_s=_attention(data / system),
        node_bytes_per_s=bandwidth,
        node_latency_ns=latency,
    )


def _is(system: str, gpu: str) -> bool:
    """Whether ``gpu``, such as "A100-SXM4-80GB", is what the package calls ``system``."""
    wanted = gpu.lower().replace("_", "-").split("-")
    name, *form = system.split("_")
    return wanted[0] == name and all(any(part.startswith(each) for part in wanted) for each in form)


def _products(system: Path) -> tuple[tuple[tuple[int, int, int, float], ...], str]:
    columns = ("gemm_dtype", "m", "n", "k", "latency")
    path = _largest(system.glob("gemm/*/*/gemm_perf.parquet"))
    rows = _rows(path, columns)
    best: dict[tuple[int, int, int], float] = {}
    for dtype, m, n, k, ms in rows:
        if dtype == "bfloat16" and ms > 0:
            key = (int(m), int(n), int(k))
            best[key] = min(best.get(key, np.inf), ms * 1e6)
    framework = f"{path.parts[-3]} {path.parts[-2]}"
    return tuple((*key, ns) for key, ns in best.items()), framework


def _attention(system: Path) -> float:
    """The median rate of large causal attention; 0 if there is none."""
    columns = ("attn_dtype", "batch_size", "isl", "num_heads", "head_dim", "step", "latency")
    rates = []
    for path in system.glob("attention/*/*/context_attention_perf.parquet"):
        for dtype, batch, tokens, heads, size, step, ms in _rows(path, columns):
            flops = 4 * batch * heads * size * tokens**2 / 2
            if dtype == "bfloat16" and not step and flops >= _LARGE:
                rates.append(flops / (ms * 1e-3))
    return float(np.median(rates)) if rates else 0.0


def _collectives(system: Path, gpus: int) -> tuple[float, float]:
    """The bus bandwidth of large collectives over ``gpus``, and the time of a small all-reduce.

    The bandwidth is the median of three kinds: all-reduces in NVSwitch are faster than rings.
    """
    columns = ("op_name", "nccl_dtype", "num_gpus", "message_size", "latency")
    paths = sorted(system.glob("comm/nccl/*/nccl_perf.parquet"))
    found: dict[str, list[tuple[int, float]]] = {}
    for name, dtype, ranks, count, ms in _rows(paths[-1], columns) if paths else ():
        if dtype == "half" and ranks == gpus and ms > 0:
            found.setdefault(name, []).append((2 * int(count), ms * 1e6))
    rates = []
    for name, passes in (("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)):
        if len(found.get(name, ())) > 1:
            (_, latency_ns), (size_bytes, time_ns) = min(found[name]), max(found[name])
            moved = passes * (gpus - 1) / gpus * size_bytes
            rates.append(moved / (time_ns - latency_ns) * 1e9)
    small = min(found.get("all_reduce", [(0, 0.0)]))
    return (float(np.median(rates)) if rates else 0.0), small[1]


def _largest(paths: Iterable[Path]) -> Path:
    found = sorted(paths, key=lambda path: path.stat().st_size)
    if not found:
        raise UserError(f"--costs {NAME}: the package has no table of matrix products")
    return found[-1]


def _rows(path: Path, columns: tuple[str, ...]) -> Iterable[tuple[Any, ...]]:
    import pyarrow as pa
    import pyarrow.parquet as pq  # which takes a moment, and few need it

    if path.stat().st_size > _MOST_BYTES:
        raise UserError(f"--costs {NAME}: {path}: is too large")
    try:
        table = pq.read_table(path, columns=list(columns))
        return list(zip(*(table.column(name).to_pylist() for name in columns), strict=True))
    except (pa.ArrowException, OSError, KeyError) as error:
        raise UserError(f"--costs {NAME}: {path}: cannot be read: {error}") from None
