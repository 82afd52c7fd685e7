"""Workloads: a training job as a list of tensors with sizes and times, without its code.

model.py      the types ``Tensor`` and ``Workload``
files.py      TOML files in and out
networks/     the built-in networks, as lists of layers
builtin.py    their names, batch sizes and compute times; ``load``
generate.py   workloads made from a seed
as_job.py     the parts of a job that a workload describes
run_config.py   the configuration of a finished run
"""

from __future__ import annotations

from byteprophet.workload.builtin import builtin_names, load
from byteprophet.workload.files import parse_toml, read_toml, to_toml
from byteprophet.workload.model import Tensor, Workload

__all__ = ["Tensor", "Workload", "builtin_names", "load", "parse_toml", "read_toml", "to_toml"]
