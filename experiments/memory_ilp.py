"""What ``torch.distributed._tools.sac_ilp`` would checkpoint, for ``memory.py``.

Its estimator of times needs CUDA, so it gets processor times of the operators here, each distinct
one run with zeros. Its budget does not include optimizer state, so that is deducted. It also says
how much of each block to discard; here a block is checkpointed as a whole or not at all.
"""

from __future__ import annotations

import contextlib
import io
import math
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed._tools.runtime_estimator import RuntimeEstimator
from torch.distributed._tools.sac_estimator import SACEstimator
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_unflatten

from byteprophet.memory.kernels import Kernel, Layout
from byteprophet.memory.training import Training

_GIB = 2**30
_MS = 1e-6  # of a nanosecond


class _Times:
    """Milliseconds of operators, each distinct one measured once."""

    def __init__(self) -> None:
        self._known: dict[Kernel, float] = {}

    def run(self, operator: Any, args: Any, kwargs: Any) -> tuple[Any, float]:
        """The result without data, and the time that the operator takes with data."""
        leaves, tree = tree_flatten((tuple(args), dict(kwargs or {})))
        result = operator(*args, **(kwargs or {}))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        views = torch.Tag.inplace_view in operator.tags or operator.is_view
        if not tensors or views:
            return result, 0.0
        kept = tuple(
            Layout(tuple(leaf.shape), tuple(leaf.stride()), leaf.dtype)
            if isinstance(leaf, torch.Tensor)
            else leaf
            for leaf in leaves
        )
        kernel = Kernel(operator, kept, tree)
        if kernel not in self._known:
            with _disable_current_modes(), torch.no_grad():
                self._known[kernel] = self._measure(kernel)
        return result, self._known[kernel]

    def _measure(self, kernel: Kernel) -> float:
        least = float("inf")
        for _ in range(3):
            leaves = [leaf.zeros() if isinstance(leaf, Layout) else leaf for leaf in kernel.leaves]
            args, kwargs = tree_unflatten(leaves, kernel.tree)
            began = time.thread_time_ns()
            try:
                kernel.operator(*args, **kwargs)
            except RuntimeError:
                return 0.0
            least = min(least, (time.thread_time_ns() - began) * _MS)
        return least


def ilp_choice(
    training: Training, paths: Sequence[str], budget_bytes: int, state_bytes: int
) -> list[str] | str:
    """The paths that it would checkpoint, or why there is no answer."""
    try:
        from torch.distributed._tools.ilp_utils import aggregate_stats, parse_module_info
        from torch.distributed._tools.sac_ilp import sac_milp
    except ImportError:
        return "not installed"
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            info = _statistics(training, aggregate_stats)
            graph = parse_module_info(info)
            for node in graph.nodes:  # curves of modules with few operators are not numbers
                if not all(map(math.isfinite, (*node["slopes"], *node["intercepts"]))):
                    node["slopes"], node["intercepts"], node["n_segments"] = [1.0], [0.0], 1
            names = _full_names(training, paths)
            budget = (budget_bytes - state_bytes) / _GIB
            decisions, _, peak = sac_milp(graph, budget, world_size=1, ac_units=names)
    except Exception as error:  # noqa: BLE001 (private code of torch, in which anything may fail)
        return f"failed: {type(error).__name__}: {str(error)[:60]}"
    if peak == -1:
        return "no solution"
    return [path for path, name in zip(paths, names, strict=True) if name in decisions]


def _full_names(training: Training, paths: Sequence[str]) -> list[str]:
    return [f"{type(training.model).__name__}.{path}" for path in paths]


def _statistics(training: Training, aggregate_stats: Any) -> Any:
    times = _Times()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        bare = training.without_data(mode)
        model = bare.model
        tracker, estimator, trade_offs = MemTracker(), RuntimeEstimator(), SACEstimator()
        tracker.track_external(model)

        def iterate() -> None:
            bare.loss(bare.micro_batches[0]).backward()  # type: ignore[no-untyped-call]
            model.zero_grad(set_to_none=True)

        with tracker:
            iterate()
        estimator("operator-level-benchmark")
        estimator._estimate = times.run
        with estimator:
            iterate()
        for order in ("fw_pre", "fw_post", "bw_pre", "bw_post"):  # modules that run twice
            name = f"mod_{order}_order"
            setattr(estimator, name, list(dict.fromkeys(getattr(estimator, name))))
        trade_offs("operator-level-benchmark")
        trade_offs._estimate_runtime = times.run  # type: ignore[assignment]
        with trade_offs:
            bare.loss(bare.micro_batches[0])
        return aggregate_stats(model, tracker, estimator, trade_offs, torch.device("cpu"))
