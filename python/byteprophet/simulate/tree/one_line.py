"""A usual combination in one line: ``tp=8 pp=16 dp=8 micro_batches=64``.

What it stands for is written out as rules of the tree, as for any other strategy.
"""

from __future__ import annotations

from dataclasses import replace

from byteprophet.errors import UserError
from byteprophet.input_files import whole_number
from byteprophet.simulate.operation.mesh import Mesh
from byteprophet.simulate.operation.operator import FEATURES
from byteprophet.simulate.tree.strategy import PRECISIONS, Rule, Strategy

_TENSOR_PARALLEL = (FEATURES, "heads", "inner", "vocabulary")
_RECOMPUTE = {"none": (), "attention": ("layers.*.attention.core",), "full": ("layers.*",)}
HELP = {
    "tp": "tensor-parallel ranks",
    "pp": "pipeline ranks",
    "dp": "data-parallel ranks; default: what the other degrees leave of the GPUs",
    "cp": "context-parallel ranks, which split the sequence",
    "ep": "expert-parallel ranks, a part of the data-parallel ones",
    "sp": "1: sequence parallelism, where tensor parallelism does not apply; default 0",
    "micro_batches": "micro-batches per iteration; default 1",
    "micro_batch": "samples of a micro-batch on each data-parallel rank; default 1",
    "schedule": "gpipe, 1f1b, interleaved or zb1p; default 1f1b",
    "max_ongoing": "with 1f1b, micro-batches of a stage between forward and backward; default all",
    "chunks": "stages per pipeline rank, for the schedule interleaved",
    "zero": "0 to 3; default 0",
    "all_reduce": "1: with zero=1, gradients are all-reduced, as DeepSpeed does; default 0",
    "recompute": "none, attention or full; default none",
    "overlap": "0: with zero up to 1, gradients are sent after the last backward pass; default 1",
    "scatter_gather": "1: tensor-parallel ranks each send a part to the next stage; default 0",
    "bucket_mb": "gradients that travel together, in MiB; default 25",
    "overlap_p2p": "0: a stage receives only when it is idle; default 1",
    "posted_receives": "1: a stage asks for messages where PyTorch's runtime does; default 0",
    "reduce_in_backward": "1: a stage's last backward pass ends with its all-reduces; default 0",
    "copies": "1: copies that PyTorch makes around collectives count; default 0",
    "launch_blocking": "1: CUDA_LAUNCH_BLOCKING=1 is set; default 0",
    "eager": "1: operators of PyTorch without compilation count; default 0",
    "precision": f"{', '.join(PRECISIONS)}; default bf16",
    "reshard": "with zero=3, after the forward pass: always, never, or default (never with pp)",
    "ring": "1: ring attention over cp ranks; default 0",
}
_TEXTS = ("schedule", "recompute", "precision", "reshard")
_SWITCHES = {
    "overlap": 1,
    "all_reduce": 0,
    "scatter_gather": 0,
    "ring": 0,
    "overlap_p2p": 1,
    "posted_receives": 0,
    "reduce_in_backward": 0,
    "copies": 0,
    "launch_blocking": 0,
    "eager": 0,
}
"""Keys whose value is 0 or 1, by the field of ``Strategy`` of this name, and their defaults."""


def parse_strategy(text: str, gpus: int) -> Strategy:
    """The strategy that ``text`` describes, on ``gpus`` GPUs.

    Raises:
        UserError: a key or value is wrong, or the degrees do not fit the number of GPUs.
    """
    texts, numbers = _parsed(text)
    degrees = {axis: numbers.pop(axis, 1) for axis in ("tp", "pp", "cp", "ep")}
    used = degrees["tp"] * degrees["pp"] * degrees["cp"]
    replicas = numbers.pop("dp", None) or max(1, gpus // used)
    if replicas * used != gpus:
        raise UserError(
            f"strategy: tp x pp x cp x dp is {replicas * used}, but there are {gpus} GPUs"
        )
    if replicas % degrees["ep"]:
        raise UserError(
            f"strategy: ep is {degrees['ep']}: must divide the {replicas} data-parallel ranks"
        )
    mesh = Mesh(**degrees, dp=replicas // degrees["ep"])
    sequence_parallel = numbers.pop("sp", 0)
    if sequence_parallel and degrees["tp"] == 1:
        raise UserError("strategy: sp=1 has no effect without tp > 1")
    recompute = texts.pop("recompute", "none")
    if recompute not in _RECOMPUTE:
        raise UserError(f"strategy: recompute is {recompute!r}: use one of {', '.join(_RECOMPUTE)}")
    tensor_dims = (*_TENSOR_PARALLEL, "sequence") if sequence_parallel else _TENSOR_PARALLEL
    root = Rule(
        "",
        splits=(
            ("dp", ("batch",)),
            ("ep", ("experts", "tables", "batch")),
            ("cp", ("sequence",)),
            ("tp", tensor_dims),
        ),
    )
    rules = (root, *(Rule(pattern, recompute=True) for pattern in _RECOMPUTE[recompute]))
    strategy = Strategy(mesh, rules)
    switches = {key: bool(numbers.pop(key, default)) for key, default in _SWITCHES.items()}
    return replace(strategy, **switches, **numbers, **texts)  # type: ignore[arg-type]


def given_keys(text: str) -> list[str]:
    """The keys in a line, or in a part of one.

    Raises:
        UserError: a key is not known or given twice, or its value is of another type.
    """
    texts, numbers = _parsed(text)
    return [*texts, *numbers]


def _parsed(text: str) -> tuple[dict[str, str], dict[str, int]]:
    texts: dict[str, str] = {}
    numbers: dict[str, int] = {}
    for item in text.replace(",", " ").split():
        key, equals, value = item.partition("=")
        if not equals or key not in HELP:
            raise UserError(f"strategy: {item}: expected KEY=VALUE; keys are {', '.join(HELP)}")
        if key in texts or key in numbers:
            raise UserError(f"strategy: {key} is given twice")
        if key in _TEXTS:
            texts[key] = value
            continue
        number = whole_number(value)
        if number is None:
            raise UserError(f"strategy: {key} is {value!r}: must be a whole number")
        if number > 1 and (key in _SWITCHES or key == "sp"):
            raise UserError(f"strategy: {key} is {number}: must be 0 or 1")
        numbers[key] = number
    for key in ("tp", "pp", "cp", "ep", "dp"):
        if numbers.get(key) == 0:
            raise UserError(f"strategy: {key} is 0: must be at least 1")
    return texts, numbers
