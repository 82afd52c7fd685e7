"""Workloads: a training job as a list of tensors with sizes and times, without its code.

    model.py      the types ``Tensor`` and ``Workload``
    files.py      TOML files in and out
    layers.py     layer shapes, operation counts, and from them a workload
    resnet.py vgg.py inception.py densenet.py bert.py gpt2.py   networks, as lists of layers
    generate.py   workloads made from a seed
    builtin.py    their names, batch sizes and compute times; ``load``
    bound.py      the shortest possible iteration of a workload
    gradient.py   the stated gradients and initial parameters of a paced job
    check.py      what the parameters of a paced job must be after N updates
    pacing.py     timed waits without drift
    paced.py      a workload as a ``torch.nn.Module``          (needs torch)
    worker.py     the paced worker process of a job            (needs torch, a front)
    collective_front.py collective_settings.py   the same over torch.distributed, without BytePS:
    ddp_worker.py fsdp2_worker.py wfbp_worker.py collective_worker.py   whose collectives

This module imports neither torch nor a front.
"""

from __future__ import annotations

from byteprophet.workload.builtin import builtin_names, load
from byteprophet.workload.files import parse_toml, read_toml, to_toml
from byteprophet.workload.model import Tensor, Workload

__all__ = ["Tensor", "Workload", "builtin_names", "load", "parse_toml", "read_toml", "to_toml"]
