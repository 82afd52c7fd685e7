"""The built-in workloads by name, and ``load`` for those, generated ones and files alike.

Default compute times stand for one accelerator of about 3 to 5 teraflop/s peak. ResNet-50's is
the compute-bound rate measured with batch 64 on the GPUs of the Prophet paper (72 samples/s,
0.89 s an iteration), rounded. The other convolutional networks are taken to do as many operations
per second as that (1.75 teraflop/s; the paper's 153 samples/s of ResNet-18 are 1.67), except
VGG-19, whose large matrix products are taken to run at about 2.8 teraflop/s on the same device, as
are those of BERT and GPT-2, and NCF, which waits for memory, at 0.7: assumptions, not
measurements. ``Workload.scaled`` gives any other speed. No bursts are declared: every gradient is
ready when its layer's backward is done.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from byteprophet.errors import UserError
from byteprophet.input_files import is_there
from byteprophet.workload.files import read_toml
from byteprophet.workload.generate import generate, seed_in
from byteprophet.workload.model import Workload


@dataclass(frozen=True)
class _Builtin:
    batch_size: int
    compute_ns: int  # forward and backward together; a third is forward


_BUILTINS = {
    "resnet18": _Builtin(batch_size=64, compute_ns=400_000_000),
    "resnet50": _Builtin(batch_size=64, compute_ns=900_000_000),
    "resnet152": _Builtin(batch_size=32, compute_ns=1_270_000_000),
    "inception-v3": _Builtin(batch_size=32, compute_ns=630_000_000),
    "inception-v4": _Builtin(batch_size=32, compute_ns=1_350_000_000),
    "densenet201": _Builtin(batch_size=32, compute_ns=470_000_000),
    "vgg19": _Builtin(batch_size=32, compute_ns=1_350_000_000),
    "bert-base": _Builtin(batch_size=32, compute_ns=780_000_000),
    "gpt2": _Builtin(batch_size=4, compute_ns=1_250_000_000),
    "ncf": _Builtin(batch_size=65_536, compute_ns=60_000_000),
}


def builtin_names() -> list[str]:
    """Names of the built-in workloads."""
    return list(_BUILTINS)


def load(name_or_path: str | Path) -> Workload:
    """The built-in workload of that name, ``random:SEED``, or the one in the file at that path.

    A file called like one of the first two is reached as ``./name``.
    """
    name = str(name_or_path)
    builtin = _BUILTINS.get(name)
    if builtin is not None:
        # Imported here: most of who imports workloads loads none of these.
        from byteprophet.workload.networks.by_name import NETWORKS
        from byteprophet.workload.networks.layers import to_workload

        return to_workload(name, builtin.batch_size, builtin.compute_ns, NETWORKS[name]())
    seed = seed_in(name)
    if seed is not None:
        return generate(seed)
    if not is_there(name_or_path):
        raise UserError(
            f"workload '{name}' is neither built in ({', '.join(_BUILTINS)}) nor random:SEED"
            " nor a file"
        )
    return read_toml(name_or_path)
