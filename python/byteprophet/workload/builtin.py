"""The built-in workloads by name, and ``load`` for those and files alike.

Default compute times stand for one accelerator of about 3 to 5 teraflop/s peak. ResNet-50's is
the compute-bound rate measured with batch 64 on the GPUs of the Prophet paper (72 samples/s,
0.89 s an iteration), rounded. VGG-19 and BERT-base are assumptions, not measurements: their
large matrix products are taken to run at about 2.8 teraflop/s on the same device.
``Workload.scaled`` gives any other speed. No bursts are declared: every gradient is ready when
its layer's backward is done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from byteprophet.errors import UserError
from byteprophet.workload.bert import bert_base
from byteprophet.workload.files import read_toml
from byteprophet.workload.layers import Parameter, to_workload
from byteprophet.workload.model import Workload
from byteprophet.workload.resnet import resnet50
from byteprophet.workload.vgg import vgg19


@dataclass(frozen=True)
class _Builtin:
    parameters: Callable[[], list[Parameter]]
    batch_size: int
    compute_ns: int  # forward and backward together; a third is forward


_BUILTINS = {
    "resnet50": _Builtin(resnet50, batch_size=64, compute_ns=900_000_000),
    "vgg19": _Builtin(vgg19, batch_size=32, compute_ns=1_350_000_000),
    "bert-base": _Builtin(bert_base, batch_size=32, compute_ns=780_000_000),
}


def builtin_names() -> list[str]:
    """Names of the built-in workloads."""
    return list(_BUILTINS)


def load(name_or_path: str | Path) -> Workload:
    """The built-in workload of that name, otherwise the one in the file at that path.

    A file called like a built-in is reached as ``./name``.
    """
    builtin = _BUILTINS.get(str(name_or_path))
    if builtin is not None:
        return to_workload(
            str(name_or_path), builtin.batch_size, builtin.compute_ns, builtin.parameters()
        )
    if not Path(name_or_path).exists():
        raise UserError(
            f"workload '{name_or_path}' is neither built in ({', '.join(_BUILTINS)}) nor a file"
        )
    return read_toml(name_or_path)
